"""The tables of an edit: each format gives the same rows, and an unreadable table is rejected with its path."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake

from statekeeper.statestore.base.errors import SchemaMismatch, UnsupportedEnvironment
from statekeeper.statestore.maintenance.rewrites.edits.tables import read_table
from tests.support.dumped import dumped
from tests.support.twins import statekeeper
from tests.support.unpacked import unpacked

ARCHIVE = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
ROWS = pa.table({"k": ["key 1", "key 2"], "day": [1, 2]})


def delta(folder: Path, rows: pa.Table = ROWS, **options: object) -> str:
    write_deltalake(str(folder), rows, **options)
    return str(folder)


def test_each_format_gives_the_same_rows(tmp_path: Path) -> None:
    parquet, arrow = str(tmp_path / "rows.parquet"), str(tmp_path / "rows.arrow")
    pyarrow.parquet.write_table(ROWS, parquet)
    pyarrow.feather.write_feather(ROWS, arrow)
    for path in (parquet, arrow, delta(tmp_path / "delta")):
        assert read_table(path).to_pylist() == ROWS.to_pylist()
    csv = tmp_path / "rows.csv"
    csv.write_text('k,day\nkey 1,1\n"",\n')
    assert read_table(str(csv)).to_pylist() == [{"k": "key 1", "day": "1"}, {"k": "", "day": None}]


def test_a_delta_table_has_its_newest_rows_with_partition_columns_and_after_a_checkpoint_of_its_log(
    tmp_path: Path,
) -> None:
    folder = delta(tmp_path / "table", pa.table({"k": ["old"], "day": [0]}), partition_by=["day"])
    delta(tmp_path / "table", ROWS, mode="overwrite")
    DeltaTable(folder).create_checkpoint()
    Path(folder, "_delta_log", f"{0:020}.json").unlink()
    assert sorted(read_table(folder).select(["k", "day"]).to_pylist(), key=str) == ROWS.to_pylist()


def protocol(folder: Path, **fields: object) -> str:
    """Return a Delta table with this protocol in its newest commit."""
    delta(folder)
    (folder / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"protocol": fields}))
    return str(folder)


@pytest.mark.parametrize(
    ("fields", "feature"),
    [
        ({"minReaderVersion": 2, "minWriterVersion": 5}, "columnMapping"),
        (
            {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"],
            },
            "deletionVectors",
        ),
    ],
)
def test_a_delta_table_with_a_feature_that_changes_its_rows_is_rejected(
    fields: dict[str, object], feature: str, tmp_path: Path
) -> None:
    with pytest.raises(SchemaMismatch, match=f"features that this command cannot read: .*{feature}"):
        read_table(protocol(tmp_path / "table", **fields))


def test_an_unreadable_table_is_rejected_with_its_path(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged" / "_delta_log"
    damaged.mkdir(parents=True)
    (damaged / f"{0:020}.json").write_text("no JSON")
    incomplete = delta(tmp_path / "incomplete")
    for path in Path(incomplete).glob("*.parquet"):
        path.unlink()
    no_parquet = tmp_path / "rows.parquet"
    no_parquet.write_bytes(b"no Parquet")
    unknown = tmp_path / "rows.xlsx"
    unknown.write_bytes(b"")
    for path in (str(damaged.parent), incomplete, str(no_parquet), str(unknown), str(tmp_path / "missing.csv")):
        with pytest.raises(SchemaMismatch) as raised:
            read_table(path)
        assert raised.value.path == path
        assert raised.value.hint


def test_without_the_package_deltalake_the_error_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = delta(tmp_path / "table")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UnsupportedEnvironment, match=r"pip install 'statekeeper\[delta\]'"):
        read_table(table)


def test_the_keys_of_a_delta_table_are_deleted(tmp_path: Path) -> None:
    checkpoint = unpacked(ARCHIVE, tmp_path)
    before = {row["key"]["k"] for row in dumped(checkpoint)}
    keys = delta(tmp_path / "keys", ROWS.select(["k"]))
    statekeeper("edit", str(checkpoint), "--operator", "0", "--delete-keys", keys, "--apply", "--confirm-stopped")
    assert {row["key"]["k"] for row in dumped(checkpoint)} == before - {"key 1", "key 2"}
