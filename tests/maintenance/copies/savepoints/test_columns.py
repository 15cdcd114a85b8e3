"""The columns of the tables: names, types and values."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.contents.rows import Layout
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.family_rows import DecodedRows
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.copies.savepoints.record import Begun
from statekeeper.statestore.maintenance.copies.savepoints.write import (
    Table,
    _typed_errors,
    digest_of,
    digest_sum,
    encode_commit,
    raw_rows,
    table_of,
    typed_rows,
)

NESTED = pa.struct([("a b", pa.string()), ("A b", pa.null()), ("at", pa.timestamp("us"))])
KEY = pa.schema([("k", pa.string()), ("k", pa.int32()), ("K", pa.date32())])
VALUE = pa.schema(
    [
        ("sum(n)", pa.decimal128(30, 5)),
        ("none", pa.null()),
        ("nested", NESTED),
        ("list", pa.list_(pa.field("element", NESTED))),
        ("map", pa.map_(pa.string(), pa.field("value", NESTED))),
        ("raw", pa.binary()),
        ("real", pa.float64()),
    ]
)
WHOLE = {"a b": "x", "A b": None, "at": dt.datetime(2026, 3, 1)}  # noqa: DTZ001 - a local time
ROWS = [
    {
        "sum(n)": decimal.Decimal("1.5"),
        "none": None,
        "nested": WHOLE,
        "list": [WHOLE, None],
        "map": [("m", WHOLE)],
        "raw": b"\0",
        "real": float("nan"),
    },
    dict.fromkeys(VALUE.names),
]


def made(key: pa.Schema, value: pa.Schema, family: str | None = None) -> Table:
    return table_of(0, "an operator", "default", family, Layout({family: Family(key, value)}, "schema"))


def decoded() -> DecodedRows:
    keys = pa.Table.from_arrays(
        [pa.array(["a", None]), pa.array([1, 2], pa.int32()), pa.array([dt.date(2026, 3, 1), None])], schema=KEY
    )
    return DecodedRows(keys, pa.Table.from_pylist(ROWS, VALUE), np.ones(2, np.int64), False)


def test_names_are_plain_and_unique_without_regard_to_case_at_any_depth() -> None:
    table = made(KEY, VALUE)
    assert table.columns == {
        "key_k": "key.k",
        "key_k_2": "key.k",
        "key_K_3": "key.K",
        "value_sum_n_": "value.sum(n)",
        "value_none": "value.none",
        "value_nested": "value.nested",
        "value_list": "value.list",
        "value_map": "value.map",
        "value_raw": "value.raw",
        "value_real": "value.real",
    }
    inner = table.schema.field("value_nested").type
    assert [field.name for field in inner] == ["a_b", "A_b_2", "at"]
    assert table.schema.field("value_list").type.value_type == inner
    assert table.schema.field("value_map").type.item_type == inner


def test_values_of_every_type_are_kept(tmp_path: Path) -> None:
    table = made(KEY, VALUE)
    [rows] = typed_rows(table, 3, decoded())
    rows.validate(full=True)
    pq.write_table(pa.Table.from_batches([rows]), tmp_path / "file.parquet")
    read = pq.read_table(tmp_path / "file.parquet")
    [first, second] = read.to_pylist()
    inner = {"a_b": "x", "A_b_2": None, "at": dt.datetime(2026, 3, 1)}  # noqa: DTZ001 - a local time
    assert (first["operator_id"], first["operator"], first["partition"], first["element"]) == (
        0,
        "an operator",
        3,
        None,
    )
    assert (first["key_k"], first["key_k_2"], first["key_K_3"]) == ("a", 1, dt.date(2026, 3, 1))
    assert first["value_sum_n_"] == decimal.Decimal("1.5")
    assert (first["value_nested"], first["value_list"], first["value_map"]) == (inner, [inner, None], [("m", inner)])
    assert (first["value_raw"], np.isnan(first["value_real"])) == (b"\0", True)
    assert {value for name, value in second.items() if name.startswith("value_")} == {None}
    # The digest can be computed from the file.
    assert digest_sum(map(digest_of, read.to_batches())) == digest_of(rows)


def test_the_digest_depends_on_each_column_of_key_and_value_and_not_on_order_or_place() -> None:
    table = made(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))

    def digest(keys: list[int], values: list[int | None], partition: int = 0) -> int:
        rows = DecodedRows(
            pa.table({"k": keys}), pa.table({"v": pa.array(values, pa.int64())}), np.ones(len(keys), np.int64), False
        )
        return digest_sum(map(digest_of, typed_rows(table, partition, rows)))

    whole = digest([1, 2], [10, 20])
    assert digest([2, 1], [20, 10], partition=5) == whole
    assert digest_sum([digest([1], [10]), digest([2], [20])]) == whole
    others = [digest([1, 2], [20, 10]), digest([1], [10]), digest([1, 2], [10, None]), digest([1, 2, 2], [10, 20, 20])]
    assert len({whole, *others}) == 5


def test_a_list_has_a_row_for_each_element_and_a_sliced_column_keeps_its_values() -> None:
    table = made(pa.schema([("k", pa.string())]), pa.schema([("v", NESTED)]), "seen")
    keys = pa.table({"k": ["a", "b", "c"]}).slice(1)
    values = pa.Table.from_pylist(
        [{"v": None}, *({"v": {**WHOLE, "a b": text}} for text in "xyz")], pa.schema([("v", NESTED)])
    )
    [batch] = typed_rows(table, 0, DecodedRows(keys, values.slice(1), np.array([2, 1]), True))
    rows = batch.to_pylist()
    assert [(row["key_k"], row["element"], row["value_v"]["a_b"]) for row in rows] == [
        ("b", 0, "x"),
        ("b", 1, "y"),
        ("c", 0, "z"),
    ]


def test_a_long_list_of_a_large_key_is_converted_in_pieces() -> None:
    table = made(pa.schema([("k", pa.string())]), pa.schema([("v", pa.int64())]), "seen")
    keys, counts = pa.table({"k": ["a" * 1_000_000, "b", "c" * 1_000_000]}), np.array([150, 3000, 50])
    rows = DecodedRows(keys, pa.table({"v": np.arange(3200)}), counts, True)
    pieces = list(typed_rows(table, 0, rows))
    assert len(pieces) > 10
    assert max(piece.nbytes for piece in pieces) < 20_000_000
    assert [value for piece in pieces for value in piece["value_v"].to_pylist()] == list(range(3200))
    elements = [value for piece in pieces for value in piece["element"].to_pylist()]
    assert elements == [*range(150), *range(3000), *range(50)]
    first = [text[0] for piece in pieces for text in piece["key_k"].to_pylist()]
    assert "".join(first) == "a" * 150 + "b" * 3000 + "c" * 50


@pytest.mark.parametrize("end_ms", [2**62, 2_147_483_647 * 86_400_000, 253_402_300_800_000])
def test_a_time_to_live_beyond_the_year_9999_has_no_end(end_ms: int) -> None:
    value = pa.schema([("value", pa.int64()), ("ttlExpirationMs", pa.int64())])
    table = table_of(
        0, "transformWithStateExec", "default", "v", Layout({"v": Family(pa.schema([("k", pa.int64())]), value)}, "s")
    )
    values = pa.table({"value": [1, 2], "ttlExpirationMs": pa.array([end_ms, 253_402_300_799_999], pa.int64())})
    [rows] = typed_rows(table, 0, DecodedRows(pa.table({"k": [1, 2]}), values, np.ones(2, np.int64), False))
    assert rows["expires_at"].to_pylist() == [None, dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, dt.UTC)]
    assert rows["value_ttlExpirationMs"][0].as_py() == end_ms


def test_an_error_of_arrow_names_the_store() -> None:
    with pytest.raises(CorruptFile, match="cannot be written as a table") as raised, _typed_errors(StorePath(0, 3)):
        pa.array([2**62]).cast(pa.int8())
    assert raised.value.path == "state/0/3"


def test_only_values_of_transform_with_state_expire() -> None:
    value = pa.schema([("value", pa.int64()), ("ttlExpirationMs", pa.int64())])
    layout = Layout({"v": Family(pa.schema([("k", pa.int64())]), value)}, "schema")
    values = pa.table({"value": [1, 2, 3], "ttlExpirationMs": pa.array([1_700_000_000_123, None, -1], pa.int64())})
    rows = DecodedRows(pa.table({"k": [1, 2, 3]}), values, np.ones(3, np.int64), False)
    of_spark = table_of(0, "transformWithStateExec", "default", "v", layout)
    ends = [dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC), None, None]
    assert next(typed_rows(of_spark, 0, rows))["expires_at"].to_pylist() == ends
    of_another = table_of(0, "counting", "default", "v", layout)
    assert next(typed_rows(of_another, 0, rows))["expires_at"].to_pylist() == [None] * 3


def test_a_struct_without_columns_makes_a_table_of_bytes() -> None:
    table = made(pa.schema([("k", pa.struct([]))]), VALUE)
    assert (table.rows, "column k" in str(table.problem)) == (None, True)
    [row] = raw_rows(table, 1, [b"key"], [b"value"]).to_pylist()
    assert (row["key_bytes"], row["value_bytes"], row["partition"]) == (b"key", b"value", 1)


@pytest.mark.parametrize(
    ("family", "folder"),
    [
        (None, "rows/0/default"),
        ("total", "rows/0/default.total"),
        ("$ttl_x", "rows/0/default.~24ttl_x"),
        ("a/../b", "rows/0/default.a~2F~2E~2E~2Fb"),
        ("~24x", "rows/0/default.~7E24x"),
    ],
)
def test_a_family_has_a_folder_of_its_own(family: str | None, folder: str) -> None:
    assert made(KEY, VALUE, family).folder == folder


def test_a_local_timestamp_at_any_depth_needs_a_feature_of_delta() -> None:
    begun = Begun(
        source="s", batch=1, tables="delta", state="", run="0badc0de-0000-4000-8000-00000000000a", begun_at_ms=5
    )

    def protocol(value: pa.Schema) -> dict[str, object]:
        lines = encode_commit("rows/0/default", made(KEY, value).schema, [], begun).decode().splitlines()
        return next(body["protocol"] for body in map(json.loads, lines) if "protocol" in body)

    assert protocol(VALUE)["readerFeatures"] == ["timestampNtz"]
    assert protocol(pa.schema([("v", pa.int64())])) == {"minReaderVersion": 1, "minWriterVersion": 2}
