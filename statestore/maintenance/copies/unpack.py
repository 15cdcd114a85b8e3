"""Writes changelogs of batch logs as files of their own, so that Spark's `statestore` source can read a version.

Spark loads a version from the newest snapshot before it and from the changelogs after that snapshot. `unpack` writes the
changelogs among these that are only members of batch logs. It adds files, and retention deletes them like other changelogs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.commit_log import Heads
from statekeeper.statestore.checkpoint.lineage import Lineage
from statekeeper.statestore.format import names
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.storage import MemberEntry, Storage, at_once, list_members


@dataclass(frozen=True)
class UnpackFacts:
    """The versions of a batch, their lineages, and the files of their stores. `heads`: None without a committed batch.
    `damaged`: the errors of batch logs whose members cannot be listed."""

    heads: Heads | None
    lineages: Mapping[StorePath, Lineage]
    files: Mapping[StorePath, StoreFiles]
    damaged: Mapping[str, CorruptFile | UnknownFormatVersion]


@dataclass(frozen=True)
class Unpack:
    """One changelog to write. `log`: the batch log that contains it."""

    store: StorePath
    version: VersionId
    log: str
    size_bytes: int

    @property
    def path(self) -> str:
        """The path of the new file."""
        return self.store.changelog(self.version)


@dataclass(frozen=True)
class UnpackPlan:
    """The changelogs to write, so that Spark can read `batch`; None without a committed batch.

    `missing`: objects that Spark needs and that do not exist or are damaged. `damaged`: the errors of the latter.
    """

    batch: int | None
    actions: tuple[Unpack, ...]
    missing: tuple[str, ...] = ()
    damaged: Mapping[str, CorruptFile | UnknownFormatVersion] = field(default_factory=dict)


def gather(storage: Storage, *, batch: int | None = None) -> UnpackFacts:
    """Gather the facts for a batch, by default the newest.

    Requests: two listings, the commit, one for each batch log, and one for the lineage of each store whose changelog is a
    file. Raises as `catalog.heads_at`; `ObjectMissing`, `CorruptFile` if a lineage cannot be read.
    """
    heads = catalog.heads(storage) if batch is None else catalog.heads_at(storage, batch)
    members = list_members(storage)
    files = catalog.with_members(members, storage.list(names.STATE))
    lineages: dict[StorePath, Lineage] = {}
    if heads is not None:

        def look(store: StorePath) -> None:
            head = heads.heads[store]
            of_store = files.of(store)
            if head == EMPTY or head in of_store.snapshots:
                lineages[store] = ()
            else:
                lineages[store] = (*catalog.lineage(storage, store, head), head)

        at_once(look, list(heads.heads))
    return UnpackFacts(heads, lineages, files, members.damaged)


def plan(gathered: UnpackFacts) -> UnpackPlan:
    """Plan which changelogs to write. Pure."""
    actions: list[Unpack] = []
    missing: list[str] = []
    for store, lineage in sorted(gathered.lineages.items()):
        files = gathered.files.get(store, StoreFiles())
        base = max((version.version for version in lineage if version in files.snapshots), default=0)
        for version in lineage:
            entry = files.changelogs.get(version)
            if version.version <= base or (entry is not None and not isinstance(entry, MemberEntry)):
                continue
            if entry is None:
                missing.append(object_of(store, version))
            else:
                actions.append(Unpack(store, version, entry.log, entry.size_bytes))
    batch = None if gathered.heads is None else gathered.heads.batch
    damaged = {path: error for path, error in gathered.damaged.items() if path in missing}
    return UnpackPlan(batch, tuple(actions), tuple(dict.fromkeys(missing)), damaged)


def execute(storage: Storage, planned: UnpackPlan) -> Iterator[Unpack]:
    """Write the files, and yield each after it is written.

    *Guarantee*: it only adds files, and a second run after a crash writes the remaining ones. Raises `ObjectMissing` for a
    plan with missing objects, before any write; `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    for path in planned.missing[:1]:
        if path in planned.damaged:
            raise planned.damaged[path]
        raise ObjectMissing(
            f"is missing; Spark cannot read batch {planned.batch} ({len(planned.missing):,} objects are missing)",
            path=path,
            hint="restore the file from a backup, or run: statekeeper audit ROOT",
        )
    for action in planned.actions:
        storage.create(action.path, storage.read(action.path))
        yield action
