"""`start` raises every error that is detectable before the first batch, and writes nothing then."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statekeeper.pipelines.operator.declaration import Frames, StatefulOperator, Update
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.pipelines.startup.preflight import chosen_partitions, require_root, row_columns
from statekeeper.pipelines.startup.query import start
from statekeeper.pipelines.task.stored import store_schemas
from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import (
    ForeignRoot,
    OtherStructure,
    RootLost,
    SchemaMismatch,
    StatekeeperError,
    StorageError,
    UnsafeSink,
    UnsupportedEnvironment,
    UnsupportedType,
    UnusableFunction,
)
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.state_root import StateRoot
from statekeeper.statestore.storage import open_storage
from tests.support.streams import conf

STATE = pa.schema([("count", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("count", pa.int64())])


def nothing(rows: Any, state: Any) -> Update:
    return Update(None)


OPERATOR = StatefulOperator(["key"], ["at"], state=STATE, output=OUTPUT, update=nothing)


def rate(session: SparkSession, *more: str) -> Any:
    return session.readStream.format("rate").load().selectExpr("value AS key", "value AS at", *more)


def begin(session: SparkSession, folder: Path, operator: StatefulOperator = OPERATOR, **changes: Any) -> Any:
    how: dict[str, Any] = {
        "root": str(folder / "root"),
        "checkpoint": str(folder / "checkpoint"),
        "sink": DeltaSink(str(folder / "sink")),
        "partitions": 2,
        **changes,
    }
    return start(operator, how.pop("stream", None) or rate(session), **how)


def holding_a_lock() -> Any:
    lock = threading.Lock()
    return lambda rows, state: Update(lock)


def output(*columns: str) -> pa.Schema:
    return pa.schema([(name, pa.int64()) for name in columns])


REFUSED: dict[str, tuple[StatefulOperator, dict[str, Any], type[StatekeeperError], str]] = {
    "what cannot be pickled": (
        replace(OPERATOR, update=holding_a_lock()),
        {},
        UnusableFunction,
        "cannot be sent to Spark's workers: .*lock",
    ),
    "one argument": (replace(OPERATOR, update=len), {}, UnusableFunction, "does not take two arguments"),
    "an output twice": (
        replace(OPERATOR, output=output("n", "N")),
        {},
        SchemaMismatch,
        r"duplicate column names: \['n'\]",
    ),
    "a name of the operator's own": (
        replace(OPERATOR, output=output("__statekeeper_tag")),
        {},
        SchemaMismatch,
        "adds itself",
    ),
    "a state column twice": (
        replace(OPERATOR, state=pa.schema([*STATE, *STATE])),
        {},
        SchemaMismatch,
        "two columns of one name",
    ),
    "too many partitions": (
        OPERATOR,
        {"partitions": 129},
        UnsupportedEnvironment,
        r"partitions=129 is not between 1 and .*\(128\)",
    ),
    "no partitions": (OPERATOR, {"partitions": 0}, UnsupportedEnvironment, "partitions=0 is not"),
    "a continuous trigger": (OPERATOR, {"trigger": {"continuous": "1 second"}}, UnsupportedEnvironment, "no batches"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_start_rejects_a_wrong_declaration(delta_session, tmp_path, what):
    operator, changes, error, said = REFUSED[what]
    with pytest.raises(error, match=said):
        begin(delta_session, tmp_path, operator, **changes)
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_start_rejects_rows_that_cannot_be_batches_of_a_stream(delta_session, tmp_path):
    table = delta_session.range(3).selectExpr("id AS key", "id AS at")
    for stream, error, said in [
        (table, UnsupportedEnvironment, "is not a stream -> read the input with spark.readStream"),
        (rate(delta_session, "1 AS __statekeeper_marker"), SchemaMismatch, "adds itself"),
    ]:
        with pytest.raises(error, match=said):
            begin(delta_session, tmp_path, stream=stream)
    with pytest.raises(UnsupportedType, match=r"order column tags holds map<.*has no order"):
        begin(
            delta_session,
            tmp_path,
            replace(OPERATOR, order_by=["tags"]),
            stream=rate(delta_session, "map('a', 1) AS tags"),
        )


def test_start_rejects_nested_and_unwritable_locations(delta_session, tmp_path):
    root = str(tmp_path / "root")
    for changes, said in [
        ({"checkpoint": root}, "the folder of the root .* is equal to or inside the folder of the checkpoint"),
        (
            {"checkpoint": f"file://{root}/checkpoint"},
            "the folder of the checkpoint .* is equal to or inside the folder of the root",
        ),
        ({"sink": DeltaSink(f"{root}/sink")}, "the folder of the sink .* is equal to or inside the folder of the root"),
    ]:
        with pytest.raises(UnsupportedEnvironment, match=said):
            begin(delta_session, tmp_path, **changes)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file is a file -> name a folder"):
        begin(delta_session, tmp_path, root=str(tmp_path / "file" / "root"))


def test_start_rejects_a_sink_that_cannot_store_the_output(delta_session, tmp_path):
    retention = "delta.setTransactionRetentionDuration"
    DeltaTable.create(str(tmp_path / "forgets"), OUTPUT, configuration={retention: "interval 1 days"})
    DeltaTable.create(str(tmp_path / "narrow"), OUTPUT.remove(1))
    for folder, error, said in [
        ("forgets", UnsafeSink, "interval 1 days: it loses the record"),
        ("narrow", SchemaMismatch, r"the sink's table has no columns \['count'\]"),
    ]:
        with pytest.raises(error, match=said):
            begin(delta_session, tmp_path, sink=DeltaSink(str(tmp_path / folder)))
    default = f"spark.databricks.delta.properties.defaults.{retention.removeprefix('delta.')}"
    with (
        conf(delta_session, {default: "interval 1 days"}),
        pytest.raises(
            UnsafeSink, match="a new table would lose the record of its batches, and a crash could write a batch twice"
        ),
    ):
        begin(delta_session, tmp_path)


def test_a_root_has_at_most_one_partition_per_key_group(delta_session):
    with conf(delta_session, {"spark.sql.shuffle.partitions": "200"}):
        assert chosen_partitions(delta_session, None, 128) == 128
    with conf(delta_session, {"spark.sql.shuffle.partitions": "7"}):
        assert chosen_partitions(delta_session, None, 128) == 7


def test_without_a_setting_of_the_session_a_root_has_a_few_partitions_for_each_slot_and_not_sparks_200(delta_session):
    key = "spark.sql.shuffle.partitions"
    own = delta_session.newSession()
    kept = own.conf.get(key)
    own.conf.unset(key)
    try:
        assert own.conf.get(key) == "200"
        assert own.sparkContext.defaultParallelism == 2
        assert chosen_partitions(own, None, 128) == 8
        assert chosen_partitions(own, None, 4) == 4
    finally:
        own.conf.set(key, kept)


def test_start_rejects_a_root_of_another_query(delta_session, tmp_path):
    root, checkpoint = (open_storage(str(tmp_path / name)) for name in ("root", "checkpoint"))
    stream = rate(delta_session)
    columns = row_columns(OPERATOR, stream.schema)

    def check(operator: StatefulOperator = OPERATOR, structure: Structure = Structure.V2) -> None:
        require_root(root, checkpoint, operator, row_columns(operator, stream.schema), structure)

    check()
    assert not list(tmp_path.iterdir()), "nothing was written"
    query_id = str(uuid.uuid4())
    wanted = Binding(root_id="", query_id=query_id, partitions=1, key_groups=8, stores=store_schemas(OPERATOR, columns))
    bound = StateRoot.open(root, wanted, batch=0, ids=RandomIds())
    with pytest.raises(ForeignRoot, match=r"belongs to query .*, not to a new query"):
        check()
    checkpoint.create(names.QUERY_METADATA, logs.encode_metadata(query_id))
    check()
    with pytest.raises(SchemaMismatch, match="column count: long, but the job declares count: double"):
        check(replace(OPERATOR, state=pa.schema([("count", pa.float64())])))
    bound.commit(0, {0: (RandomIds().fresh(),)})
    with pytest.raises(OtherStructure, match="the root has structure V2, but the job requires V1"):
        check(structure=Structure.V1)
    for batch in (0, 1):
        checkpoint.create(names.commits(batch), b"v1\n{}")
    with pytest.raises(RootLost, match="the query has committed batch 1, but the root has only batch 0"):
        check()


def test_pandas_frames_are_checked_like_tables(delta_session, tmp_path):
    with pytest.raises(UnusableFunction, match="two arguments"):
        begin(delta_session, tmp_path, replace(OPERATOR, frames=Frames.PANDAS, update=lambda rows: Update(None)))


def test_a_query_of_an_active_name_is_rejected(session: SparkSession, tmp_path: Path) -> None:
    first = begin(session, tmp_path / "first", name="orders")
    try:
        with pytest.raises(UnsupportedEnvironment, match=r"a query with the name 'orders' is active .* another name"):
            begin(session, tmp_path / "second", name="orders")
        assert not (tmp_path / "second").exists()
    finally:
        first.stop()
    begin(session, tmp_path / "second", name="orders").stop()


def test_a_source_that_does_not_exist_is_rejected_and_a_pattern_without_a_match_is_logged(
    session: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rows").mkdir()
    files = session.readStream.schema("key long, at long")
    stream = files.parquet(str(tmp_path / "rows"))
    (tmp_path / "rows").rmdir()
    with pytest.raises(StorageError, match=r"rows: the source does not exist; .* correct the path of spark.readStream"):
        begin(session, tmp_path, stream=rate(session).union(stream))
    assert not (tmp_path / "root").exists()
    with caplog.at_level("WARNING", "statekeeper"):
        begin(session, tmp_path, stream=files.parquet(f"{tmp_path}/2026-*/rows")).stop()
    assert f"no folder matches the source {tmp_path}/2026-*/rows yet" in caplog.text
