"""The platform as users start it: the sensor ticks, runs start, files are deleted, checks turn red and green."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from statekeeper.pipelines.flights.job import Places
from statekeeper.resources.launcher.platform import LOGS
from statekeeper.resources.worker import HOLDER_TAG
from statekeeper.statestore.format import names
from tests.assets.conftest import grown
from tests.support.checkpoints import Checkpoint
from tests.support.final_files import examine
from tests.support.flights_runs import batches_of_a_run
from tests.support.processes import children_of
from tests.support.running import REPOSITORY, Running, assert_gone, running, succeeded


def platform_of(configuration: Path, port: int | None = None) -> AbstractContextManager[Running]:
    """Run `make platform` for a configuration, with DAGSTER_HOME in the same folder."""
    folder = configuration.parent
    home = folder / "home"
    arguments = ("--config", str(configuration), "--home", str(home))
    environment = {"STATEKEEPER_HEALTH_CRON": "* * * * *"}
    return running(
        folder, "statekeeper.resources.launcher.platform", *arguments, home=home, environment=environment, port=port
    )


@pytest.fixture
def platform(configuration: Path) -> Iterator[Running]:
    with platform_of(configuration) as made:
        yield made


def is_green(platform: Running, check: str, green: bool) -> str:
    """Wait until the fleet's verdict on a check has this result, and return its description. A run logs it after the
    evaluations of its queries."""

    def look() -> str | None:
        found = platform.checks("lineage").get(check)
        is_verdict = found is not None and found["description"].startswith(("Red queries", "The check passes"))
        return found["description"] if found and is_verdict and found["success"] is green else None

    return platform.wait_for(f"{check} is {'green' if green else 'red'}", look, 150)


@pytest.mark.timeout(420)
def test_new_commits_cause_runs_that_shorten_tails_and_delete_and_damage_is_red_until_repaired(
    platform: Running, flights: Checkpoint, configuration: Path
) -> None:
    (first,) = succeeded(platform)[:1]
    assert first["tags"]["dagster/sensor_name"] == "changelog_tail", "nobody asked for it but the sensor"
    assert first["tags"]["statekeeper/unfinished"] == "none"
    (snapshot,) = platform.materializations("snapshot")
    assert (snapshot["query"], snapshot["run"]) == ("flights", first["runId"])
    assert (snapshot["longest_tail_before"], snapshot["longest_tail_after"]) == (9, 0)
    assert all(check["success"] for check in platform.checks("lineage").values())

    platform.wait_for(
        "a tick that says why it asks for nothing",
        lambda: any("none is due" in (tick["skipReason"] or "") for tick in platform.ticks("changelog_tail")),
        60,
    )

    assert sorted(log.stem for log in (platform.home / LOGS).iterdir()) == ["code-server", "daemon", "webserver"]
    assert (platform.home / "dagster.yaml").read_text() == (REPOSITORY / "dagster.yaml").read_text()
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
    red = is_green(platform, "lineage_is_gapless", green=False)
    assert red.startswith(f"Red queries: 1 of 1. Worst: flights: {broken}"), "the page shows the fleet's verdict"
    assert len(platform.materializations("retention")) == 2, "nothing was deleted meanwhile"
    flights.storage.create(broken, kept)
    platform.launch("flights")
    is_green(platform, "lineage_is_gapless", green=True)

    grown(configuration.parent, "jobs/orders/state", 2)
    platform.wait_for(
        "a visit of the new query",
        lambda: "jobs.orders" in {one["query"] for one in platform.materializations("lineage")},
        60,
    )
    platform.wait_for("the health of the fleet", lambda: platform.materializations("fleet_health"), 90)


@pytest.mark.parametrize("module", ["statekeeper.resources.launcher.platform", "statekeeper.pipelines.flights.job"])
def test_a_port_in_use_is_reported_in_one_line_before_any_process_starts(
    configuration: Path, tmp_path: Path, module: str
) -> None:
    folder = tmp_path / "folder"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        of_platform = ["--config", str(configuration), "--home", str(folder)]
        where = of_platform if module == "statekeeper.resources.launcher.platform" else ["--folder", str(folder)]
        done = subprocess.run(
            [sys.executable, "-m", module, *where, "--port", port],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stdout.startswith(f"port_in_use: port {port} on 127.0.0.1 is in use")
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")
    assert not [path for path in folder.rglob("*") if path.name != "statekeeper.toml"]


def test_a_user_configuration_that_dagster_rejects_is_unchanged_and_the_failed_process_is_named(
    configuration: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("storage: {no such: storage}\n")
    with platform_of(configuration) as platform:
        platform.wait_for("a word of it", lambda: "daemon down" in platform.log.read_text(), 120)
        assert "no such" in (home / LOGS / "daemon.log").read_text()
    assert (home / "dagster.yaml").read_text() == "storage: {no such: storage}\n"


_COMMANDS = {"webserver": "dagster_webserver", "daemon": "dagster-daemon", "code server": "\0grpc\0"}


def process_ids(platform: Running) -> dict[str, int]:
    """Return the child processes of the platform by kind."""
    children = children_of(platform.process.pid)
    return {name: one.id for one in children for name, part in _COMMANDS.items() if part in one.command}


def kill_one(platform: Running, victim: str) -> None:
    """SIGKILL to one of the three, as soon as all of them are up."""
    ids = platform.wait_for("its processes", lambda: ids if len(ids := process_ids(platform)) == 3 else None, 180)
    os.kill(ids[victim], signal.SIGKILL)


def maintained_since(platform: Running, at_seconds: float, job: str = "maintain_queries") -> None:
    """Wait for a run of a job that began after this moment and succeeded."""

    def look() -> bool:
        return any(run["startTime"] > at_seconds for run in platform.runs(job, statuses=["SUCCESS"]))

    platform.wait_for("a run that succeeded since", look, 240)


def at_work(platform: Running) -> list[dict[str, object]]:
    """The runs of any job that have begun, or wait, and have not ended."""
    return platform.runs(None, statuses=["QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_maintenance_continues_after_any_process_is_killed(
    platform: Running, flights: Checkpoint, tmp_path: Path
) -> None:
    done = 1
    succeeded(platform, done)
    for victim in ("webserver", "daemon", "code server") * 2:
        kill_one(platform, victim)
        flights.grow(4)
        done += 1
        succeeded(platform, done)
    platform.wait_for("an end of all runs", lambda: not at_work(platform), 60)
    flights.assert_right(tmp_path / "host")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_launcher_ends_all_processes_and_the_next_one_uses_the_same_port(
    configuration: Path, flights: Checkpoint, tmp_path: Path
) -> None:
    with platform_of(configuration) as first:
        succeeded(first)
        sessions = first.sessions()
        assert len(sessions) == 5, "itself, its guardian, and the three"
        first.process.kill()
        assert_gone(sessions)
    flights.grow(4)
    with platform_of(configuration, port=first.port) as second:
        succeeded(second, 2)
    flights.assert_right(tmp_path / "host")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_run_releases_its_query(platform: Running, flights: Checkpoint) -> None:
    succeeded(platform)
    flights.grow(4)
    killed = killed_run(platform)
    (failed,) = platform.wait_for("a run that failed", lambda: platform.runs(statuses=["FAILURE"]), 240)
    assert failed["runId"] == killed
    succeeded(platform, 2)
    again = platform.runs(statuses=["SUCCESS"])[0]["tags"]
    assert again["dagster/run_key"] == failed["tags"]["dagster/run_key"].replace("#1", "#2")
    assert platform.runs(statuses=["STARTED", "STARTING"]) == []


def killed_run(platform: Running) -> str:
    """SIGKILL to the process of the next run of `maintain_queries` that is at work. Returns the id of the run.

    The run is found in Dagster's storage: on so small a checkpoint it is over in half a second, before GraphQL answers.
    """
    at_work = """SELECT run_id, value FROM run_tags JOIN runs USING (run_id)
        WHERE key = ? AND pipeline_name = 'maintain_queries' AND status = 'STARTED'"""
    deadline = time.monotonic() + 240
    with closing(sqlite3.connect(f"file:{platform.home}/history/runs.db?mode=ro", uri=True)) as storage:
        while (found := storage.execute(at_work, (HOLDER_TAG,)).fetchone()) is None:
            assert time.monotonic() < deadline, "no run began"
            time.sleep(0.005)
    run_id, holder = found
    os.kill(int(holder.partition(", ")[0].rpartition(":")[2]), signal.SIGKILL)
    return str(run_id)


def fed_days(folder: Path) -> int:
    """How many days of flights have departed."""
    return DeltaTable(folder / "departures").version()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_kills_during_the_flights_job_leave_no_stuck_run_and_correct_state(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "flights"
    home = folder / "dagster"
    arguments = ("--folder", str(folder))
    killed = []
    with running(tmp_path, "statekeeper.pipelines.flights.job", *arguments, home=home) as first:
        maintained_since(first, 0)
        # The flights of the year last four minutes: enough for one kill of each.
        for victim in ("run", "webserver", "daemon", "code server"):
            days = fed_days(folder)
            if victim == "run":
                killed.append(killed_run(first))
            else:
                kill_one(first, victim)
            maintained_since(first, time.time())
            assert fed_days(folder) > days, "flights went on departing"
        sessions = first.sessions()
        first.process.kill()
        assert_gone(sessions)
    with running(tmp_path, "statekeeper.pipelines.flights.job", *arguments, home=home, port=first.port) as second:
        maintained_since(second, time.time())
    days = fed_days(folder) + 2
    batches_of_a_run(folder, days, seconds=400)
    configuration = ("--config", str(folder / "statekeeper.toml"))
    with running(
        tmp_path, "statekeeper.resources.launcher.platform", *configuration, "--home", str(home), home=home
    ) as last:
        last.wait_for("an end of all runs", lambda: not at_work(last), 300)
        launched = time.time()
        last.launch("flights")
        maintained_since(last, launched, "maintain_query")
        for asset in ("snapshot", "lineage", "retention"):
            assert all(check["success"] for check in last.checks(asset).values()), last.checks(asset)
        failed = {run["runId"] for run in last.runs(statuses=["FAILURE"])}
        assert set(killed) <= failed
    assert examine(Places(folder), days, retained=8).restored_versions > 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_during_the_flights_job_tails_shorten_files_are_deleted_and_damage_is_red_until_repaired(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "flights"
    with running(
        tmp_path, "statekeeper.pipelines.flights.job", "--folder", str(folder), home=folder / "dagster"
    ) as platform:
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

        # The job has the changes of this file in its local copy, and continues.
        broken = max((folder / "state" / "_statekeeper" / "log").glob("*.log"), key=version_of)
        kept = broken.read_bytes()
        broken.unlink()
        platform.launch("flights")
        assert broken.name in is_green(platform, "lineage_is_gapless", green=False)
        broken.write_bytes(kept)
        platform.launch("flights")
        is_green(platform, "lineage_is_gapless", green=True)


def version_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_dagsters_storage_only_history_is_lost(
    configuration: Path, flights: Checkpoint, tmp_path: Path
) -> None:
    with platform_of(configuration) as first:
        succeeded(first)
    shutil.rmtree(first.home)
    flights.grow(4)
    with platform_of(configuration) as second:
        succeeded(second)
        assert second.materializations("snapshot")[0]["longest_tail_after"] == 0
    flights.assert_right(tmp_path / "host")
