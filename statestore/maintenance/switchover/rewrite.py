"""Makes the snapshot of every store in the other structure, reads it back and compares it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from statestore import catalog
from statestore import switch_journal as journal
from statestore.chain import look_at_snapshot
from statestore.engine.rocks import EngineLimits, translated
from statestore.errors import AlreadyExists, CorruptFile, StatekeeperError
from statestore.format.names import StorePath, VersionId
from statestore.format.snapshot import encode_snapshot, read_snapshot
from statestore.format.structure import Structure
from statestore.loading.base import SnapshotUnusable, open_base
from statestore.maintenance import snapshot
from statestore.maintenance.pool import in_pool
from statestore.maintenance.snapshot import SnapshotReason, TakeSnapshot
from statestore.maintenance.switchover.commit import rolled_back
from statestore.maintenance.switchover.plans import Source, StoreStep, SwitchPlan
from statestore.maintenance.switchover.steps import Machine, Progress, ProgressCallback, SwitchPhase
from statestore.storage import Storage
from statestore.switch_journal import Begun, Ending, Made

_AGAIN = "roll back: statekeeper switch ROOT --abort --confirm-stopped; then switch again"


def make_snapshots(
    storage: Storage,
    begun: Begun,
    planned: SwitchPlan,
    progress: ProgressCallback,
    machine: Machine,
    still_held: Callable[[], None],
) -> None:
    """Make the missing snapshots, the largest stores first. If one fails, the others are completed, and its error is
    raised."""
    failed: list[StatekeeperError] = []
    steps = planned.stores
    done = len(begun.stores) - len(steps)

    def work(step: StoreStep) -> tuple[Made, tuple[str, ...]]:
        still_held()
        name = begun.stores[step.store]
        if step.source is Source.REUSED:
            # If the snapshot is damaged, make another one from an older base.
            with suppress(SnapshotUnusable):
                return _reuse(storage, step, name, begun.header, machine.scratch, planned), ()
        action = TakeSnapshot(
            store=step.store,
            version=step.head,
            load=step.load,
            tail_bytes=step.tail_bytes,
            reason=SnapshotReason.ASKED,
            conf=planned.conf,
            header=begun.header,
            name=name,
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
        return Made(taken.digest, taken.sent_tables), taken.skipped_snapshots

    def ended(step: StoreStep, outcome: tuple[Made, tuple[str, ...]] | StatekeeperError) -> None:
        nonlocal done
        _require_open(storage, begun, step.store)
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
            return
        made, skipped = outcome
        journal.note_made(storage, begun, step.store, made)
        done += 1
        progress(
            Progress(
                phase=SwitchPhase.SNAPSHOTS,
                done=done,
                of=len(begun.stores),
                store=step.store,
                skipped_snapshots=skipped,
            )
        )

    if steps:
        longest_first = sorted(steps, key=lambda step: -step.read_bytes)
        in_pool(work, longest_first, ended, workers=max(1, min(machine.workers, len(steps))))
    if failed:
        raise _half_done(begun, failed[0], done)


def _half_done(begun: Begun, error: StatekeeperError, done: int) -> StatekeeperError:
    """Return the same error with the state of the switchover and the command to roll back."""
    return type(error)(
        f"{error.what}; the switchover to structure {begun.to.value} is half done: {done:,} of {len(begun.stores):,} "
        f"stores have their new snapshot, and the commit log still names structure {begun.to.other.value}",
        path=error.path,
        hint=f"{error.hint or 'resolve the problem'}; then run the same command again. To roll back instead, run: "
        "statekeeper switch ROOT --abort --confirm-stopped",
    )


def _reuse(storage: Storage, step: StoreStep, name: VersionId, header: str, scratch: Path, planned: SwitchPlan) -> Made:
    """Publish the snapshot at the head under its other name: a new zip with the same tables. Both snapshots are read in
    full and compared. Raises `SnapshotUnusable`, before it writes, if the snapshot at the head cannot be read."""
    with translated(scratch):
        scratch.mkdir(parents=True, exist_ok=True)
    with translated(scratch), tempfile.TemporaryDirectory(dir=scratch, prefix="switch-") as directory:
        folder, conf = Path(directory), planned.conf
        base = open_base(storage, step.store, step.head, folder / "base", EngineLimits(), conf, verified=True)
        with base.database as database:
            digest = database.digest()
        _publish_as(storage, step, name, header)
        fetched = {table.dfs_name: folder / "base" / table.local_name for table in base.metadata.tables}
        # RocksDB deletes tables that are not in its manifest; zips of Spark sometimes name such tables.
        at_hand = {table: path for table, path in fetched.items() if path.exists()}
        snapshot.require_same(storage, step.store, name, digest, folder / "back", conf=conf, at_hand=at_hand)
    files = catalog.files(storage, step.store.folder)[step.store]
    damage = look_at_snapshot(storage, step.store, name, files).damage
    if damage is not None:
        raise CorruptFile(
            f"was written for the switchover and is damaged: {damage}", path=step.store.snapshot(name), hint=_AGAIN
        )
    return Made(digest, ())


def _publish_as(storage: Storage, step: StoreStep, name: VersionId, header: str) -> None:
    """Publish the zip of the snapshot at the head under another name, with the header and digest of that name."""
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
            hint=_AGAIN,
        ) from error


def _require_open(storage: Storage, begun: Begun, store: StorePath) -> None:
    """Require that the switchover is not rolled back; if it is, delete the snapshot that was published after the rollback.

    Race: a run makes a snapshot for a long time; its lease is broken; the switchover is rolled back; then the snapshot is
    published, and in structure V1 no query starts beside it. Only a name of structure V2 belongs to this run alone. A
    remaining V1 snapshot does no harm; the next switchover moves it into quarantine.
    """
    if journal.ending(storage, begun) is not Ending.ABORTED:
        return
    if begun.to is Structure.V2:
        storage.delete([store.snapshot(begun.stores[store])])
    raise rolled_back(begun)
