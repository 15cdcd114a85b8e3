"""The steps of a rescale, a conversion, a load and a schema evolution: all rows of each changed store are written anew.

The commit of a native query appends a batch (`batch`); that of an own root rewrites the head (`head`, `evolve`). In
structure V1, Spark would load the new snapshots by their number if a query started too early. So guards make Spark refuse
to start until the rewrite has ended: a file with the name of a V2 snapshot in each store.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from types import ModuleType

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import AlreadyExists, RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, RewriteKind, files_of_schemas, files_to_replace
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine.commit import has_gone_on, is_rewritten
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, ProgressCallback, RewritePhase
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import delete_unpublished
from statekeeper.statestore.maintenance.rewrites.engine.steps import RewriteSteps, Rewriting
from statekeeper.statestore.maintenance.rewrites.whole_stores import batch, evolve, file_sink, head
from statekeeper.statestore.maintenance.rewrites.whole_stores.load import RowProgress, require_intact
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import RewritePlan, new_versions
from statekeeper.statestore.maintenance.rewrites.whole_stores.rebuild import rebuild
from statekeeper.statestore.storage import Storage, at_once, read_or_none

_GUARD = b"Statekeeper rewrites this store. Spark must not start before the rewrite has ended: statekeeper audit ROOT"


class WholeStoreSteps(RewriteSteps[RewritePlan]):
    """The steps of a rescale, a conversion, a load or a schema evolution.

    *Guarantee*: deletes no file of the query. In an own root it rewrites the files that `head` and `evolve` list, whose
    contents are in the journal; it overwrites no other file.
    """

    def verify(self, storage: Storage, planned: RewritePlan, machine: Machine, progress: ProgressCallback) -> None:
        if planned.load is not None:
            require_intact(storage, planned, machine, progress)

    def begin(self, storage: Storage, planned: RewritePlan, *, number: int, run: str, ids: Ids) -> Begun:
        assert planned.batch is not None
        stores = new_versions(planned, ids.fresh)
        is_own = planned.origin is Origin.OWN
        source = planned.load or planned.evolve
        return Begun(
            number=number,
            run=run,
            to=planned.structure,
            batch=planned.batch,
            header=planned.header,
            commit=planned.commit,
            stores=stores,
            rewrite=planned.rewrite,
            partitions=planned.partitions,
            provider=planned.provider,
            file_sink=None if planned.file_sink is None else planned.file_sink.entry,
            replaced=_replaced(storage, planned, stores) if is_own else None,
            reused=frozenset(planned.heads.keys() - set(planned.targets)),
            options=() if source is None else source.options,
            rows="" if source is None else source.digest,
            watermark_ms=None if planned.load is None else planned.load.saved.watermark_ms,
            late_watermark_ms=None if planned.load is None else planned.load.saved.late_watermark_ms,
            schemas=planned.schemas,
        )

    def prepare(self, work: Rewriting, planned: RewritePlan) -> None:
        _guard(work)

    def make_snapshots(self, work: Rewriting, planned: RewritePlan, machine: Machine) -> None:
        """Make the snapshots of each group that is not complete."""
        if self.is_committed(work.storage, work.begun):
            return
        missing = [group for group in planned.groups if not work.made.keys() >= set(group.targets)]
        read_rows = RowProgress(work.progress, RewritePhase.READ, sum(group.incoming_rows for group in missing))
        for group in missing:
            work.still_held()
            rebuild(work, planned, group, machine, read_rows)
        if planned.half_done is not None or not machine.executor.is_here:
            # A run that was killed may have left some in groups that are complete.
            work.still_held()
            delete_unpublished(work, (store for group in planned.groups for store in group.targets))

    def commit(self, work: Rewriting, planned: RewritePlan, machine: Machine) -> RewritePhase:
        appends_batch = work.begun.appends_batch
        if appends_batch:
            batch.append(work.storage, work.begun, planned)
        else:
            _head(work.begun).rewrite(work.storage, work.begun)
        if planned.file_sink is not None:
            assert work.sink is not None
            file_sink.write(work.sink, planned.file_sink, machine.scratch)
        return RewritePhase.APPENDED if appends_batch else RewritePhase.COMMIT

    def clean_up(self, work: Rewriting, planned: RewritePlan) -> None:
        work.storage.delete(_guards(work))

    def is_committed(self, storage: Storage, begun: Begun) -> bool:
        return batch.is_appended(storage, begun) if begun.appends_batch else is_rewritten(storage, begun)

    def continued_to(self, work: Rewriting) -> int | None:
        storage, begun = work.storage, work.begun
        newest = catalog.newest_batch(storage)
        if not begun.appends_batch:
            return newest if has_gone_on(storage, begun) else None
        is_later = newest is not None and newest > begun.batch + 1
        return newest if is_later and batch.is_appended(storage, begun) else None

    def restore(self, work: Rewriting) -> None:
        # Failure sequence: the run had deleted its guards; the commit is reversed; this run dies; the query starts, runs
        # the batch, and then loads the new snapshots, which lack its rows.
        storage, begun = work.storage, work.begun
        _guard(work)
        is_committed = self.is_committed(storage, begun)
        if is_committed and begun.file_sink is not None:
            assert work.sink is not None
            # Before the batch: a query that found the entry alone would run the batch, and the sink would drop its rows.
            file_sink.remove(work.sink, begun)
        if not begun.appends_batch:
            _head(begun).restore(storage, begun)
        elif is_committed:
            batch.remove(storage, begun)

    def clean_up_restored(self, work: Rewriting) -> None:
        # Until now, no query loads a part of the new snapshots.
        work.storage.delete(_guards(work))

    def require_unused(self, storage: Storage, begun: Begun, stays: str) -> None:
        newest = begun.batch + 1 if begun.appends_batch else begun.batch
        started = catalog.newest_begun(storage)
        if begun.rewrite is RewriteKind.LOAD and started > newest:
            raise RefusedAsUnsafe(
                f"the query has begun batch {started} since the load; {stays}",
                path=names.offsets(started),
                hint=f"to return to the state before the load, run: statekeeper rewind ROOT --to-batch {begun.batch}"
                if begun.appends_batch
                else "to replace the rows, load another savepoint",
            )
        later = names.later_schema(begun.batch + 1)
        if begun.rewrite is RewriteKind.EVOLVE and storage.stat(later) is not None:
            raise RefusedAsUnsafe(
                f"the job has started batch {begun.batch + 1} with one more column since; {stays}",
                path=later,
                hint="start the job until it commits this batch, then change the columns with another evolve",
            )


def _head(begun: Begun) -> ModuleType:
    return evolve if begun.rewrite is RewriteKind.EVOLVE else head


def _guards(work: Rewriting) -> list[str]:
    """Return the paths of the guards: one in each store that has files or will have some. None in V2, where a new snapshot
    has a new name. The requests of `catalog.files`.

    The head does not show all of them: after the append, it no longer has the partitions that a rescale removes.
    """
    begun = work.begun
    if begun.to is Structure.V2:
        return []
    version = VersionId(begun.batch + 2, begun.run)
    stores = {replace(store, provider=Provider.ROCKSDB) for store in (*catalog.files(work.storage), *begun.stores)}
    return [store.snapshot(version) for store in sorted(stores)]


def _guard(work: Rewriting) -> None:
    """Create the guards that do not exist."""

    def create(path: str) -> None:
        # An interrupted run may have created it.
        with suppress(AlreadyExists):
            work.storage.create(path, _GUARD)

    at_once(create, _guards(work))


def _replaced(storage: Storage, planned: RewritePlan, stores: Iterable[StorePath]) -> dict[str, str]:
    """Read the files of an own root that the rewrite replaces besides the newest commit. `stores`: the new ones."""
    assert planned.batch is not None
    if planned.evolve is None:
        return {path: storage.read(path).decode() for path in files_to_replace(planned.batch, stores)}
    found = {path: read_or_none(storage, path) for path in files_of_schemas(planned.batch)}
    return {path: body.decode() for path, body in found.items() if body is not None}
