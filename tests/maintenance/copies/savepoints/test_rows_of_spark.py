"""Savepoints of checkpoints that Spark wrote have the rows that Spark's own reader showed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statekeeper.statestore.storage import open_storage
from tests.support.dumped import expected, shown
from tests.support.savepoints import manifest, recomputed, rows_of, saved, table
from tests.support.unpacked import unpacked

FIXTURES = sorted((Path(__file__).parents[3] / "fixtures" / "checkpoints").glob("spark-*.zip"))


def differing(rows: list[dict], views: dict[str, list[str]]) -> list[str]:
    """The views of Spark's reader in which these rows differ."""
    return [view for view, found in views.items() if shown(rows, json.loads(view)) != expected(found, json.loads(view))]


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem.removeprefix("spark-4.2.0-"))
def test_the_tables_have_the_rows_of_sparks_reader(fixture: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(fixture, tmp_path)
    views = json.loads((tmp_path / "shown.json").read_text())
    to = tmp_path / "savepoint"
    saved(open_storage(str(checkpoint)), open_storage(str(to)), tmp_path / "scratch", stopped=True)
    rows, told = rows_of(to), manifest(to)
    assert rows
    assert differing(rows, views) == []
    assert (told["rows"], told["digest"]) == (len(rows), recomputed(to))
    assert [one["problem"] for one in told["tables"]] == [None] * len(told["tables"])
    assert all(one["operator"] for one in told["tables"])
    # The comparison and the digest detect a dropped key.
    for described in told["tables"]:
        for part in described["partitions"]:
            if part["rows"]:
                file = to / part["files"][0]["path"]
                found = pq.read_table(file)
                pq.write_table(found.slice(1), file)
                assert differing(rows_of(to), views) or described["path"].rpartition(".")[2].startswith(
                    ("~24", "left-ts", "right-ts")
                )
                assert recomputed(to) != told["digest"]
                pq.write_table(found, file)
    assert recomputed(to) == told["digest"]


def test_a_time_to_live_is_in_the_column_expires_at(tmp_path: Path) -> None:
    [fixture] = [path for path in FIXTURES if "v2-transformWithState" in path.name]
    checkpoint = unpacked(fixture, tmp_path)
    to = tmp_path / "savepoint"
    saved(open_storage(str(checkpoint)), open_storage(str(to)), tmp_path / "scratch")
    lately = table(to, "rows/0/default.lately").to_pylist()
    assert lately
    for row in lately:
        assert row["expires_at"].timestamp() * 1000 == pytest.approx(row["value_ttlExpirationMs"])
        assert row["value_value"]["x"] is not None
    assert set(table(to, "rows/0/default.total")["expires_at"].to_pylist()) == {None}


def test_the_elements_of_a_list_are_numbered_rows(tmp_path: Path) -> None:
    [fixture] = [path for path in FIXTURES if "v2-transformWithState" in path.name]
    checkpoint = unpacked(fixture, tmp_path)
    to = tmp_path / "savepoint"
    saved(open_storage(str(checkpoint)), open_storage(str(to)), tmp_path / "scratch")
    numbers: dict[str, list[int]] = {}
    for row in table(to, "rows/0/default.seen").to_pylist():
        numbers.setdefault(row["key_k"], []).append(row["element"])
    assert max(map(len, numbers.values())) > 1
    assert all(found == list(range(len(found))) for found in numbers.values())
    assert pa.types.is_null(table(to, "rows/0/default.total")["element"].type) is False
