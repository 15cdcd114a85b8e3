"""A query continues after an upsert like a twin whose state always had these rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.corrected import BEFORE, LOST, WRONG, right, wrong
from tests.support.dumped import dumped
from tests.support.edits import row_table
from tests.support.native import OPERATORS, NativeQuery, Operator, state
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark

PLAIN = (
    "aggregation",
    "windows",
    "dropDuplicates",
    "dropDuplicatesWithinWatermark",
    "sessions",
    "applyInPandasWithState",
)
"""Operators with one store and without column families."""


def _shown(value: object) -> str:
    return value.value if isinstance(value, Structure) else str(value)


def edit(query: NativeQuery, scratch: Path, *options: str, apply: bool = True) -> str:
    given = ("--apply", "--confirm-stopped") if apply else ("--output", "json")
    return statekeeper("edit", query.root, "--operator", "0", *options, *given, "--scratch", str(scratch))


def later(outputs: dict[int, Counter[str]]) -> dict[int, Counter[str]]:
    return {batch: rows for batch, rows in outputs.items() if batch >= BEFORE}


@pytest.mark.parametrize(
    "structure",
    [pytest.param(Structure.V1, id="v1", marks=pytest.mark.slow), pytest.param(Structure.V2, id="v2")],
)
def test_a_query_continues_from_corrected_rows_like_a_twin_that_was_always_right(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("corrected")
    twin = NativeQuery(spark, folder / "twin", Operator(right, "update"), {**structure.conf})
    twin.run(BEFORE)
    middle, correct = state(twin), dumped(twin.root)
    twin.run(2)
    query = NativeQuery(spark, folder / "query", Operator(wrong, "update"), {**structure.conf})
    query.run(BEFORE)
    assert state(query) != middle
    rows = [row for row in correct if row["key"]["k"] in (WRONG, LOST)]
    query.saved("wrong")

    # One unit more than right: the comparison must detect it.
    off = [{**row, "value": {**row["value"], "sum": row["value"]["sum"] + 1}} for row in rows]
    edit(query, folder, "--upsert", row_table(folder / "off.parquet", off))
    assert state(query) != middle
    query.run(1)
    assert later(query.outputs)[BEFORE] != later(twin.outputs)[BEFORE]

    query.restored("wrong")
    table = row_table(folder / "right.parquet", rows)
    plan: dict[str, Any] = json.loads(edit(query, folder, "--upsert", table, apply=False))
    assert plan["totals"] == {"added": 1, "removed": 0, "changed": 1}
    planned = {row["key"]["k"]: row["after"] for row in plan["first"]}
    edit(query, folder, "--upsert", table)
    assert {row["key"]["k"]: row["value"] for row in dumped(query.root) if row["key"]["k"] in planned} == planned
    assert state(query) == middle
    clean(open_storage(query.root), folder)
    query.run(2)
    assert later(query.outputs) == later(twin.outputs)
    assert state(query) == state(twin)
    clean(open_storage(query.root), folder)


@pytest.mark.slow
@pytest.mark.parametrize("structure", Structure, ids=_shown)
@pytest.mark.parametrize("name", PLAIN)
def test_rows_that_are_deleted_and_written_again_are_the_rows_of_spark(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("again")
    twin = NativeQuery(spark, folder / "twin", OPERATORS[name], {**structure.conf})
    twin.run(3)
    twin.run(2)
    query = NativeQuery(spark, folder / "query", OPERATORS[name], {**structure.conf})
    query.run(3)
    before, rows = state(query), dumped(query.root)
    key = next(row["key"]["k"] for row in rows)
    mine = [row for row in rows if row["key"]["k"] == key]
    edit(query, folder, "--delete", f"k={key}")
    assert state(query) != before
    edit(query, folder, "--upsert", row_table(folder / "rows.parquet", mine))
    assert state(query) == before
    clean(open_storage(query.root), folder)
    query.run(2)
    assert query.outputs == twin.outputs
    assert state(query) == state(twin)
