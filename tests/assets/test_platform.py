"""All of it as people start it: the sensor ticks, runs are made, files go, checks turn red and green again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.platform import LOGS
from statestore.format import names
from tests.assets.conftest import grown
from tests.assets.running import REPOSITORY, Running, running
from tests.checkpoints import Checkpoint


@pytest.fixture
def platform(configuration: Path, tmp_path: Path) -> Iterator[Running]:
    home = tmp_path / "home"
    with running(
        tmp_path,
        "pipelines.platform",
        *("--config", str(configuration), "--home", str(home)),
        home=home,
        environment={"STATEKEEPER_HEALTH_CRON": "* * * * *"},
    ) as made:
        yield made


def succeeded(platform: Running, at_least: int = 1) -> list[dict[str, object]]:
    def look() -> list[dict[str, object]] | None:
        runs = platform.runs(statuses=["SUCCESS"])
        return runs if len(runs) >= at_least else None

    return platform.wait_for(f"{at_least} runs that succeeded", look, 150)


def is_green(platform: Running, check: str, green: bool) -> str:
    """What a check says, as soon as it has this colour."""

    def look() -> str | None:
        found = platform.checks("lineage").get(check)
        return found["description"] if found and found["success"] is green else None

    return platform.wait_for(f"{check} is {'green' if green else 'red'}", look, 150)


@pytest.mark.timeout(420)
def test_new_commits_cause_runs_that_shorten_tails_and_delete_by_plan_and_what_breaks_turns_red_until_it_is_mended(
    platform: Running, flights: Checkpoint, configuration: Path
) -> None:
    (first,) = succeeded(platform)[:1]
    assert first["tags"]["dagster/sensor_name"] == "changelog_tail", "nobody asked for it but the sensor"
    assert first["tags"]["dagster/partition"] == "flights"
    (snapshot,) = platform.materializations("snapshot")
    assert (snapshot["longest_tail_before"], snapshot["longest_tail_after"]) == (9, 0)
    assert all(check["success"] for check in platform.checks("lineage").values())

    platform.wait_for(
        "a tick that says why it asks for nothing",
        lambda: any("none is due" in (tick["skipReason"] or "") for tick in platform.ticks("changelog_tail")),
        60,
    )

    assert sorted(log.stem for log in (platform.home / LOGS).iterdir()) == ["code-server", "daemon", "webserver"]
    assert not (platform.home / ".logs_queue").exists(), "Dagster's telemetry has taken logs to send them away"

    flights.grow(5)
    before = {entry.path for entry in flights.storage.list(names.STATE)}
    succeeded(platform, 2)
    retention = platform.materializations("retention")[0]
    assert retention["deleted_files"] == retention["planned_files"] > 0
    gone = before - {entry.path for entry in flights.storage.list(names.STATE)}
    assert 0 < len(gone) <= retention["deleted_files"], "the rest were logs"

    broken = flights.stores[1].changelog(flights.versions[14][1])
    kept = flights.storage.read(broken)
    flights.storage.delete([broken])
    flights.storage.delete([flights.stores[1].snapshot(flights.versions[14][1])])
    platform.launch("flights")
    assert broken in is_green(platform, "lineage_is_gapless", green=False)
    assert len(platform.materializations("retention")) == 2, "nothing was deleted meanwhile"
    flights.storage.create(broken, kept)
    platform.launch("flights")
    is_green(platform, "lineage_is_gapless", green=True)

    grown(configuration.parent, "jobs/orders/state", 2)
    platform.wait_for(
        "a run of the new query", lambda: platform.runs(tags=[{"key": "dagster/partition", "value": "jobs.orders"}]), 60
    )
    platform.wait_for("the health of the fleet", lambda: platform.materializations("fleet_health"), 90)


def test_a_port_in_use_is_said_in_one_line_before_anything_is_started(configuration: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        where = ["--config", str(configuration), "--port", port, "--home", str(tmp_path / "home")]
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.platform", *where],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stdout.startswith(f"port_in_use: port {port} on 127.0.0.1 is in use")
    assert len(done.stdout.splitlines()) == 1
    assert not (tmp_path / "home").exists()


def process_ids(platform: Running) -> dict[str, int]:
    """The children of the platform by what they are."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        if int(stat[1]) == platform.process.pid:
            for name, part in {"code": "grpc", "web": "dagster_webserver", "daemon": "_daemon"}.items():
                if part in command:
                    found[name] = int(entry.name)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_is_killed_maintenance_goes_on(platform: Running, flights: Checkpoint, tmp_path: Path) -> None:
    done = 1
    succeeded(platform, done)
    for victim in ("web", "daemon", "code") * 2:
        ids = platform.wait_for("its processes", lambda: ids if len(ids := process_ids(platform)) == 3 else None, 180)
        os.kill(ids[victim], signal.SIGKILL)
        flights.grow(4)
        done += 1
        succeeded(platform, done)
    assert platform.runs(statuses=["STARTED", "STARTING"]) == []
    flights.assert_right(tmp_path / "host")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_process_is_killed_frees_its_query_by_itself(platform: Running, flights: Checkpoint) -> None:
    succeeded(platform)
    locks = platform.home / "workers"
    before = set(locks.iterdir())
    flights.grow(4)
    deadline = time.monotonic() + 60
    # A run of so small a checkpoint is over in half a second: asked through GraphQL it would be too late.
    while not (new := [holder for lock in set(locks.iterdir()) - before if (holder := holder_of(lock))]):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(new[0], signal.SIGKILL)
    (failed,) = platform.wait_for("a run that failed", lambda: platform.runs(statuses=["FAILURE"]), 180)
    succeeded(platform, 2)
    again = platform.runs(statuses=["SUCCESS"])[0]["tags"]
    assert again["dagster/run_key"] == failed["tags"]["dagster/run_key"].replace("#1", "#2")
    assert platform.runs(statuses=["STARTED", "STARTING"]) == []


