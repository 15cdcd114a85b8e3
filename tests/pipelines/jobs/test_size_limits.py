"""A job whose state of one key outgrows the limit of its readers fails before the sink and the commit."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from statekeeper.pipelines import OperatorHarness, StatefulOperator, Update
from statekeeper.pipelines.startup.preflight import require_partitions
from statekeeper.statestore.base.errors import TooLarge, UnsupportedEnvironment, VersionNotLoadable
from statekeeper.statestore.format.names import MOST_PARTITIONS
from statekeeper.statestore.storage import SizeLimits, StorageSpec
from tests.support.streams import Stream

# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 1024 * 1024
ROWS = pa.schema([("key", pa.int64()), ("mib", pa.int64())])
VALUES = pa.schema([("blob", pa.binary())])
OUTPUT = pa.schema([("key", pa.int64()), ("size", pa.int64())])


def grow(rows: pa.Table, state: pa.Table) -> Update:
    """Append so many MiB to the state of each key."""
    held = {row["key"]: row["blob"] for row in state.to_pylist()}
    for row in rows.to_pylist():
        held[row["key"]] = held.get(row["key"], b"") + b"0" * (row["mib"] * MIB)
    new = pa.table({"key": list(held), "blob": list(held.values())}, schema=pa.schema([ROWS.field("key"), *VALUES]))
    sizes = pa.table({"key": list(held), "size": [len(blob) for blob in held.values()]}, schema=OUTPUT)
    return Update(sizes, new)


def operator() -> StatefulOperator:
    return StatefulOperator(["key"], [], state=VALUES, output=OUTPUT, update=grow)


def test_the_harness_names_the_key_whose_state_is_too_large() -> None:
    with OperatorHarness(operator()) as harness:
        harness.batch([{"key": 7, "mib": 40}, {"key": 8, "mib": 1}])
        with pytest.raises(TooLarge) as refused:
            harness.batch([{"key": 7, "mib": 40}])
        assert "the new state of key {'key': 7} in store 'default'" in refused.value.what
        assert "limit of 67,108,864 bytes" in refused.value.what
        assert "SizeLimits(record_bytes=128 * 1024**2)" in str(refused.value.hint)
        assert harness.batch([{"key": 7, "mib": 1}]).output.to_pylist() == [{"key": 7, "size": 41 * MIB}]


@pytest.mark.spark
def test_a_batch_with_too_large_a_value_fails_before_the_sink_and_continues_with_a_larger_limit(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    low, high = (StorageSpec(str(stream.root), limits=SizeLimits(record_bytes=mib * MIB)) for mib in (8, 16))
    for _ in range(2):
        stream.append({"key": [7], "mib": [6]})
    with pytest.raises(TooLarge, match=r"the new state of key \{'key': 7\} in store 'default'"):
        stream.run(operator(), root=low)
    sizes = [{"key": 7, "size": 6 * MIB}, {"key": 7, "size": 12 * MIB}]
    assert (stream.committed(), stream.output()) == ([0], sizes[:1])
    stream.run(operator(), root=high)
    assert (stream.committed(), stream.output()) == ([0, 1], sorted(sizes, key=repr))
    # A root whose newest batch has such a value, as earlier releases could commit it.
    stream.append({"key": [8], "mib": [1]})
    with pytest.raises(VersionNotLoadable, match="limits=SizeLimits") as failed:
        stream.run(operator(), root=low)
    assert "statekeeper rewind" in str(failed.value)
    stream.run(operator(), root=high)
    assert stream.committed() == [0, 1, 2]


def test_a_job_has_no_more_partitions_than_a_reader_accepts() -> None:
    require_partitions(MOST_PARTITIONS, key_groups=1_000_000)
    with pytest.raises(UnsupportedEnvironment, match="more than the 100,000 partitions"):
        require_partitions(MOST_PARTITIONS + 1, key_groups=1_000_000)
