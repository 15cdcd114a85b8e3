"""Executes a rewrite of state from its current step. Each step is idempotent, and a crash may follow any step.

The newest commit decides: the old state until the rewrite appends a commit, or rewrites the newest one of an own root; the
new state afterwards. In structure V1, Spark would load the new snapshots by their number if a query started too early. So
guards make Spark refuse to start until the rewrite has ended: a file with the name of a V2 snapshot in each store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from statekeeper.statestore.base.errors import AlreadyExists, RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import (
    Begun,
    Ending,
    Made,
    OpenJournal,
    files_of_schemas,
    files_to_replace,
)
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine import file_sink
from statekeeper.statestore.maintenance.rewrites.engine.commit import commit, is_committed
from statekeeper.statestore.maintenance.rewrites.engine.load import RowProgress, require_intact
from statekeeper.statestore.maintenance.rewrites.engine.model import RewritePlan, StoreGroup, new_versions
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import rebuild
from statekeeper.statestore.maintenance.rewrites.switchover import Machine, Progress, ProgressCallback, SwitchPhase
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy, FindingKind
from statekeeper.statestore.storage import Storage, at_once, read_or_none

_GUARD = b"Statekeeper rewrites this store. Spark must not start before the rewrite has ended: statekeeper audit ROOT"


class PlannedRewrite(Protocol):
    """The fields of a plan that show whether the checkpoint has changed since: see the plans."""

    @property
    def batch(self) -> int | None: ...
    @property
    def commit(self) -> str: ...
    @property
    def half_done(self) -> OpenJournal | None: ...
    @property
    def is_there(self) -> bool: ...


def execute(
    storage: Storage,
    planned: RewritePlan,
    progress: ProgressCallback,
    *,
    run: str,
    machine: Machine,
    still_held: Callable[[], None],
    policy: AuditPolicy | None = None,
    sink: Storage | None = None,
) -> Begun:
    """Execute a rewrite, or complete an interrupted one. The caller has verified that the query is stopped.

    `sink`: the output folder of the query's file sink, if the plan has an entry for it.

    `progress` is called after each step, also from other threads, one at a time; `still_held` raises an error if the lease
    is lost.

    *Guarantee*: deletes no file of the query. In an own root it rewrites the files that `head` lists, whose contents are in
    the journal; it overwrites no other file. A crash at any request leaves the old state, the new state, or
    a checkpoint on which no query starts. A new plan and its execution complete the rewrite; `roll_back` reverses it.

    Raises `RefusedAsUnsafe` for a plan with refusals, if the query continued, and if the audit afterwards is not clean; the
    errors of `rebuild`: then nothing is committed, and the next run keeps the snapshots that were made.
    """
    if planned.refusals:
        raise RefusedAsUnsafe(planned.refusals[0], path=storage.url, hint="nothing was changed")
    require_as_planned(storage, planned)
    if planned.load is not None and planned.half_done is None:
        # Before the journal: a damaged savepoint must leave no half-done rewrite.
        require_intact(storage, planned, machine, progress)
    begun = planned.half_done.begun if planned.half_done else _begin(storage, planned, run, machine)
    progress(Progress(phase=SwitchPhase.BEGUN))
    guarded = guards(storage, begun)
    at_once(lambda path: guard(storage, path), guarded)
    if not is_committed(storage, begun):
        _make_snapshots(storage, begun, planned, progress, machine, still_held)
        still_held()
    commit(storage, begun, planned)
    if planned.file_sink is not None:
        assert sink is not None
        file_sink.write(sink, planned.file_sink, machine.scratch)
    progress(Progress(phase=SwitchPhase.COMMIT if planned.origin is Origin.OWN else SwitchPhase.APPENDED))
    still_held()
    storage.delete(guarded)
    found = audit.judge(audit.gather(storage), policy)
    breaks = [finding for finding in found.breaks if finding.kind is not FindingKind.HALF_SWITCHED]
    if breaks:
        raise RefusedAsUnsafe(
            f"the state is rewritten, but the audit reports: {breaks[0].file} {breaks[0].problem}",
            path=storage.url,
            hint="do not start the query; reverse the rewrite with --abort",
        )
    still_held()
    # The record of the last retention pass names the old partitions.
    storage.delete([names.RETAINED])
    journal.end(storage, begun, Ending.SWITCHED)
    progress(Progress(phase=SwitchPhase.ENDED))
    return begun


def guards(storage: Storage, begun: Begun) -> list[str]:
    """Return the paths of the guards of a rewrite: one in each store that has files or will have some. None in V2,
    where a new snapshot has a new name. The requests of `catalog.files`.

    The head does not show all of them: after the append, it no longer has the partitions that a rescale removes.
    """
    if begun.to is Structure.V2:
        return []
    version = VersionId(begun.batch + 2, begun.run)
    stores = {replace(store, provider=Provider.ROCKSDB) for store in (*catalog.files(storage), *begun.stores)}
    return [store.snapshot(version) for store in sorted(stores)]


def guard(storage: Storage, path: str) -> None:
    """Create a guard, unless it exists."""
    # An interrupted run may have created it.
    with suppress(AlreadyExists):
        storage.create(path, _GUARD)


def require_as_planned(storage: Storage, planned: PlannedRewrite) -> None:
    """Require a plan with work, and a checkpoint without changes since the plan, which was made before the lease."""
    if planned.is_there:
        raise RefusedAsUnsafe("the plan has nothing to do", path=storage.url, hint="no action is needed")
    assert planned.batch is not None
    now, then = journal.open_journal(storage), planned.half_done
    is_same = (now and (now.begun.number, now.is_cleared)) == (then and (then.begun.number, then.is_cleared))
    if is_same and then is None:
        is_same = read_or_none(storage, names.commits(planned.batch)) == planned.commit.encode()
    if not is_same:
        raise RefusedAsUnsafe(
            "the checkpoint changed after the plan was made: another maintainer rewrote it, or the query is running",
            path=storage.url,
            hint="run this command again; it shows the current state",
        )


def _begin(storage: Storage, planned: RewritePlan, run: str, machine: Machine) -> Begun:
    assert planned.batch is not None
    stores = new_versions(planned, machine.ids.fresh)
    is_own = planned.origin is Origin.OWN
    replaced = _replaced(storage, planned, stores) if is_own else None
    source = planned.load or planned.evolve
    begun = Begun(
        number=journal.next_number(storage),
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
        replaced=replaced,
        reused=frozenset(planned.heads.keys() - set(planned.targets)),
        options=() if source is None else source.options,
        rows="" if source is None else source.digest,
        watermark_ms=None if planned.load is None else planned.load.saved.watermark_ms,
        late_watermark_ms=None if planned.load is None else planned.load.saved.late_watermark_ms,
        schemas=planned.schemas,
    )
    journal.begin(storage, begun)
    return begun


def _replaced(storage: Storage, planned: RewritePlan, stores: Iterable[StorePath]) -> dict[str, str]:
    """Read the files of an own root that the rewrite replaces besides the newest commit. `stores`: the new ones."""
    assert planned.batch is not None
    if planned.evolve is None:
        return {path: storage.read(path).decode() for path in files_to_replace(planned.batch, stores)}
    found = {path: read_or_none(storage, path) for path in files_of_schemas(planned.batch)}
    return {path: body.decode() for path, body in found.items() if body is not None}


def _make_snapshots(
    storage: Storage,
    begun: Begun,
    planned: RewritePlan,
    progress: ProgressCallback,
    machine: Machine,
    still_held: Callable[[], None],
) -> None:
    """Make the snapshots of each group that is not complete."""
    made = set(planned.half_done.made) if planned.half_done else set()

    def ended(store: StorePath, one: Made) -> None:
        if store in made:
            return
        journal.note_made(storage, begun, store, one)
        made.add(store)
        still_held()
        progress(Progress(phase=SwitchPhase.SNAPSHOTS, done=len(made), of=len(begun.built), store=store))

    def is_missing(group: StoreGroup) -> bool:
        return not made.issuperset(group.targets)

    missing = list(filter(is_missing, planned.groups))
    read_rows = RowProgress(progress, SwitchPhase.READ, sum(group.incoming_rows for group in missing))
    for group in missing:
        still_held()
        rebuild(storage, begun, planned, group, machine, ended, read_rows)
