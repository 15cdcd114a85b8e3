"""Which key columns place a row, and the cases in which that is unknown. The rows of Spark's own checkpoints are in
`tests/format/test_sparks_partitions.py`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from statekeeper.statestore.base.errors import CorruptFile, RefusedAsUnsafe, UnknownPartitioning
from statekeeper.statestore.format.families import Family, KeyEncoder
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.partition_keys import (
    PartitionColumns,
    key_hashes,
    partition_rules,
    require_partition,
)
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.unsafe_row import encode_rows

STORE = StorePath(3, 1)
CONF = StateConf()
VALUE = pa.schema([("v", pa.int64())])
KEY = pa.struct([("k", pa.string()), ("n", pa.int32())])
USER_KEY = pa.struct([("key", KEY), ("userKey", pa.struct([("u", pa.string())]))])
AGGREGATION, JOIN, TRANSFORM = "stateStoreSave", "symmetricHashJoin", "transformWithStateExec"
SESSIONS = "sessionWindowStateStoreSaveExec"


def family(*columns: tuple[str, pa.DataType], encoder: KeyEncoder = KeyEncoder.WHOLE, front: int = 0) -> Family:
    return Family(pa.schema(columns), VALUE, encoder, tuple(range(front)))


PLAIN = family(("k", pa.string()), ("n", pa.int32()))
INDEXED = family(("field0", pa.string()), ("index", pa.int64()))
SESSION = family(("k", pa.string()), ("sessionStartTime", pa.timestamp("us")), encoder=KeyEncoder.PREFIX, front=1)
MAP = family(("key", KEY), ("userKey", pa.struct([("u", pa.string())])), encoder=KeyEncoder.PREFIX, front=1)
BY_TIME = family(("expirationMs", pa.int64()), ("elementKey", KEY), encoder=KeyEncoder.RANGE, front=1)
MAP_BY_TIME = family(("expirationMs", pa.int64()), ("elementKey", USER_KEY), encoder=KeyEncoder.RANGE, front=1)
VOID = family(("key", pa.null()))
NOTHING = family()


def columns(operator: str, families: dict[str | None, Family], store: StorePath = STORE) -> dict[str | None, str]:
    return {name: rule.columns.name for name, rule in partition_rules(operator, store, families, CONF).items()}


@pytest.mark.parametrize(
    "operator", [AGGREGATION, "dedupe", "dedupeWithinWatermark", "flatMapGroupsWithState", "applyInPandasWithState"]
)
def test_most_operators_partition_by_the_whole_key(operator: str) -> None:
    assert columns(operator, {None: PLAIN}) == {None: "ALL"}


def test_sessions_are_partitioned_without_their_start() -> None:
    assert columns(SESSIONS, {None: SESSION}) == {None: "ALL_BUT_LAST"}


def test_limits_and_aggregations_over_all_rows_have_one_partition() -> None:
    for operator, layout in (("globalLimit", VOID), (AGGREGATION, NOTHING)):
        assert columns(operator, {None: layout}) == {None: "NONE"}
        [rule] = partition_rules(operator, replace(STORE, partition=0), {None: layout}, CONF).values()
        hashes = key_hashes([b"", b""], rule)
        assert partitions_of(hashes, 7).tolist() == [0, 0]
        require_partition(hashes, rule, 7)


def test_stores_and_families_of_a_join_are_partitioned_by_the_join_key() -> None:
    assert columns(JOIN, {None: PLAIN}, StorePath(0, 1, "left-keyToNumValues")) == {None: "ALL"}
    assert columns(JOIN, {None: INDEXED}, StorePath(0, 1, "right-keyWithIndexToValue")) == {None: "ALL_BUT_LAST"}
    families = {"left-keyToNumValues": PLAIN, "left-keyWithTsToValues": INDEXED, "right-tsWithKey": INDEXED}
    assert list(columns(JOIN, dict(families)).values()) == ["ALL", "ALL_BUT_LAST", "ALL_BUT_LAST"]


def test_families_of_variables_and_timers_are_partitioned_by_the_grouping_key() -> None:
    expected = {
        "value": (PLAIN, "ALL"),
        "list": (PLAIN, "ALL"),
        "map": (MAP, "FIRST"),
        "$ttl_value": (BY_TIME, "SECOND"),
        "$ttl_list": (BY_TIME, "SECOND"),
        "$ttl_map": (MAP_BY_TIME, "FIRST_OF_SECOND"),
        "$min_list": (PLAIN, "ALL"),
        "$count_list": (PLAIN, "ALL"),
        "$rowCounter_list": (PLAIN, "ALL"),
        "$procTimers_keyToTimestamp": (MAP, "FIRST"),
        "$eventTimers_timestampToKey": (BY_TIME, "SECOND"),
    }
    families: dict[str | None, Family] = {name: layout for name, (layout, _) in expected.items()}
    assert columns(TRANSFORM, families) == {name: found for name, (_, found) in expected.items()}


def test_two_grouping_columns_are_not_taken_for_the_key_of_a_map() -> None:
    """Its key by expiry time has the columns of a map's."""
    grouped = family(("key", KEY), ("userKey", pa.struct([("u", pa.string())])))
    assert columns(TRANSFORM, {"value": grouped, "$ttl_value": MAP_BY_TIME}) == {"value": "ALL", "$ttl_value": "SECOND"}


