"""A query that commits batches and is maintained in between."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

from statekeeper.assets import checks
from statekeeper.resources.fleet import OpenedQuery
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep.audit import Audit
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy
from statekeeper.statestore.maintenance.verbs.audit import look
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.maintenance.verbs.snapshot import Snapshots
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.storage.query_metrics import Prices
from tests.support import verbs
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.structures import as_sparks, held, without_ids, without_lineage
from tests.support.switching import structure_of


def policies(versions: int) -> Policies:
    return Policies(SnapshotPolicy(changelogs=4), RetentionPolicy(versions=versions, grace_seconds=0.0), Mode.FULL)


@dataclass
class Query:
    """A query that commits batches, and is maintained in between.

    `shadow`: for a native query, the same batches in structure V2. Its changelogs in V1 are these without the lineage.
    """

    checkpoint: Checkpoint
    folder: Path
    shadow: Checkpoint | None = None

    @property
    def storage(self) -> Storage:
        return self.checkpoint.storage

    @property
    def by(self) -> Maintainer:
        return Maintainer("a test", SleeplessClock(SystemClock().now_seconds()), RandomIds())

    def copied_to(self, storage: Storage, folder: Path) -> Query:
        """Return the same query in another, empty storage."""
        shadow = self.shadow
        if shadow is not None:
            shadow = shadow.copied_to(open_storage(str(folder / "shadow")), folder / "shadow job")
        return Query(self.checkpoint.copied_to(storage, folder / "job"), folder, shadow)

    def grow(self, batches: int) -> None:
        """Commit this number of batches in the current structure of the checkpoint."""
        made = self.checkpoint
        for _ in range(batches):
            structure = structure_of(self.storage)
            if self.shadow is not None:
                self.shadow.grow(1)
            if self.shadow is not None and structure is Structure.V1:
                self._copy_newest(self.shadow)
                continue
            heads = catalog.heads(self.storage)
            assert heads is not None
            made.versions[-1] = [heads.heads[store] for store in made.stores]
            made.structure = structure
            made.grow(1)

    def _copy_newest(self, shadow: Checkpoint) -> None:
        made, batch = self.checkpoint, len(shadow.versions) - 2
        for store, version in zip(shadow.stores, shadow.versions[-1], strict=True):
            path = store.changelog(version)
            body = without_lineage(shadow.storage.read(path), path)
            self.storage.create(store.changelog(VersionId(version.version)), body)
        self.storage.create(names.offsets(batch), shadow.storage.read(names.offsets(batch)))
        self.storage.create(names.commits(batch), logs.encode_commit(logs.CommitLog(0, None)))
        made.versions.append([VersionId(batch + 1) for _ in made.stores])
        made.states.append(shadow.states[-1])

    def is_right(self) -> bool:
        """Return whether the stores, loaded from storage, contain the rows of the batches."""
        return held(self.storage, self.folder / "host") == dict(
            zip(self.checkpoint.stores, self.checkpoint.states[-1], strict=True)
        )

    def snapshot(self) -> None:
        prepared = verbs.snapshot.plan(self.storage, policies(100), clock=self.by.clock, at_head=True, stopped=True)
        verbs.snapshot.execute(self.storage, prepared, self.by, scratch=self.folder / "scratch")

    def gc(self) -> None:
        prepared = verbs.retention.plan(self.storage, policies(3), clock=SystemClock())
        verbs.retention.execute(self.storage, prepared, Maintainer("a test", SystemClock(), RandomIds()))

    def switch(self) -> None:
        to, scratch = structure_of(self.storage).other, self.folder / "scratch"
        prepared = verbs.switch.plan(self.storage, policies(100), to, None, scratch=scratch)
        done = verbs.switch.execute(
            self.storage, prepared, self.by, lambda _: None, run=self.by.ids.fresh(), stopped=True, scratch=scratch
        )
        assert done.plan.refusals == ()
        assert structure_of(self.storage) is to

    def repair(self) -> None:
        """Roll back the newest two batches by deleting their commits and offsets, then repair."""
        for made in (self.checkpoint, self.shadow):
            for _ in range(2 if made else 0):
                assert made is not None
                newest = len(made.versions) - 2
                made.storage.delete([names.commits(newest), names.offsets(newest)])
                made.versions.pop()
                made.states.pop()
        prepared = verbs.repair.plan(self.storage, policies(100), None)
        assert prepared.plan.actions
        verbs.repair.execute(self.storage, prepared, self.by, run=self.by.ids.fresh(), stopped=True)

    def rewind(self, batches: int = 2) -> None:
        """Rewind by this number of batches."""
        newest = catalog.newest_batch(self.storage)
        assert newest is not None
        scratch = self.folder / "scratch"
        prepared = verbs.rewind.plan(self.storage, policies(100), self.by, newest - batches, scratch=scratch)
        verbs.rewind.execute(self.storage, prepared, self.by, run=self.by.ids.fresh(), stopped=True, scratch=scratch)
        self.forget_after(newest - batches)

    def forget_after(self, batch: int) -> None:
        """Let the model forget the batches after `batch`."""
        if self.shadow is not None:
            later = range(batch + 1, len(self.shadow.versions) - 1)
            self.shadow.storage.delete([of(number) for number in later for of in (names.commits, names.offsets)])
        for made in (self.checkpoint, self.shadow):
            if made is not None:
                del made.versions[batch + 2 :]
                del made.states[batch + 2 :]

    def _after(self, policy: Policies) -> Audit:
        """Audit after the deletions: no file is left to delete, and there are no findings."""
        looked = look(self.storage, policy, clock=SystemClock())
        assert looked.forecast is not None
        assert looked.forecast.now.files == 0
        assert looked.audit.findings == ()
        return looked.audit

    def red_checks(self, versions: int) -> list[str]:
        """Return the descriptions of the checks that fail after `maintain_query` with this policy."""
        policy, by = policies(versions), Maintainer("a test", SystemClock(), RandomIds())
        taken = verbs.snapshot.unattended(self.storage, policy, by, scratch=self.folder / "scratch")
        assert (taken.made or Snapshots()).failed == ()
        query = OpenedQuery(
            name="a query", storage=self.storage, policies=policy, prices=Prices(), config_file="statekeeper.toml"
        )
        results = [checks.tail_is_short(taken.plan, taken.made or Snapshots(), query)]
        looked = look(self.storage, policy, clock=by.clock)
        results += checks.lineage_checks(looked.audit, query)
        done = verbs.retention.unattended(self.storage, policy, by)
        assert looked.forecast is not None
        planned, steps = done.plan.plan, verbs.made(done)
        gone = sum(step.files for step in steps), sum(step.size_bytes for step in steps)
        assert (looked.forecast.floor, *gone) == (planned.floor, *astuple(looked.forecast.now)), "audit and gc agree"
        assert planned.findings == ()
        results.append(checks.retention_floor_is_kept(planned, self._after(policy), query))
        return [f"{one.check_name}: {one.description}" for one in results if not one.passed]


def maintained_query(
    storage: Storage, folder: Path, structure: Structure, origin: Origin, *, batches: int, in_batch_logs: bool = False
) -> Query:
    """Start a query of this origin and structure, and commit its first batches."""
    written = structure if origin is Origin.OWN else Structure.V2
    made = Checkpoint(storage, folder / "job", structure=written, in_batch_logs=in_batch_logs)
    made.grow(batches)
    shadow = None
    if origin is Origin.NATIVE:
        shadow = made.copied_to(open_storage(str(folder / "shadow")), folder / "shadow job")
        as_sparks(made)
        if structure is Structure.V1:
            without_ids(made)
    assert structure_of(storage) is structure
    return Query(made, folder, shadow)
