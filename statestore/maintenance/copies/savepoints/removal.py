"""Deletes a labeled savepoint: a plan, and its execution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import RefusedAsUnsafe, RootHeld, StatekeeperError
from statekeeper.statestore.format import names as checkpoint_names
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.maintenance.copies import labels
from statekeeper.statestore.maintenance.copies.labels import Label
from statekeeper.statestore.maintenance.records import holds, lease
from statekeeper.statestore.storage import Entry, Storage

_FIRST = (names.MANIFEST, f"{checkpoint_names.COMMITS}/", f"{checkpoint_names.OFFSETS}/")
"""Deleted first: without these files, the location is no savepoint and no checkpoint."""
_FOLDERS = frozenset(
    (
        checkpoint_names.STATE,
        checkpoint_names.COMMITS,
        checkpoint_names.OFFSETS,
        checkpoint_names.SOURCES,
        checkpoint_names.CONTROL,
        names.ROWS,
    )
)
_FILES = frozenset((checkpoint_names.QUERY_METADATA, f".{checkpoint_names.QUERY_METADATA}.crc", names.MANIFEST))


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The files of a savepoint to delete, in order, and the reasons not to.

    others   number of files in its folder that do not belong to a savepoint; they stay
    """

    label: Label
    files: tuple[Entry, ...]
    others: int
    refusals: tuple[StatekeeperError, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of the files."""
        return sum(file.size_bytes for file in self.files)


def plan(label: Label, destination: Storage, *, clock: Clock, forget: bool = False) -> Removal:
    """Plan the deletion of a savepoint. Reads only: one listing, its label, its lease, its holds. Raises `StorageError`.

    `forget`: a person confirms that the savepoint no longer exists, so that only its record is deleted.
    """
    entries = destination.list("", hidden=True)
    files = [entry for entry in entries if entry.path.partition("/")[0] in _FOLDERS or entry.path in _FILES]
    return Removal(
        label=label,
        files=tuple(sorted(files, key=lambda entry: (_rank(entry.path), entry.path))),
        others=len(entries) - len(files),
        refusals=tuple(_refusals(label, destination, files, clock, forget=forget)),
    )


def execute(source: Storage, destination: Storage, removal: Removal) -> None:
    """Delete the files of a savepoint, then its label, then the record in the source. A second run completes the deletion.

    The record in the source first shows that the deletion has begun: otherwise a second run could not tell the deleted
    savepoint from one that was moved. Raises the first refusal; `StorageError`.
    """
    for refusal in removal.refusals:
        raise refusal
    recorded = labels.read_in_source(source, removal.label.label)
    is_recorded = recorded is not None and recorded.is_same(removal.label)
    if recorded is not None and is_recorded and removal.files and not recorded.deleting:
        source.replace(names.label(recorded.label), replace(recorded, deleting=True).encoded())
    for rank in range(4):
        destination.delete([file.path for file in removal.files if _rank(file.path) == rank])
    if is_recorded:
        source.delete([names.label(removal.label.label)])


def _rank(path: str) -> int:
    if path == names.LABEL:
        return 3
    if path.startswith(f"{checkpoint_names.CONTROL}/"):
        return 2
    return 0 if path.startswith(_FIRST) else 1


def _refusals(
    label: Label, destination: Storage, files: Sequence[Entry], clock: Clock, *, forget: bool
) -> Iterator[StatekeeperError]:
    if label.destination != destination.url:
        yield RefusedAsUnsafe(
            f"is a copy of the savepoint {label.label}, or the savepoint was moved here: its record contains the location "
            f"{label.destination}; nothing was deleted",
            path=destination.url,
            hint="if you do not need these files, delete the folder by hand",
        )
        return
    if not files:
        if not (forget or label.deleting):
            yield RefusedAsUnsafe(
                f"has no file of the savepoint {label.label}: it was moved or deleted; its record was not deleted",
                path=destination.url,
                hint="check the location. If the savepoint no longer exists, delete its record: add --forget",
            )
        return
    found = labels.read(destination)
    if found is None or not found.is_same(label):
        there = "has no label" if found is None else f"is the savepoint {found.label} of {found.source}"
        yield RefusedAsUnsafe(
            f"{there}, so it is not the savepoint {label.label} of batch {label.batch}; nothing was deleted",
            path=destination.url,
            hint="examine the location; if its files are not needed, delete them by hand",
        )
    newer = _newer((file.path for file in files), label.batch)
    if newer is not None:
        yield RefusedAsUnsafe(
            f"a query has continued from the savepoint and has written {newer}; nothing was deleted",
            path=destination.url,
            hint="this location is now the checkpoint of that query. If you do not need it, delete the folder by hand. "
            "Next time, start the query from a clone of the savepoint",
        )
    held = lease.current(destination)
    if held is not None and held.is_alive(clock.now_seconds()):
        yield RootHeld(
            f"process {held.lease.holder} holds the lease of the savepoint for the command {held.lease.verb}; "
            "nothing was deleted",
            path=destination.url,
            hint="wait until the other process finishes, then run this command again",
        )
    for hold in holds.current(destination):
        yield RootHeld(
            f"{hold.holder} reads batch {hold.batch} of the savepoint ({hold.verb}); nothing was deleted",
            path=destination.url,
            hint="wait until the other process finishes, then run this command again. If it is dead, its hold expires "
            "after a day",
        )


def _newer(paths: Iterable[str], batch: int) -> str | None:
    for path in paths:
        folder, _, name = path.rpartition("/")
        number = checkpoint_names.parse_batch(name)
        if folder in (checkpoint_names.OFFSETS, checkpoint_names.COMMITS) and number is not None and number > batch:
            return path
    return None
