"""The steps of an edit: the stores with changed rows get new snapshots, which take the place of the head.

In structure V2, the newest commit decides: it names the old versions until it is rewritten, then the new ones. In structure
V1, no query starts from the first new snapshot until all are in place: see `place`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Made, RewriteKind
from statekeeper.statestore.contents.rows import Contents, OpenStore
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.executors import Place
from statekeeper.statestore.maintenance.records import quarantine
from statekeeper.statestore.maintenance.rewrites.edits import changes, place
from statekeeper.statestore.maintenance.rewrites.edits.changes import StoreChanges
from statekeeper.statestore.maintenance.rewrites.edits.model import EditPlan
from statekeeper.statestore.maintenance.rewrites.edits.selection import Selection
from statekeeper.statestore.maintenance.rewrites.engine.commit import (
    is_rewritten,
    require_newest,
    require_no_attempt,
    require_snapshots,
    restore_commit,
    rewrite_commit,
)
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, RewritePhase, StoreStep
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import Skipped, build, build_each, largest_first
from statekeeper.statestore.maintenance.rewrites.engine.steps import RewriteSteps, Rewriting
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Storage, read_or_none
from statekeeper.statestore.store.loading.loaded import Restored


class EditSteps(RewriteSteps[EditPlan]):
    """The steps of an edit."""

    def begin(self, storage: Storage, planned: EditPlan, *, number: int, run: str, ids: Ids) -> Begun:
        assert planned.batch is not None
        changed = {one.step.store for one in planned.stores}
        return Begun(
            number=number,
            run=run,
            to=planned.structure,
            batch=planned.batch,
            header=planned.header,
            commit=planned.commit,
            stores={
                store: VersionId(head.version, ids.fresh()) if store in changed else head
                for store, head in planned.heads.items()
            },
            reused=frozenset(planned.heads.keys() - changed),
            rewrite=RewriteKind.EDIT,
            options=planned.edit.options,
            rows=planned.edit.digest,
        )

    def prepare(self, work: Rewriting, planned: EditPlan) -> None:
        """The new snapshots have names with ids, which no query loads before the commit."""

    def make_snapshots(self, work: Rewriting, planned: EditPlan, machine: Machine) -> None:
        if work.is_cleared:
            return
        assert planned.contents is not None
        assert planned.selection is not None
        executor, changed = machine.executor, {one.step.store: one.changes for one in planned.stores}
        task = EditEach(
            storage=work.storage,
            begun=work.begun,
            contents=planned.contents,
            selection=planned.selection.without_upserts(),
            may_be_late=not executor.is_here,
        )
        items = [
            ChangedStore(step, changed[step.store], planned.selection.upserts.get(step.store, {}))
            for step in largest_first(one.step for one in planned.stores)
        ]
        build_each(work, task, items, executor=executor)

    def commit(self, work: Rewriting, planned: EditPlan, machine: Machine) -> RewritePhase:
        """Of an own root, require before that no job has attempted the next batch."""
        storage, begun = work.storage, work.begun
        if not work.is_cleared:
            require_snapshots(storage, begun)
            require_newest(storage, begun, planned.begun)
            journal.note_cleared(storage, begun)
            work.is_cleared = True
        work.still_held()
        if begun.to is Structure.V1:
            if not place.has_gone_on(storage, begun):
                place.put_in_place(storage, begun, planned.strays, work.still_held)
            return RewritePhase.COMMIT
        is_own = planned.origin is Origin.OWN
        if is_own and not place.has_gone_on(storage, begun) and not is_rewritten(storage, begun):
            require_no_attempt(storage, begun.batch + 1, "the checkpoint keeps its old state")
        rewrite_commit(storage, begun, planned.begun)
        return RewritePhase.COMMIT

    def clean_up(self, work: Rewriting, planned: EditPlan) -> None:
        if work.begun.to is Structure.V1:
            place.remove_guards(work.storage, work.begun, work.still_held)

    def is_committed(self, storage: Storage, begun: Begun) -> bool:
        """In structure V1, the commits before and after an edit are equal."""
        if begun.to is Structure.V2:
            return is_rewritten(storage, begun)
        return read_or_none(storage, names.commits(begun.batch)) == begun.commit.encode()

    def continued_to(self, work: Rewriting) -> int | None:
        has_gone_on = work.is_cleared and place.has_gone_on(work.storage, work.begun)
        return catalog.newest_batch(work.storage) if has_gone_on else None

    def restore(self, work: Rewriting) -> None:
        if work.begun.to is Structure.V2:
            restore_commit(work.storage, work.begun)
        elif work.is_cleared:
            place.restore_heads(work.storage, work.begun, work.still_held)

    def problems_of_former(self, storage: Storage, begun: Begun) -> Iterator[tuple[StorePath, str]]:
        """In structure V1, also look at the files in quarantine."""
        if begun.to is Structure.V2:
            yield from super().problems_of_former(storage, begun)
            return
        files = catalog.files(storage)
        folder = names.quarantine(begun.run, "")
        entries = quarantine.files(storage, folder.rstrip("/"))
        moved = catalog.by_store(replace(entry, path=entry.path.removeprefix(folder)) for entry in entries)
        for store in begun.built:
            problem = _problem_in_v1(storage, begun, store, files.of(store), moved.of(store))
            if problem is not None:
                yield store, problem


@dataclass(frozen=True)
class ChangedStore:
    """A store whose snapshot gets these changes. `upserts`: the new value of each key."""

    step: StoreStep
    changes: StoreChanges
    upserts: Mapping[bytes, bytes]

    @property
    def store(self) -> StorePath:
        return self.step.store


@dataclass(frozen=True, kw_only=True)
class EditEach:
    """The task of a store. `selection`: without the upserts; `may_be_late`: see `withdraw_if_late`."""

    storage: Storage
    begun: Begun
    contents: Contents
    selection: Selection
    may_be_late: bool = False

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.storage,)

    def __call__(self, one: ChangedStore, place: Place) -> tuple[Made, Skipped]:
        change = partial(self._changed, one)
        conf, late = self.contents.conf, self.may_be_late
        return build(self.storage, self.begun, one.step, place, conf=conf, change=change, may_be_late=late)

    def _changed(self, one: ChangedStore, restored: Restored) -> str:
        """Write the changes into a restored store. Return the digest of the rows that it must have then."""
        rows = OpenStore(
            contents=self.contents,
            store=one.store,
            layout=self.selection.layouts[one.store.store],
            database=restored.database,
            ids={} if restored.base is None else restored.base.column_families,
        )
        selection = self.selection.with_upserts(one.store, one.upserts)
        return changes.write(rows, restored.database, selection, one.changes)


def _problem_in_v1(
    storage: Storage, begun: Begun, store: StorePath, present: StoreFiles, moved: StoreFiles
) -> str | None:
    head = VersionId(begun.batch + 1)
    guard, path = names.quarantine(begun.run, place.guard_path(begun, store)), store.snapshot(head)
    if begun.built[store] not in moved.snapshots:
        return f"{guard} is missing"
    if read_or_none(storage, path) != storage.read(guard):
        return f"{path} was replaced after the edit"
    if head in moved.snapshots:
        return _lacks(storage, names.quarantine(begun.run, path), store, present)
    snapshots = {version: entry for version, entry in present.snapshots.items() if version != head}
    before = replace(present, snapshots=snapshots, changelogs={**present.changelogs, **moved.changelogs})
    return snapshot.facts_of(storage, store, head, before).problem


def _lacks(storage: Storage, path: str, store: StorePath, present: StoreFiles) -> str | None:
    """Return the problem of a quarantined snapshot whose tables are not all present."""
    gone = [
        t.dfs_name for t in read_snapshot(storage.read(path), path).metadata.tables if t.dfs_name not in present.tables
    ]
    return f"{store.table_file(gone[0])} is missing" if gone else None