def holder_of(lock: Path) -> int | None:
    """The process that holds a lock."""
    inode = str(lock.stat().st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "->" not in fields and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return None


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_beside_the_flights_job_tails_get_short_and_files_go_and_the_job_never_notices(tmp_path: Path) -> None:
    folder = tmp_path / "flights"
    with running(tmp_path, "pipelines.flights.job", "--folder", str(folder), home=folder / "dagster") as platform:
        platform.wait_for("the first run", lambda: platform.runs(statuses=["SUCCESS"]), 180)

        def shortened_and_deleted() -> bool:
            shortened = [one for one in platform.materializations("snapshot") if one["snapshots_taken"]]
            deleted = [one for one in platform.materializations("retention") if one["deleted_files"]]
            assert all(one["longest_tail_after"] < one["longest_tail_before"] for one in shortened)
            assert all(one["deleted_files"] == one["planned_files"] for one in deleted)
            return bool(shortened and deleted)

        platform.wait_for("snapshots and deletions", shortened_and_deleted, 180)
        platform.wait_for("the health of the fleet", lambda: platform.materializations("fleet_health"), 120)
        assert platform.runs(statuses=["FAILURE"]) == []
        for asset in ("snapshot", "lineage", "retention"):
            assert all(check["success"] for check in platform.checks(asset).values()), platform.checks(asset)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_dagsters_storage_nothing_is_lost_but_history(
    configuration: Path, flights: Checkpoint, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    arguments = ("--config", str(configuration), "--home", str(home))
    with running(tmp_path, "pipelines.platform", *arguments, home=home) as first:
        succeeded(first)
    shutil.rmtree(home)
    flights.grow(4)
    with running(tmp_path, "pipelines.platform", *arguments, home=home) as second:
        succeeded(second)
        assert second.materializations("snapshot")[0]["longest_tail_after"] == 0
    flights.assert_right(tmp_path / "host")
