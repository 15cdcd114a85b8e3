"""A drill starts the whole query with Spark, on a clone."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.support.commands import run
from tests.support.migrations import contents
from tests.support.native import FORMAT, OPERATORS, NativeQuery

pytestmark = pytest.mark.spark

SHORT = ("--start-timeout", "60s", "--mode", "snapshots")


@pytest.fixture(scope="module")
def query(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> NativeQuery:
    query = NativeQuery(spark, tmp_path_factory.mktemp("started"), OPERATORS["aggregation"], {FORMAT: "2"})
    query.run(3)
    return query


def application(query: NativeQuery, operator: str = "aggregation") -> str:
    module = [sys.executable, "-m", "tests.support.started_query", str(query.folder), "{checkpoint}"]
    return shlex.join([*module, operator, json.dumps(query.confs)])


def of_state(query: NativeQuery) -> dict[str, bytes]:
    found = contents(query.checkpoint)
    return {path: body for path, body in found.items() if not path.startswith("_statekeeper/")}


def test_a_query_that_commits_again_is_green_and_leaves_no_clone(query: NativeQuery, tmp_path: Path) -> None:
    before = of_state(query)
    scratch = ("--scratch", tmp_path, *SHORT, "--output", "json")
    done = run("drill", query.root, "--start", application(query), *scratch)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["batch"], found["head"], found["is_green"]) == (1, 2, True)
    assert found["committed"] >= 2
    assert "committed batch 2 again" in found["result"]
    assert of_state(query) == before
    assert not list(tmp_path.glob("drill-*"))


@pytest.mark.slow
def test_a_running_query_in_structure_v1_commits_the_batch_after_the_cloned_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = NativeQuery(spark, tmp_path / "query", OPERATORS["aggregation"], {FORMAT: "1"})
    query.run(4)
    done = run("drill", query.root, "--start", application(query), "--scratch", tmp_path, *SHORT, "--output", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["batch"], found["head"], found["is_green"]) == (1, 3, True)
    assert "committed batch 2 again" in found["result"]


def test_sigterm_ends_the_query_and_deletes_the_clone(query: NativeQuery, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sh -c 'echo $$ > {pid}; exec sleep 600' {{checkpoint}}"
    command = [sys.executable, "-m", "statekeeper", "drill", query.root, "--start", script, "--scratch", str(tmp_path)]
    with subprocess.Popen([*command, *SHORT], stderr=subprocess.PIPE) as process:
        while not (pid.exists() and pid.read_text().strip()):
            time.sleep(0.1)
        process.terminate()
        assert process.wait(60) == 130
    assert not psutil.pid_exists(int(pid.read_text()))
    assert not list(tmp_path.glob("drill-*"))


@pytest.mark.slow
def test_a_query_that_spark_does_not_start_is_a_finding_with_its_output(query: NativeQuery, tmp_path: Path) -> None:
    done = run("drill", query.root, "--start", application(query, "join 2"), "--scratch", tmp_path, *SHORT)
    assert done.exit_code == 3, done.output
    assert "the query did not commit batch 2: the command ended with exit code 1" in done.stdout
    assert "lines of its output:" in done.stdout


def test_a_command_that_ends_or_hangs_without_a_commit_is_a_finding(query: NativeQuery, tmp_path: Path) -> None:
    ends = "sh -c 'echo no jar; exit 7' {checkpoint}"
    done = run("drill", query.root, "--start", ends, "--scratch", tmp_path, *SHORT)
    assert done.exit_code == 3, done.output
    assert "the command ended with exit code 7" in done.stdout
    assert "no jar" in done.stdout
    hangs = (
        "drill",
        query.root,
        "--start",
        "sh -c 'sleep 600' {checkpoint}",
        "--scratch",
        tmp_path,
        "--mode",
        "snapshots",
    )
    done = run(*hangs, "--start-timeout", "1s")
    assert done.exit_code == 3, done.output
    assert "the time was over" in done.stdout


def test_a_command_without_the_clone_is_refused_before_anything_starts(query: NativeQuery, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    done = run("drill", query.root, "--start", f"touch {marker}", *SHORT)
    assert done.exit_code == 2, done.output
    assert "does not contain {checkpoint}" in done.output
    assert not marker.exists()
    for on_a_cluster in ("--deploy-mode cluster", "--conf spark.submit.deployMode=cluster"):
        done = run("drill", query.root, "--start", f"touch {on_a_cluster} {{checkpoint}} {marker}")
        assert done.exit_code == 2, done.output
        assert "leave out --deploy-mode cluster" in done.output
    assert not marker.exists()
    done = run("drill", query.root, "--start", "true {checkpoint}", "--sample", "1")
    assert done.exit_code == 2, done.output
    assert "leave out --sample" in done.output
