"""A few kills of the flights job for CI (`make kill-test` runs many), and tests of the parts of the kill test."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from statekeeper.pipelines.batch.progress import Phase
from tests.faults.flights_under_fire import AT_ONCE, SOMEWHERE_IN
from tests.faults.kill_points import Point, Shot, shots
from tests.support.processes import in_session, kill


def test_forty_kills_hit_each_phase_of_the_protocol_at_least_three_times():
    planned = shots(40, random.Random(7))
    by_point = Counter(shot.point for shot in planned)
    assert set(by_point) == set(Point)
    phases = Counter(dict.fromkeys(Phase, 0))
    for phase, point in AT_ONCE.items():
        phases[phase] += by_point[point]
    for point, phase in SOMEWHERE_IN.items():
        phases[phase] += by_point[point]
    assert set(phases) == set(Phase)
    assert min(phases.values()) >= 3
    assert min(by_point[point] for point in (Point.JVM_START, Point.IDLE, Point.FEEDER)) >= 3
    assert {shot.batches for shot in planned} == {1, 2, 3, 4, 5, 6}


def test_a_seed_reproduces_the_kills():
    assert shots(40, random.Random(3)) == shots(40, random.Random(3))
    assert shots(40, random.Random(3)) != shots(40, random.Random(4))
    assert [Shot.parse(shot.encode()) for shot in shots(40, random.Random(3))] == shots(40, random.Random(3))


def test_the_processes_of_a_session_are_found_and_killed_by_their_ids():
    # The second process has its own process group, as PySpark's workers have.
    leaves = "import os, time; os.fork() or os.setpgid(0, 0); time.sleep(60)"
    leader = subprocess.Popen([sys.executable, "-c", leaves], start_new_session=True)
    end = time.monotonic() + 60
    while len(in_session(leader.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    found = [process.id for process in in_session(leader.pid)]
    kill(found)
    assert len(found) == 2
    assert os.getpid() not in found
    assert leader.wait(20) == -signal.SIGKILL
    while in_session(leader.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert in_session(leader.pid) == []


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_a_job_killed_before_and_after_its_commit_ends_with_the_facts_and_state_that_pandas_computes():
    report = run("--small", "--seed", "7")
    assert report["  together"] == "2"
    assert report["  found in the sink on restart"] == "1"
    assert report["  found done on restart"] == "1"
    assert int(report["rows of state read by Spark, equal to pandas"]) > 1000
    assert int(report["timers read by Spark, equal to pandas"]) > 100
    assert int(report["stops of aircraft, equal to pandas"]) > 100
    assert report["negative controls that turned red"] == "6"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_killed_between_its_two_sinks_completes_the_second():
    report = run("--point", Point.ONE_SINK.value, "--kills", "3")
    assert report["  one sink written, the other not"] == "3"
    assert report["  found in the sink on restart"] == "3"


def run(*arguments: str) -> dict[str, str]:
    """The figures of a kill test: name -> value."""
    command = [sys.executable, "-m", "tests.faults.kill_test", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1150)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) > 1)
