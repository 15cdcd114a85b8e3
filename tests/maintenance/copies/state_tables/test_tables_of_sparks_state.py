"""Tables of the state that Spark wrote, batch by batch: each kind of operator, structure, provider and encoding.

The oracle of a batch is a savepoint with rows, whose rows are those of Spark's own reader: see
`savepoints/test_rows_of_spark.py`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from statekeeper.statestore.format.savepoint_names import table as table_path
from statekeeper.statestore.maintenance.copies.state_tables import Way
from statekeeper.statestore.storage import open_storage
from tests.support.savepoints import saved
from tests.support.savepoints import table as typed
from tests.support.state_tables import as_lines, at_batch, published, replayed, rows_of
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
JOIN = "left-keyWithIndexToValue"
CHOICES: dict[str, list[dict[str, object]]] = {
    "hdfs-join-2": [{"store": JOIN}],
    "v1-join-2": [{"store": JOIN}],
    "v2-join-3": [{"family": JOIN}],
    "v1-join-4": [{"family": "left-keyWithTsToValues"}],
    "two-operators": [{"operator": 0}, {"operator": 1}],
    "transformWithState": [{"family": name} for name in ("by_minute", "lately", "seen", "total")],
    "v2-repartitioned": [{"family": name} for name in ("seen", "total")],
}
KEYS = {"v1-windows-lzf": ("window", "k"), "v1-join-2": ("field0", "index"), "hdfs-aggregation": ("k",)}
IN_CI = {
    ("hdfs-aggregation-checksums", 0),
    ("v1-join-2", 0),
    ("v1-join-4-checksums-and-commas", 0),
    ("v1-windows-lzf", 0),
    ("v2-transformWithState", 1),
    ("v2-transformWithState", 2),
    ("v1-repartitioned", 0),
    ("v2-sessions-snappy", 0),
}


def cases() -> list[object]:
    found = []
    for path in sorted(FIXTURES.glob("spark-*.zip")):
        name = path.stem.removeprefix("spark-4.2.0-")
        choices = next((how for part, how in CHOICES.items() if part in name), [{}])
        for number, how in enumerate(choices):
            marks = [] if (name, number) in IN_CI else [pytest.mark.slow]
            found.append(pytest.param(path, how, id=" ".join([name, *map(str, how.values())]), marks=marks))
    return found


@pytest.mark.parametrize(("fixture", "how"), cases())
def test_a_table_shows_each_batch_of_a_query_also_after_a_rollback(
    fixture: Path, how: dict[str, object], tmp_path: Path
) -> None:
    checkpoint, table = unpacked(fixture, tmp_path), open_storage(str(tmp_path / "table"))
    batches = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    ways = []
    for batch in (*batches, batches[0], batches[-1]):
        root = at_batch(checkpoint, tmp_path / "root", batch)
        made = published(open_storage(str(root)), table, tmp_path / "scratch", stopped=True, **how)
        ways.append(made.way)
        assert made.batch == batch
        assert as_lines(without_nulls(rows_of(table))) == as_lines(expected(root, tmp_path / "rows", how))
    assert ways[0] is Way.LOAD
    assert ways[len(batches)] is Way.COMPARISON


def expected(root: Path, folder: Path, how: dict[str, object]) -> list[dict[str, object]]:
    """The rows of a savepoint of the newest batch, with the names of a table of state."""
    shutil.rmtree(folder, ignore_errors=True)
    saved(open_storage(str(root)), open_storage(str(folder)), folder.parent / "scratch", stopped=True)
    path = table_path(int(str(how.get("operator", 0))), str(how.get("store", "default")), how.get("family"))
    found = []
    for row in typed(folder, path).to_pylist():
        of_key = {name.removeprefix("key_"): held for name, held in row.items() if name.startswith("key_")}
        of_value = {name.removeprefix("value_"): held for name, held in row.items() if name.startswith("value_")}
        shown = {f"value_{name}" if name in of_key else name: held for name, held in of_value.items()}
        others = {name: row[name] for name in ("element", "expires_at") if row[name] is not None}
        found.append({**of_key, **shown, **others})
    return found


def without_nulls(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows without columns that only some state variables have."""
    return [
        {name: held for name, held in row.items() if held is not None or name not in ("element", "expires_at")}
        for row in rows
    ]


@pytest.mark.parametrize("name", ["v1-windows-lzf", "v1-join-2", "hdfs-aggregation"])
def test_the_feed_leads_to_the_rows_of_the_table(name: str, tmp_path: Path) -> None:
    [fixture] = FIXTURES.glob(f"spark-4.2.0-{name}.zip")
    checkpoint, table = unpacked(fixture, tmp_path), open_storage(str(tmp_path / "table"))
    how = CHOICES.get(name, [{}])[0]
    for batch in (0, 1, 2, 1, 2):
        root = at_batch(checkpoint, tmp_path / "root", batch)
        published(open_storage(str(root)), table, tmp_path / "scratch", stopped=True, before_images=True, **how)
    assert replayed(table, keys=KEYS[name]) == as_lines(rows_of(table), ())


def test_a_running_query_in_structure_v1_is_published_two_batches_behind(tmp_path: Path) -> None:
    [fixture] = FIXTURES.glob("spark-4.2.0-v1-windows-lzf.zip")
    checkpoint, table = unpacked(fixture, tmp_path), open_storage(str(tmp_path / "table"))
    made = published(open_storage(str(checkpoint)), table, tmp_path / "scratch")
    assert made.batch == 1
    assert published(open_storage(str(checkpoint)), table, tmp_path / "scratch", stopped=True).batch == 3
