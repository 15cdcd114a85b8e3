"""A merge of the data files of a table of history keeps each row, also of a file that another program has rewritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import delta_log
from statekeeper.statestore.maintenance.copies.history_tables import RUNS, Addition, HistoryWriter, addition, opened
from statekeeper.statestore.maintenance.copies.state_tables import files
from statekeeper.statestore.storage import Storage, open_storage

ROOT, MONTH = "s3://prod/orders", "2026-11"
COMMITS = 9


def committed(table: Storage, runs: list[str], folder: Path) -> Addition:
    """Add runs to the table in one commit. Return its plan."""
    found = opened(table, "runs", RUNS, "outcome")
    planned = addition(
        found,
        {(ROOT, run): True for run in runs},
        found.kept([MONTH]),
        oldest_month=MONTH,
        now_seconds=SystemClock().now_seconds(),
    )
    writer = HistoryWriter(found=found, planned=planned, folder=folder, clock=SystemClock(), ids=RandomIds())
    for run in runs:
        writer.add((ROOT, run), [{"root": ROOT, "run": run, "outcome": "done", "month": MONTH}])
    writer.commit()
    return planned


def with_stats(table: Storage, version: int, stats: dict[str, int] | None) -> None:
    """Change the statistics of the files that a commit adds; None for none."""
    path = delta_log.commit_path(version)
    actions = delta_log.parse_commit(table.read(path), path)
    for one in (action["add"] for action in actions if "add" in action):
        one.pop("stats")
        if stats is not None:
            one["stats"] = json.dumps(stats)
    table.replace(path, delta_log.encode_commit(actions))


def runs_of(table: Storage) -> list[str]:
    found = files.read_table(table)
    assert found is not None
    rows = [files.opened(table, one).read(columns=["run"]).to_pylist() for one in found.files.values()]
    return sorted(row["run"] for of_file in rows for row in of_file)


def test_the_rows_of_files_without_statistics_survive_merges(tmp_path: Path) -> None:
    table, runs = open_storage(str(tmp_path / "table")), [f"run-{number}" for number in range(2 * COMMITS)]
    plans = []
    for number in range(COMMITS):
        plans.append(committed(table, runs[2 * number : 2 * number + 2], tmp_path))
        if number % 4 == 1:
            with_stats(table, number, None)
    assert runs_of(table) == sorted(runs)
    assert not any(one.merged for one in plans[:-1])
    for number in range(COMMITS, 2 * COMMITS):
        plans.append(committed(table, [more := f"run-{number}-more"], tmp_path))
        runs.append(more)
    assert any(one.merged for one in plans)
    assert runs_of(table) == sorted(runs)


def test_a_file_without_statistics_is_not_merged_and_stays_without_them(tmp_path: Path) -> None:
    table = open_storage(str(tmp_path / "table"))
    committed(table, ["a"], tmp_path)
    with_stats(table, 0, None)
    found = opened(table, "runs", RUNS, "outcome")
    assert found.table is not None
    [unknown] = found.table.files.values()
    assert unknown.rows == -1
    assert "numRecords" not in json.loads(unknown.add(changes_data=False)["add"]["stats"])
    many = {f"part-{number}": replace(unknown, path=f"part-{number}") for number in range(2 * COMMITS)}
    planned = addition(
        replace(found, table=replace(found.table, files=many)), {}, {}, oldest_month=MONTH, now_seconds=0.0
    )
    assert planned.merged == ()


def test_a_merge_with_another_number_of_rows_than_the_log_is_not_committed(tmp_path: Path) -> None:
    table = open_storage(str(tmp_path / "table"))
    for number in range(COMMITS - 1):
        committed(table, [f"run-{number}"], tmp_path)
    with_stats(table, 3, {"numRecords": 5})
    before = runs_of(table)
    with pytest.raises(CorruptFile, match="a merge of 8 files has 8 rows, but the log has 12"):
        committed(table, ["last"], tmp_path)
    assert runs_of(table) == before
