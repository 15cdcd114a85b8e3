"""`statekeeper publish` and `statekeeper top` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.storage import open_storage
from tests.support.commands import json_output, run, statekeeper
from tests.support.keyed_roots import KeyedRoot
from tests.support.state_tables import rows_of
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"


@pytest.fixture
def root(tmp_path: Path) -> KeyedRoot:
    made = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "hosts", partitions=2)
    made.grow(2)
    return made


def test_the_plan_is_shown_and_nothing_is_written(root: KeyedRoot, tmp_path: Path) -> None:
    shown = json_output("publish", tmp_path / "root", tmp_path / "table", "--operator", "0", "--dry-run")
    assert (shown["way"], shown["reason"], shown["batch"]) == ("load", "the table is new", 1)
    assert shown["columns"] == {
        "key.key": "key",
        "value.value": "value",
        "batch": "batch",
        "committed_at": "committed_at",
    }
    assert not (tmp_path / "table").exists()
    text = run("publish", tmp_path / "root", tmp_path / "table", "--operator", "0", "--dry-run")
    assert "load all rows of the state, because the table is new" in text.output


def test_a_table_is_published_and_later_runs_need_no_options(root: KeyedRoot, tmp_path: Path) -> None:
    options = (
        "--operator",
        "0",
        "--rename",
        "value=count",
        "--where",
        "value > 3",
        "--column",
        "key",
        "--column",
        "value",
    )
    wrong = run("publish", tmp_path / "root", tmp_path / "table", *options)
    assert wrong.exit_code == 13
    assert "names the column value, which the table does not have" in wrong.output
    options = tuple(option.replace("value > 3", "count > 3") for option in options)
    assert run("publish", tmp_path / "root", tmp_path / "table", *options).exit_code == 0
    root.grow(1)
    shown = json_output("publish", tmp_path / "root", tmp_path / "table")
    assert (shown["way"], shown["batch"], shown["published_batch"]) == ("changes", 2, 1)
    assert shown["rows"] == len(rows_of(open_storage(str(tmp_path / "table"))))
    assert set(rows_of(open_storage(str(tmp_path / "table")))[0]) == {"key", "count", "batch", "committed_at"}
    again = run("publish", tmp_path / "root", tmp_path / "table")
    assert again.exit_code == 0
    assert "nothing to do: the table shows batch 2" in again.output


def test_a_refusal_lists_the_operators(root: KeyedRoot, tmp_path: Path) -> None:
    refused = run("publish", tmp_path / "root", tmp_path / "table", "--dry-run")
    assert refused.exit_code == 3
    assert "--operator 0" in refused.output
    assert run("publish", tmp_path / "root", tmp_path / "table").exit_code == 13


def test_the_tables_of_the_configuration_are_published_by_name_or_all_at_once(root: KeyedRoot, tmp_path: Path) -> None:
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text(
        """
        [roots.counting]
        url = "root"
        [roots.counting.tables.large]
        url = "large"
        operator = 0
        where = ["value > 30"]
        [roots.counting.tables.sums]
        url = "sums"
        operator = 1
        columns = ["key"]
        """
    )
    shown = run("--config", configuration, "publish", "counting", "large", "--output", "json")
    assert json.loads(shown.stdout)["where"] == ["value > 30"]
    assert not (tmp_path / "sums").exists()
    both = json.loads(run("--config", configuration, "publish", "counting", "--output", "json").stdout)["tables"]
    assert [one["way"] for one in both] == ["nothing", "load"]
    assert min(row["value"] for row in rows_of(open_storage(str(tmp_path / "large")))) > 30
    missing = run("publish", tmp_path / "root")
    assert missing.exit_code == 2
    assert "TABLE is missing" in missing.output


def test_options_of_one_table_are_refused_without_it_and_win_over_those_of_its_name(
    root: KeyedRoot, tmp_path: Path
) -> None:
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text(
        """
        [roots.counting]
        url = "root"
        [roots.counting.tables.sums]
        url = "sums"
        operator = 1
        """
    )
    options = ("--operator", "0", "--where", "value > 30", "--plain-files")
    refused = run("--config", configuration, "publish", "counting", *options)
    assert refused.exit_code == 2
    assert "--operator, --where, --plain-files are options of one table" in " ".join(refused.output.split())
    assert not (tmp_path / "sums").exists()
    shown = run("--config", configuration, "publish", "counting", "sums", *options, "--dry-run", "--output", "json")
    assert json.loads(shown.stdout)["operator"] == 0


# -- top ---------------------------------------------------------------------------------------------------------------


def test_top_shows_the_largest_and_the_most_changed_keys(root: KeyedRoot, tmp_path: Path) -> None:
    for number in range(3):
        root.batch({"hot": number, "a long key " * 9: 1}, {"other": number})
    shown = json_output("top", tmp_path / "root", "--operator", "0", "--limit", "2")
    [kind] = shown["kinds"]
    assert kind["largest"][0]["key"]["key"] == "a long key " * 9
    assert kind["largest"][0]["bytes"] > kind["largest"][1]["bytes"]
    assert sorted((one["key"]["key"], one["writes"]) for one in kind["most_changed"]) == [
        ("a long key " * 9, 3),
        ("hot", 3),
    ]
    assert kind["rows"] == sum(operator == 0 for operator, _ in root.rows)
    assert sum(part["rows"] for part in kind["partitions"]) == kind["rows"]
    assert kind["skew"] >= 1
    assert kind["is_exact"] is True
    assert shown["counted_batches"] == [0, 4]
    text = run("top", tmp_path / "root", "--operator", "0", "--limit", "2").output
    assert "most changed keys, batches 0 to 4" in text


def test_top_counts_only_the_newest_batches(root: KeyedRoot, tmp_path: Path) -> None:
    root.batch({"first": 1}, {})
    root.batch({"second": 1}, {})
    shown = json_output("top", tmp_path / "root", "--operator", "0", "--batches", "1")
    assert [one["key"]["key"] for one in shown["kinds"][0]["most_changed"]] == ["second"]
    none = json_output("top", tmp_path / "root", "--operator", "0", "--batches", "0")
    assert none["counted_batches"] is None


def test_top_shows_the_oldest_window_and_that_no_row_is_overdue(tmp_path: Path) -> None:
    [fixture] = FIXTURES.glob("spark-4.2.0-v1-windows-lzf.zip")
    shown = json_output("top", unpacked(fixture, tmp_path))
    [kind] = shown["kinds"]
    assert kind["oldest"]["column"] == "window.end"
    assert kind["overdue_rows"] == 0
    assert shown["watermark_ms"] > 0


@pytest.mark.parametrize("name", ["v2-transformWithState", "hdfs-join-2", "v1-join-4-checksums-and-commas"])
def test_top_reads_each_kind_of_state(name: str, tmp_path: Path) -> None:
    [fixture] = FIXTURES.glob(f"spark-4.2.0-{name}.zip")
    checkpoint = unpacked(fixture, tmp_path)
    shown = json_output("top", checkpoint)
    assert len(shown["kinds"]) >= 4
    assert all(kind["rows"] == 0 or kind["largest"] for kind in shown["kinds"])
    assert any(kind["most_changed"] for kind in shown["kinds"])
    assert statekeeper("top", checkpoint).exit_code == 0


def test_top_of_a_query_without_a_batch_says_so(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"11111111-0000-4000-8000-000000000000"}')
    assert json_output("top", tmp_path) == {"batch": None, "kinds": []}
