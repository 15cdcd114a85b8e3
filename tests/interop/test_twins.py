"""Native checkpoints: Spark continues from Statekeeper's snapshots as from its own.

These tests use the project's own Spark. `make interop-matrix` does the same on all others, and from one to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statekeeper.statestore.cli import main
from statekeeper.statestore.storage import open_storage
from tests.support import twins
from tests.support.native import (
    CHANGELOGS,
    FORMAT,
    HERE,
    NAMED_SINKS,
    OPERATORS,
    STATE_STORE,
    NativeQuery,
    state,
    views_as_json,
)

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in ("1", "2") for name in HERE]
IN_CI = [("two operators", "2")]


def _slow(*case: str) -> ParameterSet:
    return pytest.param(*case, marks=pytest.mark.slow)


CODEC = f"{STATE_STORE}compression.codec"
HOW: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    **{codec: {CODEC: codec} for codec in ("zstd", "snappy", "lzf")},
    "named by its class": {CODEC: "org.apache.spark.io.ZStdCompressionCodec"},
    "named sinks": {NAMED_SINKS: "true"},
    "checksums and commas": {
        f"{STATE_STORE}rowChecksum.enabled": "true",
        f"{STATE_STORE}rocksdb.mergeOperatorVersion": "1",
    },
}
"""Confs that change the bytes of a state, or of the commit log."""

OTHERWISE = [
    ("sessions", "1", "zstd"),
    ("transformWithState", "2", "zstd"),
    ("windows", "2", "snappy"),
    ("join 2", "1", "snappy"),
    ("dropDuplicates", "1", "lzf"),
    ("join 3", "2", "lzf"),
    ("aggregation", "2", "named by its class"),
    ("aggregation", "2", "named sinks"),
    ("aggregation", "1", "checksums and commas"),
    ("transformWithState", "2", "checksums and commas"),
    ("join 4", "1", "checksums and commas"),
]
CASES = [
    *(
        (name, structure, "plain") if (name, structure) in IN_CI else _slow(name, structure, "plain")
        for name, structure in MATRIX
    ),
    *(_slow(*case) for case in OTHERWISE),
]


@pytest.mark.parametrize(("name", "structure", "how"), CASES)
def test_spark_continues_from_our_snapshots_like_a_twin_without_them(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: str, how: str
) -> None:
    folder = tmp_path_factory.mktemp("twins")
    query = NativeQuery(spark, folder / "query", OPERATORS[name], {FORMAT: structure, **HOW[how]})
    oracle = twins.Oracle(lambda: state(query), lambda: views_as_json(query))
    twin = twins.untouched(query, oracle)

    query.restored("middle")
    storage = open_storage(str(query.checkpoint))
    twins.clean(storage, folder)
    files = storage.list("")
    refused = CliRunner().invoke(main, ["snapshot", str(query.checkpoint), *twins.AT_HEAD, "--scratch", str(folder)])
    assert refused.exit_code == 13, "nobody has allowed to write into a checkpoint of Spark's"
    assert storage.list("") == files
    twins.take_snapshots(query, folder)
    twins.clean(storage, folder)
    assert oracle.state() == twin.middle
    twins.goes_on(query, oracle, twin)

    query.restored("middle")
    twins.take_wrong_snapshots(query, folder)
    assert oracle.state() != twin.middle


@pytest.mark.slow
@pytest.mark.parametrize(("name", "structure"), [("aggregation", "1"), ("transformWithState", "2")])
def test_a_query_with_a_zip_per_version_continues_with_and_without_changelogs(
    spark: SparkSession, tmp_path: Path, name: str, structure: str
) -> None:
    """As queries did before there were changelogs, and do while these are not switched on."""
    query = NativeQuery(spark, tmp_path / "query", OPERATORS[name], {FORMAT: structure, CHANGELOGS: "false"})
    query.run(3)
    query.saved("zips")
    middle = state(query)
    root, storage = str(query.checkpoint), open_storage(str(query.checkpoint))
    assert twins.changelogs(storage) == []
    twins.clean(storage, tmp_path)
    collected = ["gc", root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply"]
    twins.statekeeper(*collected)
    twins.clean(storage, tmp_path)
    assert state(query) == middle
    query.confs[CHANGELOGS] = "true"
    query.run(1)
    assert twins.changelogs(storage)
    twins.clean(storage, tmp_path)
    twins.take_snapshots(query, tmp_path)
    twins.clean(storage, tmp_path)
    query.run(1)
    outputs, end = query.outputs, state(query)

    query.restored("zips")
    query.confs[CHANGELOGS] = "false"
    query.run(2)
    assert query.outputs == outputs
    assert state(query) == end != middle
    twins.clean(storage, tmp_path)
    twins.statekeeper(*collected)
    assert state(query) == end
