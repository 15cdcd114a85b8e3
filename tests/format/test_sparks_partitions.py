"""Every row of the checkpoints that Spark wrote is in the partition that `partition_keys` gives for its key.

Spark itself put each row into the folder of a partition, so no second implementation of its rule is needed.
`tests/interop/test_partition_keys_against_spark.py` runs further operators, keys and numbers of partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from statekeeper.statestore.format.partition_keys import PartitionColumns, PartitionRule
from tests.support.placed_rows import PlacedRows, placed_rows
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHECKPOINTS = sorted(path for path in (FIXTURES / "checkpoints").glob("spark-*.zip") if "-hdfs-" not in path.stem)
CHECKPOINTS += sorted((FIXTURES / "odd_queries").glob("spark-*-several-operators.zip"))
CHECKPOINTS += sorted((FIXTURES / "odd_queries").glob("spark-*-union.zip"))


# Rows of each operator, in all stores and families. A fixture that is written again may have other rows.
FEWEST = {
    "dedupeWithinWatermark": 20,
    "globalLimit": 1,
    "sessionWindowStateStoreSaveExec": 5,
    "stateStoreSave": 200,
    "symmetricHashJoin": 200,
    "transformWithStateInPandasExec": 600,
}
FIRST_OF_SECOND = PartitionColumns.FIRST_OF_SECOND
"""Of maps with a time to live, which these checkpoints lack."""
FAMILIES = 20
"""Stores and families with rows, of all operators."""


@dataclass(frozen=True)
class Written:
    """A checkpoint that Spark wrote."""

    checkpoint: Path
    scratch: Path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    found = []
    for path in CHECKPOINTS:
        folder = tmp_path_factory.mktemp("placed")
        found.append(Written(unpacked(path, folder), folder / "scratch"))
    return found


def test_each_row_is_in_the_partition_of_its_key(written: list[Written]) -> None:
    all_rows = PlacedRows()
    for one in written:
        all_rows += placed_rows(one.checkpoint, one.scratch)
    all_rows.print()
    assert +all_rows.elsewhere == {}
    assert {name: all_rows.of_operators[name] >= fewest for name, fewest in FEWEST.items()} == dict.fromkeys(
        FEWEST, True
    )
    assert set(all_rows.of_operators) == set(FEWEST)
    assert len(all_rows.rows) >= FAMILIES
    assert {name for name in FEWEST if (name, 1) not in all_rows.used} == {"globalLimit"}


def test_rows_hashed_by_their_whole_key_are_seen_elsewhere(written: list[Written]) -> None:
    """A negative control: each rule for some of the columns is needed."""

    def by_whole_key(rule: PartitionRule) -> PartitionRule:
        return replace(rule, columns=PartitionColumns.ALL)

    wrong = PlacedRows()
    for one in written:
        wrong += placed_rows(one.checkpoint, one.scratch, by_whole_key)
    right_by_luck = (PartitionColumns.ALL, PartitionColumns.NONE)  # the hash of no columns is even, as partition 0
    needed = {place for place in wrong.rows if place.columns not in right_by_luck}
    assert set(+wrong.elsewhere) == needed
    assert {place.columns for place in needed} == set(PartitionColumns) - {*right_by_luck, FIRST_OF_SECOND}
