"""Every entry point of the verbs that change a stopped checkpoint has every guard, as in `test_entry_points.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine import Convert, Goal, Rescale
from statekeeper.statestore.maintenance.rewrites.evolution import parse_changes
from statekeeper.statestore.storage import open_storage
from tests.support import edits, evolved_roots, loads, rescales
from tests.support import verbs as passes
from tests.support.clones import FULL
from tests.support.entry_points import (
    HALF_SWITCHED,
    Attempt,
    Obstacle,
    World,
    a_changelog_is_missing,
    another_maintainer,
    assert_guarded,
    confirmed,
    half_switched,
    mode_observe,
    mode_snapshots,
    nobody_confirms,
    the_query_runs,
)
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import MAINTAINER
from tests.support.switching import WRITES, begin_a_switch
from tests.support.unpacked import unpacked

ARCHIVES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
ROCKSDB, HDFS_BACKED = ARCHIVES / "spark-4.2.0-v2-aggregation.zip", ARCHIVES / "spark-4.2.0-hdfs-aggregation.zip"
BY = MAINTAINER
OWNER = "0badc0de-0000-4000-8000-00000000000a"
DELETED = "key 3"
HALF_RESCALED = "half-rescaled"
"""The folder of `made` with an edited checkpoint whose rescale is interrupted."""
SAVEPOINT = "savepoint"
"""The folder of `made` with a savepoint with rows."""
GOALS: dict[str, Goal] = {"rescale": Rescale(3), "convert": Convert(Provider.ROCKSDB, Structure.V2)}


def rewrite_by_python(goal: Goal) -> Attempt:
    def attempt(world: World, *, stopped: bool) -> None:
        scratch = world.folder / "scratch"
        prepared = passes.rewrite.plan(world.storage, world.policies, goal, scratch=scratch)
        run = BY.ids.fresh()
        done = passes.rewrite.execute(
            world.storage, prepared, BY, lambda _: None, run=run, stopped=stopped, scratch=scratch
        )
        for refusal in done.plan.refusals:
            raise RefusedAsUnsafe(refusal)

    return attempt


def edit_by_python(world: World, *, stopped: bool) -> None:
    scratch, goal = world.folder / "scratch", edits.goal(k=DELETED)
    prepared = passes.edit.plan(world.storage, world.policies, goal, BY, scratch=scratch)
    run = BY.ids.fresh()
    done = passes.edit.execute(world.storage, prepared, BY, lambda _: None, run=run, stopped=stopped, scratch=scratch)
    for refusal in done.plan.refusals:
        raise RefusedAsUnsafe(refusal)


def abort_by_python(kind: RewriteKind) -> Attempt:
    def attempt(world: World, *, stopped: bool) -> None:
        run = BY.ids.fresh()
        passes.rewrite.abort(world.storage, world.policies, kind, BY, lambda _: None, run=run, stopped=stopped)

    return attempt


def undo_edit_by_python(world: World, *, stopped: bool) -> None:
    run = BY.ids.fresh()
    passes.edit.undo(
        world.storage, world.policies, ended(world, "undo of edit"), BY, lambda _: None, run=run, stopped=stopped
    )


def load_by_python(world: World, *, stopped: bool) -> None:
    goal = loads.goal(open_storage(saved(world)))
    rewrite_by_python(goal)(world, stopped=stopped)


def undo_by_python(rewrite: RewriteKind) -> Attempt:
    """Return the attempt to reverse a completed load or schema evolution."""

    def attempt(world: World, *, stopped: bool) -> None:
        run, undone = BY.ids.fresh(), ended(world, f"undo of {rewrite.value}")
        passes.rewrite.undo(
            world.storage, world.policies, rewrite, undone, BY, lambda _: None, run=run, stopped=stopped
        )

    return attempt


def saved(world: World) -> str:
    """Return the path of the savepoint that a load reads."""
    return str(world.made / SAVEPOINT)


def evolve_by_python(world: World, *, stopped: bool) -> None:
    goal = parse_changes(json.loads(evolved_roots.RENAME), "a file")
    rewrite_by_python(goal)(world, stopped=stopped)


def with_file(act: Callable[[str], Attempt]) -> Attempt:
    """Return the attempt with a schema file."""

    def attempt(world: World, *, stopped: bool) -> None:
        file = world.folder / "changes.json"
        file.write_text(evolved_roots.RENAME)
        act(str(file))(world, stopped=stopped)

    return attempt


def rewind_by_python(world: World, *, stopped: bool) -> None:
    scratch = world.folder / "scratch"
    prepared = passes.rewind.plan(world.storage, world.policies, BY, before_the_newest(world), scratch=scratch)
    passes.rewind.execute(world.storage, prepared, BY, run=BY.ids.fresh(), stopped=stopped, scratch=scratch)


def undo_rewind_by_python(world: World, *, stopped: bool) -> None:
    passes.rewind.undo(
        world.storage, world.policies, ended(world, "undo of rewind"), BY, run=BY.ids.fresh(), stopped=stopped
    )


def claim_by_python(world: World, *, stopped: bool) -> None:
    prepared = passes.claim.plan(world.storage, None, world.policies, BY, query_id=OWNER)
    passes.claim.execute(world.storage, None, prepared, BY, run=BY.ids.fresh(), stopped=stopped)


def before_the_newest(world: World) -> int:
    newest = catalog.newest_batch(world.storage)
    assert newest is not None
    return newest - 1


def ended(world: World, verb: str) -> str:
    """Return the id of the run that an undo reverses."""
    return (world.made / f"{verb}.run").read_text()


def by_command(verb: str, *options: str) -> Attempt:
    def attempt(world: World, *, stopped: bool) -> None:
        world.command(verb, "flights", *options, *confirmed(stopped))

    return attempt


def by_launch(verb: str, **config: object) -> Attempt:
    def attempt(world: World, *, stopped: bool) -> None:
        world.launch(f"{verb}_checkpoint", verb, **config, confirm_stopped=stopped)

    return attempt


ATTEMPTS: dict[tuple[str, str], Attempt] = {
    ("rescale", "Python"): rewrite_by_python(GOALS["rescale"]),
    ("rescale", "CLI"): by_command("rescale", "--partitions", "3", "--apply"),
    ("rescale", "Dagster"): by_launch("rescale", partitions=3, do="APPLY"),
    ("abort of rescale", "Python"): abort_by_python(RewriteKind.RESCALE),
    ("abort of rescale", "CLI"): by_command("rescale", "--abort"),
    ("abort of rescale", "Dagster"): by_launch("rescale", do="ABORT"),
    ("convert", "Python"): rewrite_by_python(GOALS["convert"]),
    ("convert", "CLI"): by_command("convert", "--to", "rocksdb", "--structure", "v2", "--apply"),
    ("convert", "Dagster"): by_launch("convert", to="ROCKSDB", structure="V2", do="APPLY"),
    ("abort of convert", "Python"): abort_by_python(RewriteKind.CONVERT),
    ("abort of convert", "CLI"): by_command("convert", "--abort"),
    ("abort of convert", "Dagster"): by_launch("convert", do="ABORT"),
    ("edit", "Python"): edit_by_python,
    ("edit", "CLI"): by_command("edit", "--operator", "0", "--delete", f"k={DELETED}", "--apply"),
    ("edit", "Dagster"): by_launch("edit", delete={"k": DELETED}, do="APPLY"),
    ("abort of edit", "Python"): abort_by_python(RewriteKind.EDIT),
    ("abort of edit", "CLI"): by_command("edit", "--abort"),
    ("abort of edit", "Dagster"): by_launch("edit", do="ABORT"),
    ("undo of edit", "Python"): undo_edit_by_python,
    ("undo of edit", "CLI"): lambda world, stopped: by_command("edit", "--undo", ended(world, "undo of edit"))(
        world, stopped=stopped
    ),
    ("undo of edit", "Dagster"): lambda world, stopped: by_launch(
        "edit", do="UNDO", undo_run=ended(world, "undo of edit")
    )(world, stopped=stopped),
    ("load", "Python"): load_by_python,
    ("load", "CLI"): lambda world, stopped: world.command(
        "load", saved(world), "flights", "--replace-state", "--apply", *confirmed(stopped)
    ),
    ("load", "Dagster"): lambda world, stopped: by_launch(
        "load", savepoint=saved(world), replace_state=True, do="APPLY"
    )(world, stopped=stopped),
    ("abort of load", "Python"): abort_by_python(RewriteKind.LOAD),
    ("abort of load", "CLI"): by_command("load", "--abort"),
    ("abort of load", "Dagster"): by_launch("load", do="ABORT"),
    ("undo of load", "Python"): undo_by_python(RewriteKind.LOAD),
    ("undo of load", "CLI"): lambda world, stopped: by_command("load", "--undo", ended(world, "undo of load"))(
        world, stopped=stopped
    ),
    ("undo of load", "Dagster"): lambda world, stopped: by_launch(
        "load", do="UNDO", undo_run=ended(world, "undo of load")
    )(world, stopped=stopped),
    ("evolve", "Python"): evolve_by_python,
    ("evolve", "CLI"): with_file(lambda file: by_command("evolve", "--schema", file, "--apply")),
    ("evolve", "Dagster"): with_file(lambda file: by_launch("evolve", schema_file=file, do="APPLY")),
    ("abort of evolve", "Python"): abort_by_python(RewriteKind.EVOLVE),
    ("abort of evolve", "CLI"): by_command("evolve", "--abort"),
    ("abort of evolve", "Dagster"): by_launch("evolve", do="ABORT"),
    ("undo of evolve", "Python"): undo_by_python(RewriteKind.EVOLVE),
    ("undo of evolve", "CLI"): lambda world, stopped: by_command("evolve", "--undo", ended(world, "undo of evolve"))(
        world, stopped=stopped
    ),
    ("undo of evolve", "Dagster"): lambda world, stopped: by_launch(
        "evolve", do="UNDO", undo_run=ended(world, "undo of evolve")
    )(world, stopped=stopped),
    ("rewind", "Python"): rewind_by_python,
    ("rewind", "CLI"): lambda world, stopped: by_command(
        "rewind", "--to-batch", str(before_the_newest(world)), "--apply"
    )(world, stopped=stopped),
    ("undo of rewind", "Python"): undo_rewind_by_python,
    ("undo of rewind", "CLI"): lambda world, stopped: by_command("rewind", "--undo", ended(world, "undo of rewind"))(
        world, stopped=stopped
    ),
    ("claim", "Python"): claim_by_python,
    ("claim", "CLI"): by_command("claim", "--query-id", OWNER, "--apply"),
}


@contextmanager
def the_newest_version_is_missing(world: World) -> Iterator[None]:
    version = before_the_newest(world) + 2
    for suffix in ("delta", "snapshot"):
        (world.root / "state" / "0" / "1" / f"{version}.{suffix}").unlink()
    yield


@contextmanager
def half_rescaled(world: World) -> Iterator[None]:
    journal = Path(names.SWITCHOVERS)
    shutil.copytree(world.made / HALF_RESCALED / journal, world.root / journal, dirs_exist_ok=True)
    yield


OF_ALL: tuple[Obstacle, ...] = (another_maintainer, mode_observe, mode_snapshots, nobody_confirms, the_query_runs)
OF_NEW: tuple[Obstacle, ...] = (*OF_ALL, half_switched, a_changelog_is_missing)
OBSTACLES: dict[str, tuple[Obstacle, ...]] = {
    "rescale": OF_NEW,
    "abort of rescale": OF_ALL,
    "convert": (*OF_ALL, half_switched, the_newest_version_is_missing),
    "abort of convert": OF_ALL,
    "edit": OF_NEW,
    "abort of edit": OF_ALL,
    "undo of edit": (*OF_ALL, half_rescaled),
    "load": OF_NEW,
    "abort of load": OF_ALL,
    "undo of load": (*OF_ALL, half_rescaled),
    "evolve": (*OF_ALL, half_switched),
    "abort of evolve": OF_ALL,
    "undo of evolve": (*OF_ALL, half_rescaled),
    # The changelog of a batch that is rolled back is not needed.
    "rewind": (*OF_ALL, half_switched),
    "undo of rewind": (*OF_ALL, half_switched),
    "claim": (*OF_ALL, half_switched),
}


class Dying(FaultyStorage):
    """Dies at the second write of a new snapshot, when the journal exists."""

    def _fault_of(self, request: Request) -> Fault | None:
        writes = request.kind in WRITES and request.path.startswith("state/")
        return Fault.BEFORE if writes else None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each verb a stopped checkpoint that gives it something to do."""
    folder = tmp_path_factory.mktemp("made")
    scratch, origin = folder / "scratch", unpacked(ROCKSDB, folder / "of RocksDB")
    hdfs_backed = unpacked(HDFS_BACKED, folder / "HDFS-backed")
    for verb in OBSTACLES:
        if verb != "claim" and "evolve" not in verb:
            shutil.copytree(hdfs_backed if "convert" in verb else origin, folder / verb)
    KeyedRoot(open_storage(str(folder / "claim")), folder / "job", partitions=2, key_groups=16).grow(2)
    make_evolved(folder, scratch)
    for verb in GOALS:
        dying = Dying(open_storage(str(folder / f"abort of {verb}")))
        with pytest.raises(SimulatedCrash):
            rescales.rescale(dying, GOALS[verb], scratch)
    with pytest.raises(SimulatedCrash):
        edits.apply(Dying(open_storage(str(folder / "abort of edit"))), edits.goal(k=DELETED), scratch)
    run = edits.apply(open_storage(str(folder / "undo of edit")), edits.goal(k=DELETED), scratch)
    (folder / "undo of edit.run").write_text(run)
    of = loads.savepoint(open_storage(str(origin)), folder / SAVEPOINT)
    with pytest.raises(SimulatedCrash):
        loads.load(Dying(open_storage(str(folder / "abort of load"))), of, scratch)
    (folder / "undo of load.run").write_text(loads.load(open_storage(str(folder / "undo of load")), of, scratch))
    shutil.copytree(folder / "undo of edit", folder / HALF_RESCALED)
    with pytest.raises(SimulatedCrash):
        rescales.rescale(Dying(open_storage(str(folder / HALF_RESCALED))), GOALS["rescale"], scratch)
    rewound, run = open_storage(str(folder / "undo of rewind")), BY.ids.fresh()
    newest = catalog.newest_batch(rewound)
    assert newest is not None
    prepared = passes.rewind.plan(rewound, FULL, BY, newest - 1, scratch=scratch)
    passes.rewind.execute(rewound, prepared, BY, run=run, stopped=True, scratch=scratch)
    (folder / "undo of rewind.run").write_text(run)
    for verb in ("abort of rescale", "abort of convert", "abort of edit", "abort of load", "abort of evolve"):
        shutil.rmtree(folder / verb / names.LEASES)
    shutil.copytree(origin, folder / HALF_SWITCHED)
    begin_a_switch(open_storage(str(folder / HALF_SWITCHED)), Structure.V1, folder)
    return folder


