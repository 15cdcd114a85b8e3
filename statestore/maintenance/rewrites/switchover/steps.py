"""The steps of a switchover: every store gets a snapshot at its head under the name of the other structure.

The newest commit alone decides the structure of a checkpoint. Before it is rewritten, Spark refuses to start in structure
V1 because of a snapshot with an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import AlreadyExists, CorruptFile
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Made
from statekeeper.statestore.contents.chain import look_at_snapshot
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.executors import Place
from statekeeper.statestore.maintenance.rewrites.engine.commit import (
    again,
    has_gone_on,
    is_rewritten,
    move_to_quarantine,
    quarantined,
    restore_commit,
    restore_quarantined,
    rewrite_commit,
)
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, RewritePhase, Source, StoreStep
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import (
    Skipped,
    build,
    build_each,
    largest_first,
    withdraw_if_late,
)
from statekeeper.statestore.maintenance.rewrites.engine.steps import RewriteSteps, Rewriting
from statekeeper.statestore.maintenance.rewrites.switchover.model import SwitchPlan
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Created, Storage
from statekeeper.statestore.store.engine.rocks import EngineLimits, translated
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.base import SnapshotUnusable, open_base


class SwitchSteps(RewriteSteps[SwitchPlan]):
    """The steps of a switchover."""

    def begin(self, storage: Storage, planned: SwitchPlan, *, number: int, run: str, ids: Ids) -> Begun:
        assert planned.batch is not None
        return Begun(
            number=number,
            run=run,
            to=planned.to,
            batch=planned.batch,
            header=planned.header,
            commit=planned.commit,
            stores={step.store: step.name or _renamed(step.head, planned, ids) for step in planned.stores},
            reused=frozenset(step.store for step in planned.stores if step.source is Source.REUSED),
        )

    def prepare(self, work: Rewriting, planned: SwitchPlan) -> None:
        """Quarantine the files that would conflict with the new structure."""
        for path in planned.first:
            work.still_held()
            move_to_quarantine(work.storage, work.begun.run, path)
        if not work.is_cleared:
            journal.note_cleared(work.storage, work.begun)
            work.is_cleared = True
        work.tell(RewritePhase.CLEARED, done=len(planned.first), of=len(planned.first))

    def make_snapshots(self, work: Rewriting, planned: SwitchPlan, machine: Machine) -> None:
        executor = machine.executor
        task = SwitchEach(storage=work.storage, begun=work.begun, conf=planned.conf, may_be_late=not executor.is_here)
        build_each(work, task, largest_first(planned.stores), executor=executor)

    def commit(self, work: Rewriting, planned: SwitchPlan, machine: Machine) -> RewritePhase:
        rewrite_commit(work.storage, work.begun, planned.begun)
        return RewritePhase.COMMIT

    def clean_up(self, work: Rewriting, planned: SwitchPlan) -> None:
        """Quarantine the snapshots of the old structure with ids, beside which structure V1 does not start."""
        for number, path in enumerate(planned.last, 1):
            work.still_held()
            move_to_quarantine(work.storage, work.begun.run, path)
            work.tell(RewritePhase.MOVED, done=number, of=len(planned.last))

    def is_committed(self, storage: Storage, begun: Begun) -> bool:
        return is_rewritten(storage, begun)

    def continued_to(self, work: Rewriting) -> int | None:
        return catalog.newest_batch(work.storage) if has_gone_on(work.storage, work.begun) else None

    def restore(self, work: Rewriting) -> None:
        """If the query continued in the old structure, its new batches are kept."""
        restore_quarantined(work.storage, work.begun.run, self._quarantined(work, of_names=False), work.still_held)
        work.still_held()
        restore_commit(work.storage, work.begun)

    def own_snapshots(self, work: Rewriting) -> list[str]:
        # Before the journal is cleared, a file with one of these names may belong to the query.
        return super().own_snapshots(work) if work.is_cleared else []

    def clean_up_restored(self, work: Rewriting) -> None:
        """Move the files back that had the names of the new snapshots."""
        restore_quarantined(work.storage, work.begun.run, self._quarantined(work, of_names=True), work.still_held)
        work.still_held()

    def _quarantined(self, work: Rewriting, *, of_names: bool) -> set[str]:
        """Return the files in quarantine: those with the names of the new snapshots and their sidecars, or the others."""
        new = set(super().own_snapshots(work))
        new |= set(map(names.sidecar, new))
        return {path for path in quarantined(work.storage, work.begun) if (path in new) is of_names}


@dataclass(frozen=True, kw_only=True)
class SwitchEach:
    """The task of a store. `may_be_late`: see `withdraw_if_late`."""

    storage: Storage
    begun: Begun
    conf: StateConf
    may_be_late: bool = False

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.storage,)

    def __call__(self, step: StoreStep, place: Place) -> tuple[Made, Skipped]:
        late = self.may_be_late
        if step.source is Source.REUSED:
            # If the snapshot is damaged, make another one from an older base.
            with suppress(SnapshotUnusable):
                return _reuse(self.storage, self.begun, step, place, self.conf, may_be_late=late), ()
        return build(self.storage, self.begun, step, place, conf=self.conf, may_be_late=late)


def _renamed(head: VersionId, planned: SwitchPlan, ids: Ids) -> VersionId:
    """Return the name of the head in the other structure. In V1, own jobs use a digest, whose chain starts again here."""
    if planned.to is Structure.V2:
        return VersionId(head.version, ids.fresh())
    return VersionId(head.version, digest=ids.fresh() if planned.origin is Origin.OWN else None)


def _reuse(
    storage: Storage, begun: Begun, step: StoreStep, place: Place, conf: StateConf, *, may_be_late: bool
) -> Made:
    """Publish the snapshot at the head under its other name: a new zip with the same tables. Both snapshots are read in
    full and compared. Raises `SnapshotUnusable`, before it writes, if the snapshot at the head cannot be read."""
    name = begun.stores[step.store]
    with work_folder(place.folder, "switch") as folder, translated(place.folder):
        base = open_base(storage, step.store, step.head, folder / "base", EngineLimits(), conf, verified=True)
        with base.database as database:
            digest = database.digest()
        if _publish_as(storage, begun, step) is Created.NEW and may_be_late:
            withdraw_if_late(storage, begun, step.store)
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


def _publish_as(storage: Storage, begun: Begun, step: StoreStep) -> Created:
    """Publish the zip of the snapshot at the head under another name, with the header and digest of that name."""
    name, header = begun.stores[step.store], begun.header
    old, new = step.store.snapshot(step.head), step.store.snapshot(name)
    body = storage.read(old)
    found = read_snapshot(body, old)
    if (found.metadata.header, found.digest) != (header, name.digest):
        body = encode_snapshot(replace(found, metadata=replace(found.metadata, header=header), digest=name.digest))
    try:
        return storage.create(new, body)
    except AlreadyExists as error:
        raise CorruptFile(
            "exists already and differs: the snapshot at the head changed after the switchover started",
            path=new,
            hint=again(begun),
        ) from error