def test_operators_of_spark_3_5_without_metadata_are_recognized_by_their_schemas() -> None:
    assert columns("", {None: PLAIN}) == {None: "ALL"}
    assert columns("", {None: SESSION}) == {None: "ALL_BUT_LAST"}
    assert columns("", {None: NOTHING}) == {None: "NONE"}
    assert columns("", {None: VOID}) == {None: "NONE"}
    assert columns("", {None: INDEXED}, StorePath(0, 1, "left-keyWithIndexToValue")) == {None: "ALL_BUT_LAST"}


UNKNOWN: list[tuple[str, dict[str | None, Family], StateConf, str]] = [
    ("ofLater", {None: PLAIN}, CONF, "does not know the columns"),
    ("statekeeper", {None: PLAIN}, CONF, "does not know the columns"),
    (AGGREGATION, {"a family": PLAIN}, CONF, r"family a family: this release does not know"),
    (JOIN, {None: PLAIN}, CONF, "does not know the columns"),
    (JOIN, {"left-ofLater": PLAIN}, CONF, "family left-ofLater: this release does not know"),
    (TRANSFORM, {None: PLAIN}, CONF, "does not know the columns"),
    (TRANSFORM, {"$ofLater_x": PLAIN}, CONF, "does not know the columns"),
    (TRANSFORM, {"$ttl_x": BY_TIME}, CONF, "does not know the columns"),
    (TRANSFORM, {"x": MAP, "$ttl_x": BY_TIME}, CONF, "lacks the columns that Spark hashes"),
    (TRANSFORM, {"$procTimers_keyToTimestamp": PLAIN}, CONF, "lacks the columns that Spark hashes"),
    (TRANSFORM, {"$procTimers_timestampToKey": family(("k", pa.int64()))}, CONF, "lacks the columns"),
    (SESSIONS, {None: family(("sessionStartTime", pa.int64()))}, CONF, "no column that Spark hashes"),
    (
        AGGREGATION,
        {None: family(("m", pa.map_(pa.string(), pa.int64())))},
        CONF,
        r"column m .* which Spark's hash function",
    ),
    (AGGREGATION, {None: PLAIN}, StateConf(encoding="avro"), "encodes its rows as avro"),
    (AGGREGATION, {None: PLAIN}, StateConf(is_strictly_distributed=False), r"before Spark 3\.3"),
    (AGGREGATION, {}, CONF, "schema of its keys is unknown"),
]


@pytest.mark.parametrize(("operator", "families", "conf", "reason"), UNKNOWN)
def test_what_cannot_be_known_is_rejected_with_operator_store_and_reason(
    operator: str, families: dict[str | None, Family], conf: StateConf, reason: str
) -> None:
    with pytest.raises(UnknownPartitioning, match=reason) as caught:
        partition_rules(operator, STORE, families, conf)
    assert isinstance(caught.value, RefusedAsUnsafe)
    assert caught.value.what.startswith(f"operator 3 ({operator}), store default")
    assert caught.value.path == "state/3/1"


def test_a_join_of_an_old_query_is_strictly_distributed() -> None:
    store, conf = StorePath(0, 1, "left-keyToNumValues"), StateConf(is_strictly_distributed=False)
    assert partition_rules(JOIN, store, {None: PLAIN}, conf)[None].columns is PartitionColumns.ALL


def test_rows_in_another_partition_than_their_keys_are_rejected() -> None:
    """Of a query that partitions by another expression, for example."""
    table = pa.table({"k": [f"key {i}" for i in range(50)], "n": pa.array(range(50), pa.int32())})
    keys = encode_rows(table, head=b"\0").to_pylist()
    [rule] = partition_rules(AGGREGATION, STORE, {None: PLAIN}, CONF).values()
    hashes = key_hashes(keys, rule)
    assert np.array_equal(hashes, row_hashes(table))
    here = partitions_of(hashes, 2) == 1
    require_partition(hashes[here], rule, 2)
    require_partition(hashes[:0], rule, 2)
    with pytest.raises(
        UnknownPartitioning, match="is in partition 1, but by the known rule, its key belongs to partition 0 of 2"
    ):
        require_partition(hashes, rule, 2)


def test_keys_that_do_not_fit_the_schema_are_corrupt() -> None:
    [rule] = partition_rules(AGGREGATION, STORE, {None: PLAIN}, CONF).values()
    with pytest.raises(CorruptFile):
        key_hashes([b"\0" + bytes(9)], rule)
