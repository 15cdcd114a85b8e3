"""The feeder of the flights job appends each day in exactly one commit, after any failure."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from statekeeper.pipelines.flights import departures as source
from statekeeper.pipelines.flights.feeder import APP_ID, Feeder
from statekeeper.statestore.base.errors import SchemaMismatch


@pytest.fixture(scope="module")
def arrivals():
    return source.departures()


def fed_rows(path):
    return DeltaTable(path).to_pyarrow_table().sort_by([(name, "ascending") for name in source.ARRIVAL_ORDER])


def rows_by_commit(path):
    """How many rows each commit but the first, which makes the table, says that it added."""
    history = sorted(DeltaTable(path).history(), key=lambda commit: commit["version"])
    return [commit["operationMetrics"]["num_added_rows"] for commit in history[1:]]


def test_a_fed_table_has_one_day_and_one_file_per_commit(tmp_path, arrivals):
    feeder = Feeder(tmp_path / "departures", arrivals)
    assert (feeder.fed(), feeder.days) == (0, 366)
    assert feeder.feed(5) == 5
    assert feeder.feed(3) == 5
    table = DeltaTable(tmp_path / "departures")
    assert (table.version(), table.transaction_version(APP_ID)) == (5, 4)
    for version, day in enumerate(source.days(arrivals)[:5], start=1):
        log = tmp_path / "departures" / "_delta_log" / f"{version:020}.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        [added] = [action["add"] for action in actions if "add" in action]
        assert json.loads(added["stats"])["numRecords"] == day.num_rows
        assert {"txn": {"appId": APP_ID, "version": version - 1}} in actions


def test_a_restarted_feeder_continues_and_stops_at_the_last_day(tmp_path, arrivals):
    week = pa.concat_tables(source.days(arrivals)[:7])
    Feeder(tmp_path / "departures", week).feed(4)
    again = Feeder(tmp_path / "departures", week)
    assert again.fed() == 4
    assert again.feed(1000) == 7
    assert again.feed(1000) == 7
    assert fed_rows(tmp_path / "departures").cast(source.SCHEMA).equals(week)


def test_a_feeder_that_lost_the_race_for_a_day_does_not_append_it_again(tmp_path, arrivals):
    feeder = Feeder(tmp_path / "departures", arrivals)
    stale = DeltaTable(tmp_path / "departures")
    feeder.feed(2)
    feeder._append(stale, 0)  # a feeder that read the log before the other one committed
    assert feeder.fed() == 2
    assert fed_rows(tmp_path / "departures").num_rows == sum(day.num_rows for day in source.days(arrivals)[:2])


def test_a_table_with_other_data_is_rejected(tmp_path):
    write_deltalake(tmp_path / "departures", pa.table({"other": [1]}))
    with pytest.raises(SchemaMismatch, match="its columns are not those of the flights"):
        Feeder(tmp_path / "departures", source.SCHEMA.empty_table())


def test_commits_that_a_stream_may_still_read_are_not_removed(tmp_path, arrivals):
    Feeder(tmp_path / "departures", arrivals.slice(0, 0))
    assert DeltaTable(tmp_path / "departures").metadata().configuration["delta.enableExpiredLogCleanup"] == "false"


FEED = """
import sys
from statekeeper.pipelines.flights.feeder import Feeder
feeder = Feeder(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
feeder.feed(int(sys.argv[2]))
"""


def ready_to_feed(path, upto_day):
    """A feeder in its own process, which starts on a signal."""
    command = [sys.executable, "-c", FEED, path, str(upto_day)]
    feeding = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert feeding.stdout.readline() == "ready\n"
    return feeding


def go(*feeders):
    for feeding in feeders:
        feeding.stdin.write("go\n")
        feeding.stdin.flush()


@pytest.mark.slow
def test_a_feeder_killed_at_any_point_appends_each_day_once(tmp_path, arrivals):
    path, days, chance = tmp_path / "departures", source.days(arrivals), random.Random(7)
    reached = []
    for _ in range(6):
        feeding = ready_to_feed(path, len(days))
        go(feeding)
        time.sleep(chance.uniform(0.0, 0.4))
        os.kill(feeding.pid, signal.SIGKILL)
        assert feeding.wait() == -signal.SIGKILL
        reached.append(Feeder(path, arrivals).fed())
        assert fed_rows(path).num_rows == sum(day.num_rows for day in days[: reached[-1]])
    assert reached == sorted(reached)
    assert 0 < reached[-1] < len(days), "the kills came too early or too late to say anything"
    last = Feeder(path, arrivals).feed(reached[-1] + 3)
    assert fed_rows(path).cast(source.SCHEMA).equals(pa.concat_tables(days[:last]))
    assert rows_by_commit(path) == [day.num_rows for day in days[:last]]
    assert len(DeltaTable(path).file_uris()) == last


def test_a_data_file_without_its_commit_is_not_read_and_its_day_is_appended_once(tmp_path, arrivals):
    # A kill between the two steps of a commit leaves the file of a day without its log entry.
    path, days = tmp_path / "departures", source.days(arrivals)
    Feeder(path, arrivals).feed(3)
    (path / "_delta_log" / f"{3:020}.json").unlink()
    again = Feeder(path, arrivals)
    assert again.fed() == 2
    assert again.feed(4) == 4
    assert fed_rows(path).cast(source.SCHEMA).equals(pa.concat_tables(days[:4]))
    assert len(list(path.glob("*.parquet"))) == 5


def test_an_incompletely_created_table_is_completed(tmp_path, arrivals):
    (tmp_path / "departures" / "_delta_log").mkdir(parents=True)
    feeder = Feeder(tmp_path / "departures", arrivals)
    assert (feeder.fed(), feeder.feed(1)) == (0, 1)


def test_two_feeders_of_one_table_append_each_day_once(tmp_path, arrivals):
    path, days = tmp_path / "departures", source.days(arrivals)
    feeders = [ready_to_feed(path, 60) for _ in range(2)]
    go(*feeders)
    assert [feeding.wait(timeout=120) for feeding in feeders] == [0, 0]
    assert fed_rows(path).cast(source.SCHEMA).equals(pa.concat_tables(days[:60]))
    assert rows_by_commit(path) == [day.num_rows for day in days[:60]]
    # The loser of a race for a day leaves a data file that no commit names: without one, they never met.
    assert len(list(path.glob("*.parquet"))) > 60


def test_a_feeder_waits_for_the_reader_and_ends_with_the_last_day(tmp_path, arrivals):
    feeder = Feeder(tmp_path / "departures", pa.concat_tables(source.days(arrivals)[:9]))
    read, widest = 0, 0
    stop = threading.Event()
    ahead = threading.Thread(target=feeder.run_ahead, args=(stop, lambda: read, 3, 0.01))
    ahead.start()
    deadline = time.monotonic() + 60
    while ahead.is_alive() and time.monotonic() < deadline:
        fed = feeder.fed()
        widest = max(widest, fed - read)
        read = min(read + 1, fed)
        time.sleep(0.02)
    ahead.join(timeout=1)
    assert not ahead.is_alive()
    assert feeder.fed() == 9
    assert 0 < widest <= 3


def test_a_feeder_ahead_of_an_idle_reader_can_be_stopped(tmp_path, arrivals):
    feeder = Feeder(tmp_path / "departures", arrivals)
    stop = threading.Event()
    ahead = threading.Thread(target=feeder.run_ahead, args=(stop, lambda: 0, 2, 60.0))
    ahead.start()
    deadline = time.monotonic() + 60
    while feeder.fed() < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    ahead.join(timeout=10)
    assert not ahead.is_alive()
    assert feeder.fed() == 2
