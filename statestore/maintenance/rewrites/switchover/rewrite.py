"""Makes the new snapshot of every store of a switchover or an edit, reads it back and compares it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from statekeeper.statestore.base.errors import AlreadyExists, CorruptFile, StatekeeperError
from statekeeper.statestore.base.workers import in_pool
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, Made
from statekeeper.statestore.contents.chain import look_at_snapshot
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.rewrites.switchover.commit import again, changed, rolled_back
from statekeeper.statestore.maintenance.rewrites.switchover.model import (
    Machine,
    Progress,
    ProgressCallback,
    Source,
    StoreStep,
    SwitchPhase,
    SwitchPlan,
)
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import Change, SnapshotReason, TakeSnapshot
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.rocks import EngineLimits, translated
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.base import SnapshotUnusable, open_base


def make_snapshots(
    storage: Storage,
    begun: Begun,
    planned: SwitchPlan,
    progress: ProgressCallback,
    machine: Machine,
    still_held: Callable[[], None],
) -> None:
    """Make the missing snapshots. For failures, see `make_each`."""
    at_a_time = min(machine.workers, len(planned.stores))

    def work(step: StoreStep) -> tuple[Made, tuple[str, ...]]:
        still_held()
        if step.source is Source.REUSED:
            # If the snapshot is damaged, make another one from an older base.
            with suppress(SnapshotUnusable):
                return _reuse(storage, begun, step, machine.scratch, planned), ()
        return build(storage, begun, step, machine, conf=planned.conf, at_a_time=at_a_time)

    make_each(storage, begun, planned.stores, work, progress, workers=machine.workers)


def build(
    storage: Storage,
    begun: Begun,
    step: StoreStep,
    machine: Machine,
    *,
    conf: StateConf,
    at_a_time: int,
    change: Change | None = None,
) -> tuple[Made, tuple[str, ...]]:
    """Make the snapshot of a store from a load of its head, after the `change`. Return it, and the unusable bases.

    `at_a_time`: the number of stores that share the memory. Raises as `snapshot.execute`.
    """
    action = TakeSnapshot(
        store=step.store,
        version=step.head,
        load=step.load,
        tail_bytes=step.tail_bytes,
        reason=SnapshotReason.ASKED,
        conf=conf,
        header=begun.header or None,
        name=begun.stores[step.store],
    )
    taken = snapshot.execute(
        storage,
        action,
        scratch=machine.scratch,
        clock=machine.clock,
        ids=machine.ids,
        memory_bytes=snapshot.share_of(machine.memory_bytes, at_a_time),
        change=change,
    )
    assert taken.digest is not None
    return Made(taken.digest, taken.sent_tables), taken.skipped_snapshots


def make_each(
    storage: Storage,
    begun: Begun,
    steps: Sequence[StoreStep],
    work: Callable[[StoreStep], tuple[Made, tuple[str, ...]]],
    progress: ProgressCallback,
    *,
    workers: int,
) -> None:
    """Make the snapshots, the largest stores first, and record each in the journal. If one fails, the others are completed,
    and its error is raised."""
    failed: list[StatekeeperError] = []
    of = len(begun.built)
    done = of - len(steps)

    def ended(step: StoreStep, outcome: tuple[Made, tuple[str, ...]] | StatekeeperError) -> None:
        nonlocal done
        _require_open(storage, begun, step.store)
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
            return
        made, skipped = outcome
        journal.note_made(storage, begun, step.store, made)
        done += 1
        phase = SwitchPhase.SNAPSHOTS
        progress(Progress(phase=phase, done=done, of=of, store=step.store, skipped_snapshots=skipped))

    if steps:
        longest_first = sorted(steps, key=lambda step: -step.read_bytes)
        in_pool(work, longest_first, ended, workers=max(1, min(workers, len(steps))))
    if failed:
        raise _half_done(begun, failed[0], done)


def _half_done(begun: Begun, error: StatekeeperError, done: int) -> StatekeeperError:
    """Return the same error with the state of the switchover and the command to roll back."""
    return type(error)(
        f"{error.what}; the {begun.described} is half done: {done:,} of {len(begun.built):,} stores have their new "
        f"snapshot, and the checkpoint still has its old {changed(begun)}",
        path=error.path,
        hint=f"{error.hint or 'resolve the problem'}. To finish the {begun.described}, run the same command again. "
        f"To roll it back instead, run: {begun.reversing}",
    )


def _reuse(storage: Storage, begun: Begun, step: StoreStep, scratch: Path, planned: SwitchPlan) -> Made:
    """Publish the snapshot at the head under its other name: a new zip with the same tables. Both snapshots are read in
    full and compared. Raises `SnapshotUnusable`, before it writes, if the snapshot at the head cannot be read."""
    name = begun.stores[step.store]
    conf = planned.conf
    with work_folder(scratch, "switch") as folder, translated(scratch):
        base = open_base(storage, step.store, step.head, folder / "base", EngineLimits(), conf, verified=True)
        with base.database as database:
            digest = database.digest()
        _publish_as(storage, begun, step)
        fetched = {table.dfs_name: folder / "base" / table.local_name for table in base.metadata.tables}
        # RocksDB deletes tables that are not in its manifest; zips of Spark sometimes name such tables.
        at_hand = {table: path for table, path in fetched.items() if path.exists()}
        snapshot.require_same(storage, step.store, name, digest, folder / "back", conf=conf, at_hand=at_hand)
    files = catalog.files(storage, step.store.folder)[step.store]
    damage = look_at_snapshot(storage, step.store, name, files).damage
    if damage is not None:
        raise CorruptFile(
            f"was written for the switchover and is damaged: {damage}",
            path=step.store.snapshot(name),
            hint=again(begun),
        )
    return Made(digest, ())


def _publish_as(storage: Storage, begun: Begun, step: StoreStep) -> None:
    """Publish the zip of the snapshot at the head under another name, with the header and digest of that name."""
    name, header = begun.stores[step.store], begun.header
    old, new = step.store.snapshot(step.head), step.store.snapshot(name)
    body = storage.read(old)
    found = read_snapshot(body, old)
    if (found.metadata.header, found.digest) != (header, name.digest):
        body = encode_snapshot(replace(found, metadata=replace(found.metadata, header=header), digest=name.digest))
    try:
        storage.create(new, body)
    except AlreadyExists as error:
        raise CorruptFile(
            "exists already and differs: the snapshot at the head changed after the switchover started",
            path=new,
            hint=again(begun),
        ) from error


def _require_open(storage: Storage, begun: Begun, store: StorePath) -> None:
    """Require that the rewrite is not rolled back; if it is, delete the snapshot that was published after the rollback.

    Race: a run makes a snapshot for a long time; its lease is broken; the switchover is rolled back; then the snapshot is
    published, and in structure V1 no query starts beside it. Only a name with an id belongs to this run alone. A
    remaining V1 snapshot does no harm; the next switchover moves it into quarantine.
    """
    if journal.ending(storage, begun) is not Ending.ABORTED:
        return
    if begun.stores[store].id is not None:
        storage.delete([store.snapshot(begun.stores[store])])
    raise rolled_back(begun)
