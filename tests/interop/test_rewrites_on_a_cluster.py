"""Native checkpoints that are edited and switched on a cluster: Spark continues as after these commands on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.commands import statekeeper
from tests.support.native import OPERATORS, NativeQuery, state
from tests.support.on_a_cluster import on_a_cluster
from tests.support.twins import clean

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEYS = {"aggregation": "k=key 0", "transformWithState": "k=key 0", "join 3": "field0=key 6"}
"""A key of the state after three batches, by operator."""


def rewrites(query: NativeQuery, key: str, to: Structure) -> list[list[str]]:
    options = ["--apply", "--confirm-stopped", "--for-spark", "4.2"]
    return [
        ["edit", query.root, "--operator", "0", "--delete", key, *options],
        ["switch", query.root, "--to", to.value, *options],
    ]


@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
@pytest.mark.parametrize("name", KEYS)
def test_spark_continues_after_rewrites_on_a_cluster_as_after_those_on_this_machine(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure
) -> None:
    folder: Path = tmp_path_factory.mktemp("rewritten")
    query = NativeQuery(spark, folder / "query", OPERATORS[name], {**structure.conf})
    query.run(3)
    query.saved("middle")
    before, found = state(query), []
    for is_on_a_cluster in (True, False):
        commands = rewrites(query, KEYS[name], structure.other)
        if is_on_a_cluster:
            done = on_a_cluster(*([*one, "--executor", "spark"] for one in commands))
            assert [one.exit_code for one in done] == [0, 0], done
        else:
            assert [statekeeper(*one).exit_code for one in commands] == [0, 0]
        query.confs |= structure.other.conf
        assert state(query) != before
        clean(open_storage(query.root), folder)
        query.run(2)
        clean(open_storage(query.root), folder)
        found.append(({**query.outputs}, state(query)))
        query.restored("middle")
        query.confs |= structure.conf
    assert found[0] == found[1]
