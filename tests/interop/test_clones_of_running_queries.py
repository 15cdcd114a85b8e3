"""A clone of a native query that is running: Spark continues from it as the query itself does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import OPERATORS, NativeQuery, state
from tests.support.twins import clean, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DURING = 4
"""The batch during which the checkpoint is cloned."""


class _Cloning(dict[int, Counter[str]]):
    """The outputs of a query, which is cloned while a batch is written."""

    def __init__(self, query: NativeQuery, clone: Path) -> None:
        super().__init__()
        self._query, self._clone = query, clone

    def __setitem__(self, batch: int, rows: Counter[str]) -> None:
        super().__setitem__(batch, rows)
        if batch == DURING and not self._clone.exists():
            statekeeper("clone", self._query.root, str(self._clone), "--scratch", str(self._query.folder / "scratch"))


@pytest.mark.parametrize("structure", Structure, ids=lambda structure: structure.value)
@pytest.mark.parametrize("name", ["aggregation", "transformWithState"])
def test_spark_continues_from_a_clone_of_a_running_query(
    spark: SparkSession, tmp_path: Path, name: str, structure: Structure
) -> None:
    query, clone = NativeQuery(spark, tmp_path / "query", OPERATORS[name], structure.conf), tmp_path / "clone"
    query.outputs = _Cloning(query, clone)
    query.run(7)
    outputs, end = dict(query.outputs), state(query)
    cloned = catalog.newest_batch(open_storage(str(clone)))
    # In structure V1, a running query may replace the changelogs of its newest two batches.
    assert cloned == DURING - (3 if structure is Structure.V1 else 1)
    clean(open_storage(str(clone)), tmp_path)
    query.checkpoint, query.outputs = clone, {batch: rows for batch, rows in outputs.items() if batch <= cloned}
    query.run(0)
    assert query.outputs == outputs
    assert state(query) == end
