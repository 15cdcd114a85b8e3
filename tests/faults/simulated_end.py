"""Requirements at the end of a simulation: an undisturbed round of maintenance succeeds and leaves exactly the
guaranteed files."""

from __future__ import annotations

import shutil
from dataclasses import replace

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import batch_log, logs, names
from statekeeper.statestore.format.batch_log import Place
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.maintenance.executors import LocalExecutor
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.records.announcements import LIFE_SECONDS
from statekeeper.statestore.maintenance.upkeep import retention, snapshot
from statekeeper.statestore.maintenance.upkeep.retention import DeletionOutcome, RetentionPlan
from tests.faults.promises import Lost, Untidy
from tests.faults.simulated_actors import require_right
from tests.faults.simulated_world import World
from tests.faults.turns import VirtualClock
from tests.support.hosts import changed, column

_BATCHES = 2
_SAMPLE = 5


def require_good_end(world: World) -> None:
    """Raises `Lost`, or the error of the library in an undisturbed round."""
    _let_time_pass(world, 2 * LIFE_SECONDS)
    world.promises.require("all that happened")
    promised = world.promises.promised()
    for store, version in world.turns.chance.sample(promised, min(len(promised), _SAMPLE)):
        require_right(world, store, version)
    for _ in range(_BATCHES):
        _commit_batch(world)
    _let_time_pass(world, world.weather.retention.grace_seconds)
    _take_snapshots(world)
    # The announcement of a dead run is heeded until a run has removed it.
    for _ in range(2):
        _collect(world)
    again = _plan(world)
    left = [verdict for verdict in again.deletions if not verdict.path.startswith(names.HISTORY)]
    if left:
        raise Untidy(f"a third run still finds {len(left)} files to delete: {left[0]}")
    if not world.counts.what["files that rotted"]:
        if again.findings or again.floor != again.wanted_floor:
            raise Untidy(f"nothing rotted, and yet: floor {again.floor}, wanted {again.wanted_floor}, {again.findings}")
        _require_no_garbage(world, again)
    for store, version in world.promises.promised():
        require_right(world, store, version)
    for store in world.stores:
        _require_snapshots_right(world, store)


def _let_time_pass(world: World, seconds: float) -> None:
    world.turns.now_seconds += seconds
    world.written_at_seconds = world.turns.now_seconds


def _commit_batch(world: World) -> None:
    heads = catalog.heads(world.storage)
    batch = 0 if heads is None else heads.batch + 1
    ids = []
    for store in world.stores:
        base = EMPTY if heads is None else heads.heads[store]
        with world.load(store, base, world.storage, world.folder("last host")) as opened:
            changes = {b"last": b"%d" % batch}
            opened.put(column(list(changes)), column(list(changes.values())))
            world.states[store, opened.next] = changed(world.states[store, base], changes)
            ids.append((str(opened.commit().id),))
    world.root.create(names.commits(batch), logs.encode_commit(logs.CommitLog(0, {0: tuple(ids)})))


def _take_snapshots(world: World) -> None:
    planned = snapshot.plan(snapshot.gather(world.storage), world.weather.snapshots, take_all=True)
    if len(planned.take) != len(world.stores):
        raise Untidy(f"not every store can have a snapshot: {[one.explained for one in planned.leave]}")
    for action in planned.take:
        scratch = world.folder("last maintainer")
        snapshot.execute(world.storage, action, scratch=scratch, clock=VirtualClock(world.turns), ids=world.ids)
        world.counts.what["snapshots made"] += 1


def _plan(world: World) -> RetentionPlan:
    policy = replace(world.weather.retention, most_files=100_000)
    return retention.plan(
        retention.gather(world.storage, policy, clock=VirtualClock(world.turns), everything=True), policy
    )


def _collect(world: World) -> None:
    planned = _plan(world)
    floor = world.promises.floor_for(planned.wanted_floor)
    clock, run = VirtualClock(world.turns), world.ids.fresh()
    world.promises.make(planned, floor, is_alone=True)
    with lease.held(world.storage, "gc", run=run, holder="the last", clock=clock) as held:
        done = list(
            retention.execute(
                world.storage, planned, run=run, lease=held, clock=clock, executor=LocalExecutor(clock=clock, workers=1)
            )
        )
    if any(step.outcome not in (DeletionOutcome.READ, DeletionOutcome.DONE) for step in done):
        raise Untidy(f"a store was left alone though nothing happened: {done}")


def _require_no_garbage(world: World, planned: RetentionPlan) -> None:
    assert planned.floor is not None
    committed, head = world.promises.committed, world.promises.head
    needed: set[Place] = set()
    for store, files in catalog.files(world.root).items():
        chain = {committed[number][store] for number in range(1, head + 1)}
        whole = [v for v in world.promises.whole_snapshots(store) if v.version <= planned.floor]
        base = max((version.version for version in whole), default=0)
        needed |= {(store, version) for version in chain if version.version > base}
        own = [v for v in files.changelogs if store.changelog(v) in world.root.objects]
        garbage = [v for v in own if v not in chain or v.version <= base]
        garbage += [v for v in files.snapshots if v not in chain or v.version < base]
        if garbage:
            raise Untidy(f"{store}: {garbage[0]} is garbage and stays")
        unnamed = set(files.tables) - world.promises.named_tables(store)
        if unnamed:
            raise Untidy(f"{store}: no snapshot names {min(unnamed)}, and it stays")
    for path, found in world.root.objects.items():
        place = names.parse_batch_log(path)
        # From the floor on, it is kept as the record of an attempt.
        if place is None or place[0] >= planned.floor:
            continue
        if not needed & batch_log.parse_head(found.data, path).members.keys():
            raise Untidy(f"no store needs a changelog of {path}, and it stays")


def _require_snapshots_right(world: World, store: StorePath) -> None:
    """Check that each whole snapshot restores its version without changelogs."""
    for version in world.promises.whole_snapshots(store):
        if (store, version.version) in world.promises.rotten:
            continue
        folder = world.folder("last reader")
        with world.load(store, version, world.storage, folder) as opened:
            metrics = opened.load_report
            if metrics.skipped_snapshots or metrics.replayed_changelogs:
                raise Lost(f"the snapshot of {store} {version} counts as whole: {metrics}")
            if dict(opened.scan()) != world.states[store, version]:
                raise Lost(f"the snapshot of {store} {version} holds another state")
        shutil.rmtree(folder)
