"""A failover of a native query: its checkpoint vanishes during a batch, and Spark continues from the mirror."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import HERE, OPERATORS, NativeQuery, state
from tests.support.twins import clean, statekeeper, take_wrong_snapshots

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in Structure for name in HERE]
IN_CI = [("aggregation", Structure.V2)]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


STEPS = (3, 2, 3)
"""Batches with input in each run. At the end of a run, Spark adds a batch without input if the watermark has advanced."""


def _shown(value: object) -> str:
    return value.value if isinstance(value, Structure) else str(value).replace(" ", "-")


class Outage:
    """The outputs of a query, whose checkpoint vanishes while a batch is written."""

    def __init__(self, query: NativeQuery, batch: int) -> None:
        self._query, self._batch, self._kept = query, batch, query.outputs
        query.outputs = self  # type: ignore[assignment]

    def __setitem__(self, batch: int, rows: object) -> None:
        if batch == self._batch:
            shutil.rmtree(self._query.checkpoint)
            raise OSError("the bucket does not exist")
        self._kept[batch] = rows  # type: ignore[assignment]

    def over(self) -> None:
        self._query.outputs = self._kept


def failed_over(query: NativeQuery, folder: Path) -> int:
    """Mirror the checkpoint repeatedly, lose it during a batch, and let the query continue from the mirror. Returns the
    newest batch of the mirror."""
    mirror = query.folder / "mirror"
    run = ("mirror", query.root, str(mirror), "--confirm-stopped", "--scratch", str(folder))
    for batches in STEPS[:2]:
        query.run(batches)
        statekeeper(*run)
    newest = catalog.newest_batch(open_storage(query.root))
    mirrored = catalog.newest_batch(open_storage(str(mirror)))
    assert newest is not None
    assert mirrored is not None
    outage = Outage(query, newest + 2)
    with pytest.raises(StreamingQueryException):
        query.run(STEPS[2])
    outage.over()
    statekeeper(*run, exit_code=10)
    clean(open_storage(str(mirror)), folder)
    query.checkpoint = mirror
    query.outputs = {done: rows for done, rows in query.outputs.items() if done <= mirrored}
    return mirrored


def twin(query: NativeQuery) -> None:
    """Run the same batches from an empty checkpoint, in the same steps."""
    for side in ("left", "right"):
        shutil.rmtree(query.folder / side)
        (query.folder / side).mkdir()
    query.checkpoint = query.folder / "twin"
    query.outputs, query.batches = {}, 0
    for batches in STEPS:
        query.run(batches)


@pytest.mark.parametrize(("name", "structure"), CASES, ids=_shown)
def test_spark_continues_from_a_mirror_like_its_twin(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("mirrored")
    query = NativeQuery(spark, folder / "query", OPERATORS[name], structure.conf)
    failed_over(query, folder)
    # The input of the lost batches is still there.
    query.run(0)
    outputs, end = dict(query.outputs), state(query)
    clean(open_storage(query.root), folder)
    twin(query)
    assert query.batches == sum(STEPS)
    assert outputs == query.outputs
    assert state(query) == end


@pytest.mark.slow
def test_the_comparison_detects_a_mirror_that_lacks_a_key(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], Structure.V2.conf)
    failed_over(query, folder)
    take_wrong_snapshots(query, folder)
    query.run(0)
    end = state(query)
    twin(query)
    assert state(query) != end
