"""A query that fails on a poison key continues after an edit, like a twin whose state never had the key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import HERE, OPERATORS, NativeQuery, Operator, state
from tests.support.poison import BEFORE, POISON, by_key, without_poison
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark


def failed(spark: SparkSession, folder: Path, structure: Structure) -> NativeQuery:
    """Return a query that has failed on the poison key, in a batch that has begun."""
    query = NativeQuery(spark, folder, Operator(by_key, "update"), {**structure.conf})
    query.run(BEFORE)
    with pytest.raises(StreamingQueryException):
        query.run(1)
    storage = open_storage(query.root)
    assert (catalog.newest_batch(storage), catalog.newest_begun(storage)) == (BEFORE - 1, BEFORE)
    return query


def edit(root: str, scratch: Path, *keys: str) -> str:
    options = ("--apply", "--confirm-stopped", "--scratch", str(scratch))
    return "".join(statekeeper("edit", root, "--operator", "0", "--delete", f"k={key}", *options) for key in keys)


def later(outputs: dict[int, Counter[str]]) -> dict[int, Counter[str]]:
    return {batch: rows for batch, rows in outputs.items() if batch >= BEFORE}


@pytest.mark.parametrize(
    "structure",
    [pytest.param(one, id=one.value, marks=pytest.mark.slow) for one in Structure],
)
def test_a_query_continues_after_its_poison_key_is_deleted(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("poison")
    twin = NativeQuery(spark, folder / "twin", Operator(without_poison, "update"), {**structure.conf})
    twin.run(BEFORE + 3)
    query = failed(spark, folder / "query", structure)
    edit(query.root, folder, POISON)
    clean(open_storage(query.root), folder)
    query.run(0)
    query.run(2)
    assert later(query.outputs) == later(twin.outputs)
    assert sum(map(len, later(query.outputs).values())) > 10
    assert state(query) == state(twin)
    clean(open_storage(query.root), folder)


@pytest.mark.slow
@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
def test_the_comparison_detects_a_query_that_is_not_or_wrongly_edited(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    twin = NativeQuery(spark, folder / "twin", Operator(without_poison, "update"), {**structure.conf})
    twin.run(BEFORE + 1)
    query = failed(spark, folder / "query", structure)
    edit(query.root, folder, "key 0")
    with pytest.raises(StreamingQueryException):
        query.run(0)
    edit(query.root, folder, POISON)
    query.run(0)
    assert later(query.outputs) != later(twin.outputs)
    assert state(query) != state(twin)


IN_THE_STATE = {
    # By the third batch, most of the first keys have expired.
    "dropDuplicatesWithinWatermark": "k=key 34",
    "two operators": "window.start=2026-03-01T00:06:00.000000Z",
}
"""A key that the state has after three batches, by operator. The others have key 0."""


def _shown(value: object) -> str:
    return value.value if isinstance(value, Structure) else str(value).replace(" ", "-")


@pytest.mark.slow
@pytest.mark.parametrize("structure", Structure, ids=_shown)
@pytest.mark.parametrize(
    "name", [name for name in HERE if name not in ("aggregation of all rows", "limit")], ids=_shown
)
def test_an_edit_that_is_undone_changes_nothing_for_spark(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("undone")
    twin = NativeQuery(spark, folder / "twin", OPERATORS[name], {**structure.conf})
    twin.run(3)
    twin.run(2)
    query = NativeQuery(spark, folder / "query", OPERATORS[name], {**structure.conf})
    query.run(3)
    before = state(query)
    told = edit_of(query, folder, IN_THE_STATE.get(name, "field0=key 0" if name.startswith("join") else "k=key 0"))
    assert state(query) != before
    run = told.split("--undo ")[1].split()[0]
    statekeeper("edit", query.root, "--undo", run, "--confirm-stopped")
    assert state(query) == before
    query.run(2)
    assert query.outputs == twin.outputs
    assert state(query) == state(twin)


def edit_of(query: NativeQuery, folder: Path, delete: str) -> str:
    options = ("--apply", "--confirm-stopped", "--scratch", str(folder))
    return statekeeper("edit", query.root, "--operator", "0", "--delete", delete, *options)
