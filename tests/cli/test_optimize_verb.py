"""`statekeeper optimize` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import NotACheckpoint
from tests.support.commands import json_output, run
from tests.support.sink_tables import FILES, WrittenRoot, written


@pytest.fixture
def made(tmp_path: Path) -> WrittenRoot:
    return written(tmp_path, 3)


def test_the_plan_is_shown_with_the_command_that_executes_it(made: WrittenRoot, tmp_path: Path) -> None:
    version = made.opened().version()
    shown = run("optimize", tmp_path / "root", tmp_path / "table")
    assert shown.exit_code == 0
    text = " ".join(shown.output.split())
    assert f"merges {3 * FILES} small files" in text
    assert "a rewind to batch 0, the oldest retained one, restores version 1" in text
    assert f"statekeeper optimize {tmp_path}/root {tmp_path}/table --apply" in text.replace("'", "")
    assert made.opened().version() == version
    done = json_output("optimize", tmp_path / "root", tmp_path / "table", "--apply")
    assert (done["merged_files"], done["made_files"], done["deleted_files"]) == (3 * FILES, 1, 0)
    again = run("optimize", tmp_path / "root", tmp_path / "table", "--apply")
    assert (again.exit_code, "nothing to merge or delete" in again.output) == (0, True)


def test_the_sinks_of_the_configuration_are_optimized_by_name_or_all_at_once(made: WrittenRoot, tmp_path: Path) -> None:
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text(
        """
        [roots.counting]
        url = "root"
        [roots.counting.sinks.rows]
        url = "table"
        keep_readers = "3d"
        file_mib = 1
        vacuum = false
        """
    )
    shown = json.loads(run("--config", configuration, "optimize", "counting", "rows", "--output", "json").stdout)
    assert (shown["planned_merges"], shown["rules"]["live"]["files"]) == (3 * FILES, 0)
    given = ("optimize", "counting", "--no-compact", "--output", "json")
    [of_both] = json.loads(run("--config", configuration, *given).stdout)["tables"]
    assert of_both["planned_merges"] == 0, "options of the command win"
    missing = run("optimize", tmp_path / "root")
    assert (missing.exit_code, "TABLE is missing" in missing.output) == (2, True)


def test_a_refusal_has_its_exit_code_and_a_way_out(made: WrittenRoot, tmp_path: Path) -> None:
    made.opened().alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 1 week"})
    other = WrittenRoot(made.root, made.table, query="22222222-0000-4000-8000-000000000000")
    other.write(7)
    refused = run("optimize", tmp_path / "root", tmp_path / "table", "--apply")
    assert refused.exit_code == 13
    assert "--retired-query 22222222-0000-4000-8000-000000000000" in " ".join(refused.output.split())
    assert run("optimize", tmp_path / "root", tmp_path / "table").exit_code == 3
    assert run("optimize", tmp_path / "root", tmp_path / "table", "--no-vacuum", "--apply").exit_code == 0


def test_a_table_that_fails_does_not_stop_the_others(made: WrittenRoot, tmp_path: Path) -> None:
    configuration = tmp_path / "statekeeper.toml"
    sinks = "".join(
        f'[roots.counting.sinks.{name}]\nurl = "{url}"\n' for name, url in (("a", "nothing"), ("b", "table"))
    )
    configuration.write_text(f'[roots.counting]\nurl = "root"\n{sinks}')
    done = run("--config", configuration, "optimize", "counting", "--apply", "--output", "json")
    broken, merged = json.loads(done.stdout)["tables"]
    assert (done.exit_code, broken["error"]["code"]) == (NotACheckpoint.exit_code, "not_a_checkpoint")
    assert merged["merged_files"] == 3 * FILES
    assert len(made.opened().file_uris()) == 1


def test_a_merge_that_another_program_has_hit_is_a_finding(
    made: WrittenRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program deletes rows while the merge is written."""
    made.delete_rows_during_merges(monkeypatch)
    done = run("optimize", tmp_path / "root", tmp_path / "table", "--apply")
    assert (done.exit_code, "1 merge of 9 files: another program removed" in done.output) == (3, True)
