"""Carries a switchover out, from where it stands: each step may be done again, and any may be the last before a crash.

The newest commit is the only file that says what a checkpoint is. Before it is written anew the checkpoint is of the old
structure, afterwards of the new one. What Spark would stumble over in between makes it refuse to start: a snapshot
with an id in structure V1. So it is fully the one, fully the other, or refused before any commit, and done again or taken
back from there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from statestore import catalog
from statestore import switch_journal as journal
from statestore.base import SnapshotUnusable, open_base
from statestore.chain import look_at_snapshot
from statestore.clock import Clock, Ids
from statestore.engine.rocks import EngineLimits, translated
from statestore.errors import (
    AlreadyExists,
    CorruptFile,
    LocalStateDamaged,
    ObjectMissing,
    RefusedAsUnsafe,
    StatekeeperError,
)
from statestore.format import logs, names
from statestore.format.names import StorePath, VersionId
from statestore.format.snapshot import encode_snapshot, read_snapshot
from statestore.format.structure import Structure
from statestore.maintenance import audit, snapshot
from statestore.maintenance.audit import AuditPolicy, What
from statestore.maintenance.pool import WORKERS, in_pool
from statestore.maintenance.snapshot import MEMORY_BYTES, TakeSnapshot, Why
from statestore.maintenance.switchover.plans import Source, StoreStep, SwitchPlan
from statestore.storage import Storage, read_or_none
from statestore.switch_journal import Begun, Ending, Made, Standing


class Phase(Enum):
    """How far a switchover is."""

    BEGUN = "the journal is open"
    CLEARED = "what would be in the way is put aside"
    SNAPSHOTS = "stores have their snapshots"
    COMMIT = "the newest commit says so"
    MOVED = "the old structure's snapshots are put aside"
    ENDED = "the audit is clean, the journal closed"
    TAKEN_BACK = "everything is as it was"


@dataclass(frozen=True)
class Progress:
    """Where it is, and of what is counted in that phase how much is done."""

    phase: Phase
    done: int = 0
    of: int = 0
    store: StorePath | None = None


Told = Callable[[Progress], None]

_MEND_HEAD = "--abort the switchover; then statekeeper audit --deep says which file it is, and what to do"


@dataclass(frozen=True)
class Machine:
    """What it may use of this machine, and where time and ids come from."""

    scratch: Path
    clock: Clock
    ids: Ids
    workers: int = WORKERS
    memory_bytes: int = MEMORY_BYTES


def carry_out(
    storage: Storage,
    planned: SwitchPlan,
    told: Told,
    *,
    run: str,
    machine: Machine,
    still_held: Callable[[], None],
    policy: AuditPolicy | None = None,
) -> Begun:
    """Do what the plan says; `told` of each step, also from other threads, one at a time. The query is stopped, and who
    calls made sure of that; `still_held` raises when somebody else took over.

    *Guarantee*: a crash at any request leaves a checkpoint that is fully of the old structure, fully of the new one, or
    one that no query starts on; planned anew and carried out it is switched, and `take_back` makes it what it was.

    Raises `RefusedAsUnsafe` for a plan with refusals, when a query has gone on meanwhile, and when the audit afterwards is
    not clean; what making snapshots raises: nothing is switched then, what was made is kept for the next time.
    """
    if planned.refusals:
        raise RefusedAsUnsafe(planned.refusals[0], path=storage.url, hint="nothing was changed")
    _require_as_planned(storage, planned)
    begun = planned.half_done.begun if planned.half_done else _begin(storage, planned, run, machine.ids)
    told(Progress(Phase.BEGUN))
    is_cleared = planned.half_done is not None and planned.half_done.is_cleared
    for path in planned.first:
        still_held()
        _put_aside(storage, begun.run, path)
    if not is_cleared:
        journal.note_cleared(storage, begun)
    told(Progress(Phase.CLEARED, len(planned.first), len(planned.first)))
    _make_snapshots(storage, begun, planned, told, machine, still_held)
    still_held()
    _rewrite_commit(storage, begun, planned.begun)
    told(Progress(Phase.COMMIT))
    for number, path in enumerate(planned.last, 1):
        still_held()
        _put_aside(storage, begun.run, path)
        told(Progress(Phase.MOVED, number, len(planned.last)))
    found = audit.judge(audit.gather(storage), policy)
    breaks = [finding for finding in found.breaks if finding.what is not What.HALF_SWITCHED]
    # A query that goes on in the new structure cannot be led back: what the audit finds is mended as at any time.
    has_gone_on = _has_gone_on(storage, begun)
    if breaks and not has_gone_on:
        raise RefusedAsUnsafe(
            f"the checkpoint is switched, and the audit finds: {breaks[0].file} {breaks[0].problem}",
            path=storage.url,
            hint="--abort makes it what it was; do not start the query before",
        )
    still_held()
    # What the last retention pass remembers is of the other structure's snapshots.
    storage.delete([names.RETAINED])
    journal.end(storage, begun, Ending.SWITCHED)
    if breaks:
        raise RefusedAsUnsafe(
            f"the query has gone on, the switchover is ended, and the audit finds: {breaks[0].file} {breaks[0].problem}",
            path=storage.url,
            hint=breaks[0].action,
        )
    told(Progress(Phase.ENDED))
    return begun


def take_back(storage: Storage, standing: Standing, told: Told, *, still_held: Callable[[], None]) -> None:
    """Make the checkpoint what it was before the switchover began. The query is stopped; `still_held` as in `carry_out`.

    What was sent and never came to be noted stays as orphans, for gc. Where the query has gone on in the old structure,
    that stands: only what was made is taken away. Raises `RefusedAsUnsafe` when it has gone on in the new one;
    `StorageError`.
    """
    begun = standing.begun
    path = names.commits(begun.batch)
    # A query that has gone on may have purged it.
    now = read_or_none(storage, path)
    is_rewritten = now is not None and now.decode() != begun.commit
    if _has_gone_on(storage, begun):
        newest = catalog.newest_batch(storage)
        raise RefusedAsUnsafe(
            f"the query has gone on in structure {begun.to.value} to batch {newest}",
            path=names.commits(newest or 0),
            hint=f"--apply finishes the switchover; --to {begun.to.other.value} leads back afterwards",
        )
    aside = names.aside(begun.run, "")
    away = [entry.path.removeprefix(aside) for entry in storage.list(aside.rstrip("/"))]
    mine = {store.snapshot(version) for store, version in begun.stores.items()}
    for original in away:
        if original not in mine:
            still_held()
            _put_back(storage, begun.run, original)
    still_held()
    if is_rewritten:
        storage.replace(path, begun.commit.encode())
    # Zip before tables: what a snapshot names is there as long as it is. Only from here on each name is this one's.
    if standing.is_cleared:
        still_held()
        storage.delete(sorted(mine))
    for original in away:
        if original in mine:
            still_held()
            _put_back(storage, begun.run, original)
    still_held()
    storage.delete(store.table_file(table) for store, made in standing.made.items() for table in made.tables)
    journal.end(storage, begun, Ending.ABORTED)
    # Who carries it out and has lost the lease without knowing may have published one since: see `_require_open`.
    if begun.to is Structure.V2:
        storage.delete(sorted(mine))
    told(Progress(Phase.TAKEN_BACK))


def _has_gone_on(storage: Storage, begun: Begun) -> bool:
    """Whether the query has committed batches in the new structure since its commit was written anew."""
    newest = catalog.newest_batch(storage)
    return newest is not None and newest > begun.batch and catalog.structure_at(storage, newest) is begun.to


def _require_as_planned(storage: Storage, planned: SwitchPlan) -> None:
    """The lease is held from here on, and was not when this was planned.

    Losing schedule: two plan; one carries it out and ends; the other begins with what was true before, fails, and is
    taken back: of its snapshots' names those of structure V1 are those that the query lives on now.
    """
    assert planned.batch is not None
    now, then = journal.standing(storage), planned.half_done
    is_same = (now and (now.begun.number, now.is_cleared)) == (then and (then.begun.number, then.is_cleared))
    if is_same and then is None:
        commit = read_or_none(storage, names.commits(planned.batch))
        is_same = commit == planned.commit.encode() and catalog.newest_batch(storage) == planned.batch
    if not is_same:
        raise RefusedAsUnsafe(
            "the checkpoint is not what it was when this was planned: somebody else switched it, or the query runs",
            path=storage.url,
            hint="run this again: it shows where the checkpoint stands",
        )


def _begin(storage: Storage, planned: SwitchPlan, run: str, ids: Ids) -> Begun:
    assert planned.batch is not None
    stores = {step.store: _renamed(step.head, planned, ids) for step in planned.stores}
    begun = Begun(
        journal.next_number(storage),
        run,
        planned.to,
        planned.batch,
        planned.header,
        planned.commit,
        stores,
        frozenset(step.store for step in planned.stores if step.source is Source.REUSED),
    )
    journal.begin(storage, begun)
    return begun


def _renamed(head: VersionId, planned: SwitchPlan, ids: Ids) -> VersionId:
    """What the head is called in the other structure. In V1 our own jobs go by a digest, whose chain begins anew."""
    if planned.to is Structure.V2:
        return VersionId(head.version, ids.fresh())
    return VersionId(head.version, digest=ids.fresh() if planned.is_own else None)


def _make_snapshots(
    storage: Storage,
    begun: Begun,
    planned: SwitchPlan,
    told: Told,
    machine: Machine,
    still_held: Callable[[], None],
) -> None:
    """The longest ones first. One that fails does not stop the others, but the switchover."""
    failed: list[StatekeeperError] = []
    steps = planned.stores
    done = len(begun.stores) - len(steps)

    def work(step: StoreStep) -> Made:
        still_held()
        name = begun.stores[step.store]
        if step.source is Source.REUSED:
            return _reuse(storage, step, name, begun.header, machine.scratch, planned)
        action = TakeSnapshot(
            step.store, step.head, step.load, step.tail_bytes, Why.ASKED, planned.conf, begun.header, name
        )
        taken = snapshot.execute(
            storage,
            action,
            scratch=machine.scratch,
            clock=machine.clock,
            ids=machine.ids,
            memory_bytes=snapshot.share_of(machine.memory_bytes, min(machine.workers, len(steps))),
        )
        assert taken.digest is not None
        return Made(taken.digest, taken.sent_tables)

    def ended(step: StoreStep, outcome: Made | StatekeeperError) -> None:
        nonlocal done
        _require_open(storage, begun, step.store)
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
            return
        journal.note_made(storage, begun, step.store, outcome)
        done += 1
        told(Progress(Phase.SNAPSHOTS, done, len(begun.stores), step.store))

    if steps:
        longest_first = sorted(steps, key=lambda step: -step.read_bytes)
        in_pool(work, longest_first, ended, workers=max(1, min(machine.workers, len(steps))))
    if failed:
        raise failed[0]


def _reuse(storage: Storage, step: StoreStep, name: VersionId, header: str, scratch: Path, planned: SwitchPlan) -> Made:
    """Give the snapshot at the head its other name. It is opened and read once, all of it; its tables stay where they
    are, so that what has the new name is the same."""
    old, new = step.store.snapshot(step.head), step.store.snapshot(name)
    with translated(scratch):
        scratch.mkdir(parents=True, exist_ok=True)
    with translated(scratch), tempfile.TemporaryDirectory(dir=scratch, prefix="switch-") as folder:
        try:
            base = open_base(storage, step.store, step.head, Path(folder) / "base", EngineLimits(), planned.conf)
        except SnapshotUnusable as error:
            raise CorruptFile(str(error), path=old, hint=_MEND_HEAD) from error
        try:
            with base.database as database:
                digest = database.digest()
        except LocalStateDamaged as error:
            raise CorruptFile(str(error), path=old, hint=_MEND_HEAD) from error
    body = storage.read(old)
    found = read_snapshot(body, old)
    if (found.metadata.header, found.digest) != (header, name.digest):
        body = encode_snapshot(replace(found, metadata=replace(found.metadata, header=header), digest=name.digest))
    storage.create(new, body)
    files = catalog.files(storage, step.store.folder)[step.store]
    damage = look_at_snapshot(storage, step.store, name, files).damage
    if damage is not None:
        raise CorruptFile(f"does not hold what it should: {damage}", path=new, hint="--abort, and run it again")
    return Made(digest, ())


def _require_open(storage: Storage, begun: Begun, store: StorePath) -> None:
    """Whoever took the switchover back took the snapshots back that were there; one that came later goes here.

    Losing schedule: the lease of a run that makes one for long is broken, the switchover is taken back, the query is about
    to start; then the snapshot is published, and in structure V1 none starts beside it. Only names of structure V2 are
    nobody else's; one of V1 that is left does no harm, and the next switchover puts it aside.
    """
    if journal.ending(storage, begun) is not Ending.ABORTED:
        return
    if begun.to is Structure.V2:
        storage.delete([store.snapshot(begun.stores[store])])
    raise _taken_back(begun)


def _taken_back(begun: Begun) -> RefusedAsUnsafe:
    return RefusedAsUnsafe(
        "the switchover was taken back while it was carried out",
        path=names.switchover(begun.number, "ended"),
        hint="the checkpoint is what it was; run this again to switch it",
    )


def _rewrite_commit(storage: Storage, begun: Begun, newest_begun: int) -> None:
    """The point from which the checkpoint is of the new structure. `newest_begun`: of the offset log, as planned."""
    path = names.commits(begun.batch)
    before = read_or_none(storage, path)
    after = _new_commit(begun)
    if before == after or _has_gone_on(storage, begun):
        return
    if before is None or before.decode() != begun.commit:
        raise RefusedAsUnsafe(
            "is not what it was when the switchover began", path=path, hint="--abort, and run it again"
        )
    _require_snapshots(storage, begun)
    _require_newest(storage, begun, newest_begun)
    storage.replace(path, after)
    try:
        _require_newest(storage, begun, newest_begun)
        if journal.ending(storage, begun) is Ending.ABORTED:
            raise _taken_back(begun)
    except RefusedAsUnsafe:
        # Losing schedule: a query that was said to be stopped commits the next batch in between, in the old structure, or
        # has begun one and will.
        storage.replace(path, before)
        raise


def _require_snapshots(storage: Storage, begun: Begun) -> None:
    """Some may have been made long ago, before an interruption."""
    files = catalog.files(storage)
    for store, version in begun.stores.items():
        if store not in files or version not in files[store].snapshots:
            path = store.snapshot(version)
            raise ObjectMissing(
                "was made for this switchover, and is gone", path=path, hint="--abort, and run it again"
            )


def _require_newest(storage: Storage, begun: Begun, newest_begun: int) -> None:
    newest = catalog.newest_batch(storage)
    if newest == begun.batch and (newest_now := catalog.newest_begun(storage)) > newest_begun:
        raise RefusedAsUnsafe(
            "is begun since the switchover was planned: the query runs",
            path=names.offsets(newest_now),
            hint="stop the query, --abort the switchover, and begin anew",
        )
    if newest != begun.batch:
        raise RefusedAsUnsafe(
            f"is committed since the switchover of batch {begun.batch} began: the query runs",
            path=names.commits(newest or 0),
            hint="stop the query, --abort the switchover, and begin anew",
        )


def _new_commit(begun: Begun) -> bytes:
    old = logs.parse_commit(begun.commit.encode(), names.commits(begun.batch))
    if begun.to is Structure.V2:
        return logs.encode_commit(replace(old, ids=_by_operator(begun, lambda name: name.id), digests=None))
    return logs.encode_commit(replace(old, ids=None, digests=_by_operator(begun, lambda name: name.digest) or None))


def _by_operator(begun: Begun, of: Callable[[VersionId], str | None]) -> logs.ByStore:
    """The ids, or the digests, as a commit has them."""
    found: dict[int, dict[int, list[str]]] = {}
    for store, name in begun.stores.items():
        if (text := of(name)) is not None:
            found.setdefault(store.operator, {}).setdefault(store.partition, []).append(text)
    return {
        operator: tuple(tuple(partitions[number]) for number in sorted(partitions))
        for operator, partitions in found.items()
    }


def _put_aside(storage: Storage, run: str, path: str) -> None:
    try:
        body = storage.read(path)
    except ObjectMissing:
        return  # an interrupted run did
    # A file that a query has written again since an interrupted run put it aside is no worse than the one before.
    storage.replace(names.aside(run, path), body)
    storage.delete([path])


def _put_back(storage: Storage, run: str, path: str) -> None:
    aside = names.aside(run, path)
    try:
        storage.create(path, storage.read(aside))
    except AlreadyExists:
        return  # the query has written it again: it needs no other
    storage.delete([aside])
