"""Rewrites of whole stores on a Spark cluster: two executors with JVMs and Python workers of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.storage import TEMP_FOLDER, open_storage
from tests.support.keyed_roots import KeyedRoot
from tests.support.loads import savepoint
from tests.support.on_a_cluster import Ran, on_a_cluster
from tests.support.placed_rows import placed_rows
from tests.support.rescales import all_rows
from tests.support.spark_clusters import SPECULATION, event_log, events, executor_killed_when, two_hosts
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

pytestmark = pytest.mark.spark

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
APPLY = ("--apply", "--confirm-stopped")


class Places:
    """Checkpoints, and what is to be done with each of them: once on this machine, and once on a cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: dict[str, tuple[str, ...]] = {}
        self.before: dict[str, Path] = {}

    def add(self, archive: str, *command: str) -> None:
        """`command`: the verb and its options; it gets a copy of the checkpoint."""
        name = f"{archive} {command[0]}"
        self.commands[name] = command
        for place in ("here", "there"):
            self.before[name] = unpacked(FIXTURES / f"spark-4.2.0-{archive}.zip", self.folder / place / name)

    def root(self, name: str, place: str) -> Path:
        return self.folder / place / name / "checkpoint"

    def command(self, name: str, place: str) -> list[str]:
        verb, *options = self.commands[name]
        places = [str(self.root(name, place))]
        if verb == "load":
            places = [options.pop(0), *places]
        if verb == "migrate":
            places += [options.pop(0), str(self.new(name, place))]
        return [verb, *places, *options, *APPLY, "--scratch", str(self.folder)]

    def new(self, name: str, place: str) -> Path:
        """What the command changes or makes."""
        migrates = self.commands[name][0] == "migrate"
        return self.folder / place / f"{name} new" if migrates else self.root(name, place)


def made(root: Path) -> Mapping[StorePath, str]:
    """The digests of the new snapshots."""
    journal = rewrite_journal.newest_journal(open_storage(str(root)))
    assert journal is not None
    return {store: one.digest for store, one in journal.made.items()}


def require_same(places: Places, ran: Sequence[Ran]) -> None:
    for name, one in zip(places.commands, ran, strict=True):
        assert one.exit_code == 0, (name, one.errors)
        statekeeper(*places.command(name, "here"))
        here, there = places.new(name, "here"), places.new(name, "there")
        assert made(there) == made(here) != {}, name
        assert all_rows(there) == all_rows(here) != {}, name
        storage = open_storage(str(there))
        clean(storage, places.folder)
        assert storage.list(TEMP_FOLDER) == [], name


def run_all(places: Places, **how: object) -> None:
    commands = ([*places.command(name, "there"), "--executor", "spark"] for name in places.commands)
    require_same(places, on_a_cluster(*commands, **how))  # type: ignore[arg-type]


def with_savepoint(places: Places, archive: str) -> str:
    source = unpacked(FIXTURES / f"spark-4.2.0-{archive}.zip", places.folder / f"source of {archive}")
    savepoint(open_storage(str(source)), places.folder / f"savepoint of {archive}")
    return str(places.folder / f"savepoint of {archive}")


def test_a_rescale_a_conversion_a_load_and_a_migration_on_a_cluster_write_what_they_write_on_this_machine(
    tmp_path: Path,
) -> None:
    places = Places(tmp_path)
    places.add("v2-aggregation", "rescale", "--partitions", "5")
    places.add("hdfs-aggregation", "convert", "--to", "rocksdb", "--structure", "v2", "--for-spark", "4.2")
    places.add("v1-aggregation", "load", with_savepoint(places, "v1-aggregation"), "--replace-state")
    blueprint = unpacked(FIXTURES / "spark-4.2.0-v2-aggregation.zip", tmp_path / "blueprint")
    places.add("v1-aggregation", "migrate", str(blueprint), "--partitions", "3")
    run_all(places)
    assert +placed_rows(places.root("v2-aggregation rescale", "there"), tmp_path / "placed").elsewhere == {}


@pytest.mark.slow
def test_more_checkpoints_on_a_cluster(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for archive in ("v1-aggregation", "v1-join-4-checksums-and-commas", "v2-transformWithState", "v2-join-3"):
        places.add(archive, "rescale", "--partitions", "20")
    places.add("v1-windows-lzf", "convert", "--to", "hdfs", "--for-spark", "4.2")
    places.add("hdfs-sessions-snappy", "convert", "--to", "rocksdb", "--for-spark", "4.2")
    saved = with_savepoint(places, "v2-transformWithState")
    places.add("v2-transformWithState", "load", saved, "--replace-state")
    blueprint = unpacked(FIXTURES / "spark-4.2.0-v2-transformWithState.zip", tmp_path / "blueprint")
    places.add("v1-transformWithState-checksums-and-commas", "migrate", str(blueprint), "--partitions", "7")
    run_all(places, seconds=900)


@pytest.mark.slow
def test_a_rewrite_is_right_although_spark_repeats_its_tasks(tmp_path: Path) -> None:
    places, log = Places(tmp_path), tmp_path / "events"
    for archive in ("v1-aggregation", "v2-join-3"):
        places.add(archive, "rescale", "--partitions", "20")
    places.add("v1-windows-lzf", "convert", "--to", "hdfs", "--for-spark", "4.2")
    with two_hosts(tmp_path, 7179) as master:
        settings = {"spark.master": master, "spark.speculation.interval": "10ms", **SPECULATION, **event_log(log)}
        run_all(places, settings=settings, seconds=600)
    assert any(one["Task Info"]["Speculative"] for one in events(log, "SparkListenerTaskEnd"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "finished", ["tmp/rewrite/*/*/source-*.json", "tmp/rewrite/*/*/target-*.json", "switchover/*/made-*"]
)
def test_a_job_continues_after_its_rescale_although_an_executor_died(finished: str, tmp_path: Path) -> None:
    root, log = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path, partitions=24), tmp_path / "events"
    root.grow(4, keys=200)
    command = ["rescale", str(tmp_path / "root"), "--partitions", "32", *APPLY, "--executor", "spark"]

    def is_time() -> bool:
        return sum(1 for _ in (tmp_path / "root" / names.CONTROL).glob(finished)) >= 4

    with executor_killed_when(is_time) as killed:
        [ran] = on_a_cluster(command, executors=3, settings=event_log(log), seconds=600)
    assert killed
    assert ran.exit_code == 0, ran.errors
    removed = min(one["Timestamp"] for one in events(log, "SparkListenerExecutorRemoved"))
    assert any(one["Task Info"]["Launch Time"] > removed for one in events(log, "SparkListenerTaskEnd"))
    root.assert_right(32)
    for _ in range(3):
        root.grow(1)
    statekeeper("snapshot", str(tmp_path / "root"), "--all", "--mode", "full")
    statekeeper("gc", str(tmp_path / "root"), "--retain", "2", "--grace", "0s", "--apply", "--mode", "full")
    root.assert_right(32)
    clean(root.storage, tmp_path)
    assert root.storage.list(TEMP_FOLDER) == []
    statekeeper("rewind", str(tmp_path / "root"), "--to-batch", "5", *APPLY)
