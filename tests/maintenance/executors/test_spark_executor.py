"""Verbs on a Spark cluster: two executors with JVMs and Python workers of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from statekeeper.statestore.base.errors import TaskLost
from statekeeper.statestore.maintenance.executors.spark import SparkExecutor
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import run
from tests.support.on_a_cluster import Ran, SquareEach, killed_when, on_a_cluster
from tests.support.spark_clusters import SPECULATION, event_log, events, two_hosts

pytestmark = pytest.mark.spark

PARTITIONS = 8
BATCHES = 6
BAD = 3
FULL = ("--mode", "full")
VOLATILE = ("seconds", "bytes", "requests", "digest", "run", "holder", "when")


def stable(printed: Any) -> Any:
    """What a verb printed, without times, and without sizes and requests, which depend on the ids of new files."""
    if isinstance(printed, dict):
        return {
            name: stable(value) for name, value in sorted(printed.items()) if not any(one in name for one in VOLATILE)
        }
    return [stable(one) for one in printed] if isinstance(printed, list) else printed


def verbs(root: Path) -> list[list[str]]:
    return [
        ["snapshot", str(root), "--all", *FULL],
        ["audit", str(root), "--deep"],
        ["drill", str(root), "--sample", str(PARTITIONS)],
        ["gc", str(root), "--retain", "2", "--grace", "0s", "--apply", *FULL],
        ["audit", str(root), "--deep"],
    ]


@dataclass(frozen=True, kw_only=True)
class World:
    """Three copies of a checkpoint, and what the verbs did in one Spark application: a start costs ten seconds."""

    folder: Path
    local: Checkpoint
    remote: Checkpoint
    damaged: Checkpoint
    on_the_cluster: list[Ran]
    of_the_damaged: list[Ran]
    of_frozen_modules: Ran
    of_a_deadly_item: Ran
    of_a_defect: Ran


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("cluster")
    made = Checkpoint(open_storage(str(folder / "local")), folder / "local job", partitions=PARTITIONS)
    made.grow(BATCHES)
    result = run("snapshot", folder / "local", "--all", *FULL)
    assert result.exit_code == 0, result.output
    made.grow(BATCHES)
    remote, damaged = (
        made.copied_to(open_storage(str(folder / name)), folder / f"{name} job") for name in ("remote", "damaged")
    )
    # The plan reads only the newest changelog.
    changelog = damaged.stores[BAD].changelog(damaged.versions[-2][BAD])
    body = damaged.storage.read(changelog)
    damaged.storage.replace(changelog, body[: len(body) // 2])
    snapshot = ["snapshot", str(folder / "damaged"), "--all", *FULL]
    cluster = ["--executor", "spark"]
    ran = on_a_cluster(
        *([*one, *cluster] for one in verbs(folder / "remote")),
        *2 * [[*snapshot, *cluster]],
        {"items": 4, "task": {"counts_frozen": True}},
        {"items": 12, "task": {"deadly": 5}},
        {"items": 3, "task": {"defect": 1}},
    )
    return World(
        folder=folder,
        local=made,
        remote=remote,
        damaged=damaged,
        on_the_cluster=ran[:-5],
        of_the_damaged=ran[-5:-3],
        of_frozen_modules=ran[-3],
        of_a_deadly_item=ran[-2],
        of_a_defect=ran[-1],
    )


def test_each_verb_on_a_cluster_does_what_it_does_on_this_machine(world: World) -> None:
    found = world.on_the_cluster
    for one, of_cluster in zip(verbs(world.folder / "local"), found, strict=True):
        here = run(*one, "--output", "json")
        assert (of_cluster.exit_code, stable(of_cluster.printed)) == (
            here.exit_code,
            stable(json.loads(here.stdout)),
        ), one
    assert [one.exit_code for one in found] == [0] * len(found)
    assert len(found[0].printed["taken"]) == PARTITIONS
    assert found[3].printed["reads"] != []
    assert found[3].printed["done"] != []
    for checkpoint in (world.local, world.remote):
        checkpoint.assert_snapshots_are_right(world.folder / "host")
        checkpoint.grow(1)
        checkpoint.assert_right(world.folder / "host")


def test_a_damaged_store_does_not_stop_the_others(world: World) -> None:
    taken, repeated = world.of_the_damaged
    bad = str(world.damaged.stores[BAD])
    assert taken.exit_code == 4, taken.errors
    assert len(taken.printed["taken"]) == PARTITIONS - 1
    assert [one["store"] for one in taken.printed["failed"]] == [bad]
    assert f"version_not_loadable: {bad}: " in taken.errors
    assert (repeated.printed["taken"], [one["store"] for one in repeated.printed["failed"]]) == ([], [bad])


def test_an_item_that_kills_its_worker_is_given_up_and_the_others_are_done(world: World) -> None:
    told = dict(world.of_a_deadly_item.printed)
    assert world.of_a_deadly_item.exit_code == 0, world.of_a_deadly_item.errors
    assert told.pop("5") == "task_lost"
    assert told == {str(item): item * item for item in range(12) if item != 5}


def test_the_modules_of_a_worker_are_left_out_of_its_garbage_collections(world: World) -> None:
    # All but the first task of a worker.
    assert max(world.of_frozen_modules.printed.values()) > 10_000, world.of_frozen_modules.errors


def test_a_defect_in_a_task_is_raised_with_its_traceback(world: World) -> None:
    assert world.of_a_defect.exit_code == 1
    assert "ZeroDivisionError: 1" in world.of_a_defect.errors


class Silent(SparkExecutor):
    """Jobs of this cluster succeed, and no outcome arrives."""

    def require_ready(self) -> None:
        pass

    def _job(self, *_: object) -> None:
        pass


def test_an_outcome_that_does_not_arrive_is_not_a_success() -> None:
    told: dict[int, object] = {}
    silent = Silent(memory_bytes=0)
    silent.__dict__["context"] = SimpleNamespace(defaultParallelism=2)
    silent.map(SquareEach(), range(3), lambda item, outcome: told.update({item: outcome}))
    assert [type(told[item]) for item in range(3)] == [TaskLost] * 3


@pytest.mark.slow
def test_a_killed_executor_loses_no_store(tmp_path: Path) -> None:
    many = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=60)
    many.grow(3)
    root = str(tmp_path / "root")
    taken, audited = (
        on_a_cluster(
            ["audit", root, "--deep", "--executor", "spark"],  # starts the Python workers
            1.0,
            ["snapshot", root, "--all", *FULL, "--executor", "spark"],
            executors=3,
        )[1:]
        + on_a_cluster(["audit", root, "--deep", "--executor", "spark"])
    )
    assert taken.exit_code == 0, taken.errors
    assert len(taken.printed["taken"]) == 60
    assert audited.printed["findings"] == []
    many.assert_snapshots_are_right(tmp_path / "host")


@pytest.mark.slow
def test_speculative_attempts_leave_one_right_snapshot_of_each_store(tmp_path: Path) -> None:
    many = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=40)
    many.grow(3)
    root = str(tmp_path / "root")
    log = tmp_path / "events"
    with two_hosts(tmp_path, 7179) as master:
        settings = {"spark.master": master, "spark.speculation.interval": "10ms", **SPECULATION, **event_log(log)}
        taken, audited = on_a_cluster(
            ["snapshot", root, "--all", *FULL, "--executor", "spark"],
            ["audit", root, "--deep", "--executor", "spark"],
            settings=settings,
        )
    assert any(one["Task Info"]["Speculative"] for one in events(log, "SparkListenerTaskEnd"))
    assert (taken.exit_code, len(taken.printed["taken"])) == (0, 40), taken.errors
    assert audited.printed["findings"] == []
    many.assert_snapshots_are_right(tmp_path / "host")


@pytest.mark.slow
def test_one_damaged_store_of_500_is_named_and_the_others_have_snapshots(tmp_path: Path) -> None:
    many = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=500)
    many.batch(*({b"key": b"%d" % partition} for partition in range(500)))
    bad = many.stores[321]
    many.storage.replace(bad.changelog(many.versions[-1][321]), b"damage")
    root = str(tmp_path / "root")
    taken, audited = on_a_cluster(
        ["snapshot", root, "--all", *FULL, "--executor", "spark"],
        ["audit", root, "--deep", "--executor", "spark"],
    )
    assert len(taken.printed["taken"]) == 499
    assert {one["store"] for one in audited.printed["findings"]} == {str(bad)}


@pytest.mark.slow
def test_after_the_driver_is_killed_the_same_command_makes_the_snapshots_that_are_missing(tmp_path: Path) -> None:
    many = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=200)
    many.grow(2)
    root = tmp_path / "root"
    command = ["snapshot", str(root), "--all", *FULL, "--executor", "spark"]
    with pytest.raises(AssertionError, match="the application ended"):
        killed_when(lambda: sum(1 for _ in root.glob("state/0/*/*.zip")) >= 5, command)
    there = sum(1 for _ in root.glob("state/0/*/*.zip"))
    assert 5 <= there < 200
    assert run("lease", root, "--break").exit_code == 0
    taken, audited = on_a_cluster(command, ["audit", str(root), "--deep", "--executor", "spark"])
    assert taken.exit_code == 0, taken.errors
    assert 0 < len(taken.printed["taken"]) < 200
    assert audited.printed["findings"] == []
    many.assert_snapshots_are_right(tmp_path / "host")
