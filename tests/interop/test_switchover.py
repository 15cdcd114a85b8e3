"""Checkpoints that Spark wrote, moved to the other structure: it goes on there as a twin does that was never moved.

Compared are the outputs of all later batches, and what Spark's own reader shows of the state.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statestore.format.structure import Structure
from statestore.storage import open_storage
from tests.interop.native import FORMAT, HERE, OPERATORS, NativeQuery, state
from tests.interop.twins import clean, switch

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in Structure for name in HERE]
IN_CI = [("aggregation", Structure.V1), ("join 2", Structure.V1), ("transformWithState", Structure.V2)]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


def begun(spark: SparkSession, folder: Path, name: str, structure: Structure) -> NativeQuery:
    return NativeQuery(spark, folder / "query", OPERATORS[name], structure.conf)


def switched(query: NativeQuery, to: Structure, scratch: Path) -> None:
    """By the command, and by the conf that goes with it."""
    switch(query, to, scratch)
    query.confs |= to.conf


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_spark_goes_on_in_the_other_structure_as_a_twin_that_never_switched(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("switched")
    query = begun(spark, folder, name, structure)
    query.run(3)
    query.saved("middle")
    middle = state(query)
    storage = open_storage(str(query.checkpoint))
    switched(query, structure.other, folder)
    clean(storage, folder)
    assert state(query) == middle
    query.run(2)
    clean(storage, folder)
    switched(query, structure, folder)
    clean(storage, folder)
    query.run(1)
    switched(query, structure.other, folder)
    query.run(1)
    clean(storage, folder)
    outputs, end = query.outputs, state(query)

    query.restored("middle")
    query.confs |= structure.conf
    query.run(2)
    query.run(1)
    query.run(1)
    assert query.outputs == outputs
    assert state(query) == end


def test_a_checkpoint_of_which_only_the_conf_was_changed_is_switched_all_the_same(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    query = begun(spark, folder, "aggregation", Structure.V1)
    query.run(3)
    query.saved("middle")
    query.confs |= {FORMAT: "2"}
    with pytest.raises(StreamingQueryException, match="CANNOT_COMMIT"):
        query.run(1)
    assert (query.checkpoint / "offsets" / "3").exists()
    assert (query.checkpoint / "state" / "0" / "0" / "4.changelog").exists()
    switched(query, Structure.V2, folder)
    query.run(1)
    outputs, end = query.outputs, state(query)

    query.restored("middle")
    query.confs |= {FORMAT: "1"}
    query.run(2)
    assert query.outputs == outputs
    assert state(query) == end
