"""A command that starts Spark itself: `executor = "spark"` and `[spark]` in statekeeper.toml."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.cli.application import APPLICATION
from statekeeper.statestore.maintenance.executors import submit
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import run
from tests.support.submitted import SUBMIT, spark_table


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A root whose work is Spark's, beside a small one. This process has no session, also after other tests with Spark."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    (tmp_path / "statekeeper.toml").write_text(
        '[roots.large]\nurl = "large"\nexecutor = "spark"\n[roots.small]\nurl = "small"\n'
    )
    for name in ("small", "large"):
        made = Checkpoint(open_storage(str(tmp_path / name)), tmp_path / f"job of {name}")
        made.grow(3)
    return made


def files(checkpoint: Checkpoint) -> list[str]:
    return [one.path for one in checkpoint.storage.list("", hidden=True)]


def test_without_a_command_for_spark_the_error_has_the_complete_one_and_nothing_is_changed(
    large: Checkpoint, tmp_path: Path
) -> None:
    before, config = files(large), str(tmp_path / "statekeeper.toml")
    done = run("--config", config, "snapshot", "large", "--all", "--output", "json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["code"]) == (2, "unsupported_environment")
    by_hand = shlex.join(["spark-submit", str(APPLICATION), "--config", config, "snapshot", "large", "--all"])
    assert f"run: {by_hand} --output json. Or let this command start Spark" in error["hint"]
    assert files(large) == before
    several = run("--config", config, "audit", "small", "large", "--deep")
    assert several.exit_code == 2, "before the result of the first root"
    assert "==" not in several.stdout


def test_a_drill_that_is_compared_with_spark_starts_no_cluster(large: Checkpoint, tmp_path: Path) -> None:
    config = str(tmp_path / "statekeeper.toml")
    for more in ([], ["--dry-run"]):
        done = run("--config", config, "drill", "large", "--against-spark", *more, "--output", "json")
        error = json.loads(done.stdout)["error"]
        assert (done.exit_code, error["code"]) == (2, "unsupported_environment")
        assert f"run: statekeeper --config {config} drill large --against-spark --executor local." in error["hint"]
    assert (
        run("--config", config, *shlex.split("drill large --against-spark --executor local --dry-run")).exit_code == 0
    )


def test_a_plan_needs_no_cluster_and_the_option_overrides_the_file(large: Checkpoint, tmp_path: Path) -> None:
    config = tmp_path / "statekeeper.toml"
    planned = [["snapshot", "large", "--all", "--dry-run"], ["gc", "large"], ["drill", "large", "--dry-run"]]
    read = [["audit", "large"], ["audit", "small", "large"], ["inspect", "large"], ["audit", "small", "--deep"]]
    here = [["audit", "large", "--deep", "--executor", "local"], ["snapshot", "large", "--all", "--executor", "local"]]
    for one in (*planned, *read, *here):
        assert run("--config", config, *one).exit_code == 0, one
    assert run("--config", config, "audit", "small", "--deep", "--executor", "spark").exit_code == 2


def test_a_command_that_does_not_exist_is_an_error_of_the_configuration(large: Checkpoint, tmp_path: Path) -> None:
    config = tmp_path / "statekeeper.toml"
    config.write_text(config.read_text() + '[spark]\nsubmit = ["/opt/spark/bin/spark-submit"]\n')
    done = run("--config", config, "snapshot", "large", "--all")
    assert done.exit_code == 2
    assert "/opt/spark/bin/spark-submit cannot be started: No such file or directory" in done.stderr


def test_the_driver_on_this_machine_has_this_python_and_the_executors_that_of_their_archive() -> None:
    archive = [
        "spark-submit",
        "--archives",
        "a.tar.gz#environment",
        "--conf",
        "spark.pyspark.python=./environment/bin/python",
    ]
    driver = ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    for words, added in (
        (archive, driver),
        ([*archive, "--conf", "spark.pyspark.driver.python=/usr/bin/python3"], []),
        ([*archive, "--deploy-mode", "cluster"], []),
        ([*archive, "--conf=spark.submit.deployMode=cluster"], []),
        (["spark-submit", "--master", "yarn"], []),
    ):
        found = submit.command_line(words, APPLICATION, ["audit", "large"])
        assert Path(found[0]).name == "spark-submit"
        assert found[1:] == [*words[1:], *added, str(APPLICATION), "audit", "large"]


@pytest.mark.spark
def test_a_root_with_executor_spark_starts_spark_and_has_the_result_and_the_exit_code(
    large: Checkpoint, tmp_path: Path
) -> None:
    config = tmp_path / "statekeeper.toml"
    config.write_text(config.read_text() + spark_table())
    done = started(config, "snapshot", "large", "--all", "--output", "json")
    printed, said = done.communicate(timeout=120)
    assert done.returncode == 0, said
    assert len(json.loads(printed)["taken"]) == len(large.stores)
    assert f"starting Spark: {SUBMIT} --master 'local[2]'" in said
    large.assert_snapshots_are_right(tmp_path / "host")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_ends_its_spark_job_and_releases_the_lease(
    number: signal.Signals, tmp_path: Path
) -> None:
    root = Checkpoint(open_storage(str(tmp_path / "large")), tmp_path / "job", partitions=80)
    root.grow(3)
    config = tmp_path / "statekeeper.toml"
    config.write_text('[roots.large]\nurl = "large"\nexecutor = "spark"\n' + spark_table("local[1]"))
    begun = started(config, "snapshot", "large", "--all", "--output", "json")
    deadline = time.monotonic() + 100
    while len([one for one in files(root) if one.endswith(".zip")]) < 5:
        assert begun.poll() is None, begun.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    below = psutil.Process(begun.pid).children(recursive=True)
    assert {"java", "python"} <= {one.name().rstrip("0123456789.") for one in below}
    begun.send_signal(number)
    printed, said = begun.communicate(timeout=100)
    assert begun.returncode == 130, said
    taken = json.loads(printed)["taken"]
    assert 0 < len(taken) < len(root.stores), "what is finished is shown"
    assert "interrupted: finished steps are kept" in said, "the messages are not in the result"
    assert not psutil.wait_procs(below, timeout=20)[1]
    lease.require_free(root.storage, clock=SystemClock())
    again = started(config, "snapshot", "large", "--all", "--executor", "local", "--output", "json")
    again.communicate(timeout=100)
    assert again.returncode == 0
    root.assert_snapshots_are_right(tmp_path / "host")


@pytest.mark.slow
@pytest.mark.spark
def test_an_audit_of_several_roots_starts_spark_once_before_the_first_result(large: Checkpoint, tmp_path: Path) -> None:
    config = tmp_path / "statekeeper.toml"
    config.write_text(config.read_text() + spark_table("local-cluster[2,1,512]"))
    done = started(config, "audit", "--all", "--deep", "--output", "json")
    printed, said = done.communicate(timeout=120)
    assert done.returncode == 0, said
    assert [one["root"] for one in json.loads(printed)["roots"]] == ["large", "small"]
    assert said.count("starting Spark: ") == 1


def started(config: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "statekeeper", "--config", str(config), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
