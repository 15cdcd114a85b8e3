"""Every entry point has every guard: the command line, Dagster and Python refuse the same, and change nothing then.

A case is a verb and the way in which it is called. Without an obstacle it changes files; with any one of the obstacles
that are listed for the verb it must not.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.storage import open_storage
from tests.support import verbs
from tests.support.checkpoints import Checkpoint
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
from tests.support.maintainers import MAINTAINER
from tests.support.structures import as_sparks
from tests.support.switching import begin_a_switch, take_snapshots

BY = MAINTAINER


def snapshot_by_python(world: World, *, stopped: bool) -> None:
    prepared = verbs.snapshot.plan(world.storage, world.policies, clock=BY.clock)
    verbs.snapshot.execute(world.storage, prepared, BY, scratch=world.folder / "scratch")


def retention_by_python(world: World, *, stopped: bool) -> None:
    prepared = verbs.retention.plan(world.storage, world.policies, clock=BY.clock)
    verbs.retention.execute(world.storage, prepared, BY)


def switch_by_python(world: World, *, stopped: bool) -> None:
    scratch = world.folder / "scratch"
    prepared = verbs.switch.plan(world.storage, world.policies, Structure.V1, None, scratch=scratch)
    run = BY.ids.fresh()
    done = verbs.switch.execute(world.storage, prepared, BY, lambda _: None, run=run, stopped=stopped, scratch=scratch)
    for refusal in done.plan.refusals:
        raise RefusedAsUnsafe(refusal)


def abort_by_python(world: World, *, stopped: bool) -> None:
    run = BY.ids.fresh()
    verbs.switch.abort(world.storage, world.policies, BY, lambda _: None, run=run, stopped=stopped)


def repair_by_python(world: World, *, stopped: bool) -> None:
    prepared = verbs.repair.plan(world.storage, world.policies, None)
    verbs.repair.execute(world.storage, prepared, BY, run=BY.ids.fresh(), stopped=stopped)


def undo_by_python(world: World, *, stopped: bool) -> None:
    undone = repaired(world)
    verbs.repair.undo(world.storage, world.policies, undone, BY, run=BY.ids.fresh(), stopped=stopped)


def repaired(world: World) -> str:
    """The run of the repair in this checkpoint."""
    parsed = (names.parse_quarantined(entry.path) for entry in world.storage.list(names.QUARANTINE))
    (run,) = {place[0] for place in parsed if place and place[1]}
    return run


ATTEMPTS: dict[tuple[str, str], Attempt] = {
    ("snapshot", "Python"): snapshot_by_python,
    ("snapshot", "CLI"): lambda world, stopped: world.command("snapshot", "flights"),
    ("snapshot", "Dagster"): lambda world, stopped: world.launch("", "snapshot"),
    ("retention", "Python"): retention_by_python,
    ("retention", "CLI"): lambda world, stopped: world.command("gc", "flights", "--apply"),
    ("retention", "Dagster"): lambda world, stopped: world.launch("", "retention"),
    ("switch", "Python"): switch_by_python,
    ("switch", "CLI"): lambda world, stopped: world.command(
        "switch", "flights", "--to", "v1", "--apply", *confirmed(stopped)
    ),
    ("switch", "Dagster"): lambda world, stopped: world.launch(
        "switch_checkpoint", "checkpoint_format", to="V1", do="APPLY", confirm_stopped=stopped
    ),
    ("abort", "Python"): abort_by_python,
    ("abort", "CLI"): lambda world, stopped: world.command("switch", "flights", "--abort", *confirmed(stopped)),
    ("abort", "Dagster"): lambda world, stopped: world.launch(
        "switch_checkpoint", "checkpoint_format", do="ABORT", confirm_stopped=stopped
    ),
    ("repair", "Python"): repair_by_python,
    ("repair", "CLI"): lambda world, stopped: world.command("repair", "flights", "--apply", *confirmed(stopped)),
    ("undo", "Python"): undo_by_python,
    ("undo", "CLI"): lambda world, stopped: world.command(
        "repair", "flights", "--undo", repaired(world), *confirmed(stopped)
    ),
}

OF_ALL = (another_maintainer, mode_observe)
OBSTACLES: dict[str, tuple[Obstacle, ...]] = {
    "snapshot": (*OF_ALL, half_switched),
    "retention": (*OF_ALL, mode_snapshots, half_switched, a_changelog_is_missing),
    "switch": (*OF_ALL, mode_snapshots, nobody_confirms, the_query_runs, a_changelog_is_missing),
    "abort": (*OF_ALL, mode_snapshots, nobody_confirms, the_query_runs),
    "repair": (*OF_ALL, mode_snapshots, half_switched, nobody_confirms, the_query_runs),
    "undo": (*OF_ALL, mode_snapshots, half_switched, nobody_confirms, the_query_runs),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each verb a checkpoint of Spark's that gives it something to do."""
    folder = tmp_path_factory.mktemp("made")
    checkpoint = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    for _ in range(3):
        checkpoint.grow(3)
        take_snapshots(checkpoint.storage, folder / "scratch")
    checkpoint.grow(3)
    as_sparks(checkpoint)
    for verb in OBSTACLES:
        shutil.copytree(folder / "root", folder / verb)
    begin_a_switch(open_storage(str(folder / "abort")), Structure.V1, folder)
    shutil.copytree(folder / "abort", folder / HALF_SWITCHED)
    for verb in ("repair", "undo"):
        for log in (names.commits(11), names.offsets(11)):
            (folder / verb / log).unlink()
    storage = open_storage(str(folder / "undo"))
    prepared = verbs.repair.plan(storage, Policies(), None)
    verbs.repair.execute(storage, prepared, BY, run=BY.ids.fresh(), stopped=True)
    return folder


@pytest.mark.parametrize(("verb", "entry"), ATTEMPTS, ids=[f"{verb} by {entry}" for verb, entry in ATTEMPTS])
def test_every_entry_point_has_every_guard(made: Path, tmp_path: Path, verb: str, entry: str) -> None:
    assert_guarded(World(made, tmp_path), verb, ATTEMPTS[verb, entry], OBSTACLES[verb], raises=entry == "Python")