def make_evolved(folder: Path, scratch: Path) -> None:
    """Make the state roots for a schema evolution, its abort and its undo."""
    goal = parse_changes(json.loads(evolved_roots.RENAME), "a file")
    for verb in ("evolve", "abort of evolve", "undo of evolve"):
        KeyedRoot(open_storage(str(folder / verb)), folder / f"job of {verb}", partitions=2, key_groups=16).grow(2)
    with pytest.raises(SimulatedCrash):
        evolved_roots.evolve(Dying(open_storage(str(folder / "abort of evolve"))), goal, scratch)
    run = evolved_roots.evolve(open_storage(str(folder / "undo of evolve")), goal, scratch)
    (folder / "undo of evolve.run").write_text(run)


def _cases() -> Iterator[object]:
    """Yield each attempt. A launch starts Dagster for each obstacle, so CI launches `edit` for the way back of all."""
    for verb, entry in ATTEMPTS:
        is_slow = entry == "Dagster" and " of " in verb and not verb.endswith(" of edit")
        yield pytest.param(verb, entry, id=f"{verb} by {entry}", marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.parametrize(("verb", "entry"), _cases())
def test_every_entry_point_of_a_rewrite_has_every_guard(made: Path, tmp_path: Path, verb: str, entry: str) -> None:
    assert_guarded(World(made, tmp_path), verb, ATTEMPTS[verb, entry], OBSTACLES[verb], raises=entry == "Python")
