"""`statekeeper maintain`: once for a person, from cron, and as a process that stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from statekeeper.statestore.maintenance.rounds import delivery
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import run
from tests.support.s3_server import S3Server
from tests.support.webhooks import Webhook
from tests.support.written import Written, written_checkpoints


@pytest.fixture
def config(root: Path, checkpoint: Checkpoint, tmp_path: Path) -> Path:
    del checkpoint
    file = tmp_path / "prod.toml"
    file.write_text(f'[roots.orders]\nurl = "{root}"\nteam = "payments"\nsnapshot = {{ changelogs = 3 }}\n')
    return file


def visits(result: Any) -> dict[str, dict[str, Any]]:
    return {one["root"]: one for one in json.loads(result.stdout)["visits"]}


def test_a_person_maintains_a_root_at_once(root: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(60)
    shown = run("maintain", root, "--dry-run")
    assert shown.exit_code == 3
    assert "WARN" in shown.output
    assert "The longest tail has 64 changelogs" in shown.output
    assert not list(root.glob("state/*/*/*.zip"))
    result = run("maintain", root, "--output", "json")
    assert result.exit_code == 0
    assert visits(result)[str(root)]["snapshots_taken"] == 2
    assert run("maintain", root).exit_code == 0
    checkpoint.assert_right(tmp_path / "fresh")


def test_cron_maintains_only_what_is_due_and_tells_a_problem_once(
    config: Path, checkpoint: Checkpoint, root: Path, tmp_path: Path
) -> None:
    once = ("--config", config, "maintain", "--all", "--once", "--state", tmp_path / "state.json")
    first = run(*once, "--output", "json")
    assert visits(first)["orders"]["snapshots_taken"] == 2
    assert "1 checkpoint not due" in run(*once).output
    checkpoint.grow(3)
    gone = root / checkpoint.stores[0].changelog(checkpoint.versions[-1][0])
    gone.rename(tmp_path / "gone")
    second = run(*once)
    assert second.exit_code == 3
    assert "orders: OK -> ERROR: state/0/0/7_" in second.stderr
    assert run(*once, "--sweep", "0s").stderr == ""


def test_a_channel_whose_environment_variable_is_not_set_is_told_before_the_first_problem(
    config: Path, tmp_path: Path
) -> None:
    config.write_text(f'{config.read_text()}[teams.payments]\nslack = "env:NOT_SET_ANYWHERE"\n')
    once = run("--config", config, "maintain", "--all", "--once", "--state", tmp_path / "state.json")
    assert "warning: teams.payments.slack: the environment variable 'NOT_SET_ANYWHERE' is not set" in once.stderr
    assert run("--config", config, "maintain", "--all").stderr == "", "it sends no messages"


def test_a_root_that_cannot_be_read_is_shown_beside_the_others(config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config.write_text(f'{config.read_text()}[roots.broken]\nurl = "{tmp_path / "file"}"\n')
    result = run("--config", config, "maintain", "--all", "--output", "json")
    body = json.loads(result.stdout)
    assert [one["root"] for one in body["visits"]] == ["orders"]
    assert result.exit_code == {"ERROR": 1, "WARN": 3}[body["absent"]["broken"]["status"]]


def test_a_webhook_that_hangs_costs_one_wait_in_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_TIMEOUT_SECONDS", 0.1)
    config = tmp_path / "prod.toml"
    with Webhook.opened() as webhook:
        webhook.hangs = True
        teams = f'[defaults]\nteam = "payments"\n[teams.payments]\nslack = "{webhook.url}"\n'
        config.write_text(teams + "".join(f'[roots.{name}]\nurl = "{tmp_path / name}"\n' for name in ("a", "b", "c")))
        for passes in (1, 2):
            shown = run("--config", config, "maintain", "--all", "--once", "--state", tmp_path / "state.json")
            assert len(webhook.bodies) == passes
            assert shown.stderr.count("OK -> WARN") == 3
            assert shown.stderr.count("it has just failed to answer") == 2


def test_a_query_that_spark_maintains_is_audited_and_is_no_failure(tmp_path: Path) -> None:
    (archive,) = (one for one in written_checkpoints("hdfs") if one.stem.endswith("hdfs-aggregation"))
    written = Written.unpacked(archive, tmp_path)
    shown = run("maintain", written.checkpoint)
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("by Spark") == 2
    (one,) = visits(run("maintain", written.checkpoint, "--output", "json")).values()
    assert (one["status"], one["problems"], one["is_left_to_spark"]) == ("OK", [], True)
    assert one["figures"]["stores"] == 2
    for file in written.checkpoint.glob("state/0/0/[0-9]*"):
        file.unlink()
    shown = run("maintain", written.checkpoint)
    assert shown.exit_code == 3
    assert "ERROR: " in shown.output
    assert "convert" not in shown.output


@pytest.mark.parametrize(
    "given",
    [
        ("maintain",),
        ("maintain", "ROOT", "--all"),
        ("maintain", "ROOT", "--watch", "1s"),
        ("maintain", "--all", "--watch", "1s", "--once"),
        ("maintain", "--all", "--once", "--listen", "127.0.0.1:1"),
        ("maintain", "--all", "--watch", "1s", "--listen", "1"),
        ("maintain", "--all", "--watch", "0s"),
    ],
)
def test_options_that_contradict_each_other_are_rejected(given: tuple[str, ...], config: Path) -> None:
    assert run("--config", config, *given).exit_code == 2


@contextmanager
def watching(config: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "statekeeper",
        "--config",
        config,
        "maintain",
        "--all",
        "--watch",
        "1s",
        *options,
    ]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_process_that_stays_maintains_serves_its_figures_and_ends_at_sigterm(
    config: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file, state = tmp_path / "fleet.prom", tmp_path / "state.json"
    port = 20_000 + os.getpid() % 20_000
    config.write_text(f'{config.read_text()}[teams.payments]\nslack = "env:NOT_SET_ANYWHERE"\n')
    with watching(config, "--state", state, "--metrics", file, "--listen", f"127.0.0.1:{port}") as process:
        assert process.stdout is not None
        assert ": OK: 2 snapshots, " in process.stdout.readline()
        checkpoint.grow(3)
        assert ": OK: 2 snapshots, " in process.stdout.readline()
        served = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        assert "ended by SIGTERM" in said
        assert said.count("NOT_SET_ANYWHERE") == 1, "it warns at the start, and not at each pass"
        assert process.returncode == 0
    for text in (served, file.read_text()):
        found = {
            (sample.name, sample.labels["query"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "query" in sample.labels
        }
        assert found["statekeeper_query_status", "orders"] == 0
        assert found["statekeeper_query_version", "orders"] == 7
        assert found["statekeeper_query_snapshots_total", "orders"] == 4
    # The counters survive the process, and what it has seen is not due.
    result = run("--config", config, "maintain", "--all", "--once", "--state", state, "--output", "json")
    assert json.loads(result.stdout)["not_due"] == {"orders": "0 new batches of 3"}


def test_a_new_process_fetches_no_sst_file_that_the_one_before_it_has_kept(s3_server: S3Server, tmp_path: Path) -> None:
    bucket, config, scratch = s3_server.make_bucket(), tmp_path / "prod.toml", tmp_path / "scratch"
    options = {**s3_server.options, "hedge": "false"}
    checkpoint = Checkpoint(open_storage(f"s3://{bucket}/root", options=options), tmp_path / "job")
    storage = ", ".join(f'{key} = "{value}"' for key, value in options.items())
    config.write_text(
        f'[defaults]\nsnapshot = {{ changelogs = 3 }}\n[roots.orders]\nurl = "s3://{bucket}/root"\n'
        f"storage = {{ {storage} }}\n"
    )

    def maintain(*given: object) -> None:
        command = [sys.executable, "-m", "statekeeper", "--config", config, "maintain", "--all", "--once"]
        command += ["--state", tmp_path / "state.json", "--scratch", scratch, *given]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)

    fetched = []
    for given in ((), (), ("--kept-tables", "0")):
        checkpoint.grow(3)
        fetched.append(s3_server.fetched(bucket, lambda given=given: maintain(*given)))
    stores = len(checkpoint.stores)
    assert fetched[1]["sst"] == 0
    assert fetched[2]["sst"] == 2 * stores
    assert len(list(scratch.rglob("kept-tables/*/*.sst"))) == 2 * stores
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")


def test_a_process_that_is_killed_leaves_its_memory_to_the_next_one(
    config: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    del checkpoint
    state = tmp_path / "state.json"
    for expected in (": OK: 2 snapshots, ", ": OK: 0 snapshots, "):
        with watching(config, "--state", state, "--sweep", "0.1s") as process:
            assert process.stdout is not None
            assert expected in process.stdout.readline()
            process.kill()
