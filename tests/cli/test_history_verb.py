"""`statekeeper history` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import DestinationNotEmpty
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import open_storage
from tests.support.commands import json_output, run
from tests.support.histories import a_run, asked
from tests.support.keyed_roots import KeyedRoot

STARTED = 1_700_000_000.0
"""Older than the default retention of the tables."""


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """Two queries of a file with a place for the tables, each with a run that is too old for them."""
    for name in ("orders", "clicks"):
        root = KeyedRoot(open_storage(str(tmp_path / name)), tmp_path / "hosts" / name, partitions=1)
        root.grow(1, keys=2)
        a_run(root.storage, "gc", STARTED, plan=[{"head": 1}], outcome=[])
    file = tmp_path / "statekeeper.toml"
    file.write_text(
        '[history]\nurl = "history"\n[defaults]\nteam = "shop"\n'
        '[roots.orders]\nurl = "orders"\n[roots.clicks]\nurl = "clicks"\n'
    )
    return file


def test_the_history_of_all_roots_is_added_to_the_place_of_their_file(configuration: Path, tmp_path: Path) -> None:
    plan = run("--config", configuration, "history", "--all", "--keep", "9999d", "--dry-run")
    assert plan.exit_code == 0, plan.output
    assert "would add 2 runs of 2 roots" in plan.output
    assert plan.output.splitlines()[-1] == (
        f"to execute: statekeeper --config {configuration} history --all --keep 9999d"
    )
    assert not (tmp_path / "history").exists()
    done = run("--config", configuration, "history", "--all", "--keep", "9999d")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "added 2 runs of 2 roots"
    to = str(tmp_path / "history")
    assert asked("select query, team, outcome from runs order by query", to) == [
        {"query": "clicks", "team": "shop", "outcome": "done"},
        {"query": "orders", "team": "shop", "outcome": "done"},
    ]
    [place] = json.loads(run("--config", configuration, "history", "--all", "--output", "json").stdout)["places"]
    assert (place["runs"], place["tables"]["runs"]["expired_rows"]) == (0, 2)
    assert asked("select run from runs", to) == []
    assert len(asked("select query from health", to)) == 2


def test_a_place_of_the_command_wins_and_one_without_a_file_is_needed(configuration: Path, tmp_path: Path) -> None:
    json_output("--config", configuration, "history", "orders", "--to", tmp_path / "other", "--keep", "9999d")
    assert asked("select query from runs", str(tmp_path / "other")) == [{"query": "orders"}]
    assert not (tmp_path / "history").exists()
    without = run("history", tmp_path / "orders")
    assert without.exit_code == 2
    assert "[history]" in without.output
    assert "--to URL" in without.output


def test_a_root_that_cannot_be_examined_and_a_damaged_record_have_an_exit_code_of_their_own(
    configuration: Path, tmp_path: Path
) -> None:
    orders = open_storage(str(tmp_path / "orders"))
    orders.create(names.history("20260101T000000Z", "gc", "0198c0de-0000-4000-8000-000000000001", "outcome"), b"{")
    damaged = run("--config", configuration, "history", "orders", "--keep", "9999d")
    assert damaged.exit_code == 3
    assert "20260101T000000Z-gc-0198c0de" in damaged.output
    failed = run("--config", configuration, "history", "clicks", tmp_path / "nothing", "--to", tmp_path / "other")
    assert failed.exit_code == 1
    assert f"{tmp_path / 'nothing'}: " in failed.output
    assert len(asked("select query from health", str(tmp_path / "other"))) == 1


def test_a_place_that_cannot_be_written_does_not_stop_the_others(configuration: Path, tmp_path: Path) -> None:
    files = tmp_path / "teams"
    files.mkdir()
    for team, query in (("a", "clicks"), ("b", "orders")):
        (files / f"{team}.toml").write_text(
            f'[history]\nurl = "{tmp_path / team}"\n[roots.{query}]\nurl = "{tmp_path / query}"\n'
        )
    (tmp_path / "a" / "runs").mkdir(parents=True)
    (tmp_path / "a" / "runs" / "notes.txt").write_text("mine")
    done = run("--config", files, "history", "--all", "--keep", "9999d")
    assert done.exit_code == DestinationNotEmpty.exit_code
    assert "notes.txt" in done.output
    assert asked("select query from runs", str(tmp_path / "b")) == [{"query": "orders"}]
