"""Names of several outputs: in the operator, in the result of a function, and in the sinks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines import AtLeastOnceSink, DeltaSink, NoSink, OperatorHarness, StatefulOperator, Update
from statekeeper.pipelines.batch.outputs import require_sinks
from statekeeper.pipelines.sinks.data_files import DataFile
from statekeeper.pipelines.startup import preflight
from statekeeper.statestore.base.errors import (
    CorruptFile,
    SchemaMismatch,
    UnsafeSink,
    UnsupportedEnvironment,
    UnsupportedType,
    WrongResult,
)
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.attempts import OutputRecord, SinkPosition
from statekeeper.statestore.root.state_root import Pending
from statekeeper.statestore.storage import open_storage
from tests.support.adding_operator import OUTPUT, ROWS, STATE, adding, totals_of, totals_table
from tests.support.roots import QUERY, fresh_ids, opened, outer
from tests.support.streams import Stream

ALERTS = pa.schema([("key", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"), nullable=False)])
OUTPUTS = {"facts": OUTPUT, "alerts": ALERTS}


def returning(output: Any) -> StatefulOperator:
    """Return an operator whose function returns these outputs."""

    def update(rows: pa.Table, state: pa.Table) -> Update:
        table = totals_table(totals_of(rows, state))
        return Update(output(table), table)

    return adding(update, output=OUTPUTS)


ROWS_OF_A_BATCH = [{"key": 1, "at": 0, "value": 5}, {"key": 2, "at": 1, "value": 7}]


def test_each_output_has_its_own_rows_and_none_is_an_output_without_rows() -> None:
    alert = pa.table({"key": [2], "at": pa.array([1_000_000], pa.timestamp("us", "UTC"))})
    with OperatorHarness(returning(lambda facts: {"facts": facts, "alerts": alert})) as harness:
        output = harness.batch(ROWS_OF_A_BATCH).output
        assert {name: table.schema for name, table in output.items()} == OUTPUTS
        assert {row["key"]: row["total"] for row in output["facts"].to_pylist()} == {1: 5, 2: 7}
        assert output["alerts"].to_pylist() == alert.to_pylist()
        assert {name: table.num_rows for name, table in harness.batch([]).output.items()} == {"facts": 0, "alerts": 0}
    with OperatorHarness(returning(lambda facts: {"facts": None, "alerts": None})) as harness:
        result = harness.batch(ROWS_OF_A_BATCH)
        assert {name: table.num_rows for name, table in result.output.items()} == {"facts": 0, "alerts": 0}
        assert result.state.num_rows == 2


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda facts: facts, "the output is a Table -> an operator with several outputs must return a dict"),
        (lambda facts: {"facts": facts}, "the function returned no output 'alerts' -> return a table, or None"),
        (lambda facts: {"facts": facts, "alerts": None, "late": facts}, "returned outputs that are not declared: late"),
        (lambda facts: {"facts": facts, "alerts": facts}, r"output 'alerts' lacks the columns \['at'\]"),
    ],
)
def test_a_result_with_wrong_outputs_is_rejected_and_commits_nothing(output: Any, message: str) -> None:
    with OperatorHarness(returning(output)) as harness:
        with pytest.raises(WrongResult, match=message):
            harness.batch(ROWS_OF_A_BATCH)
        assert harness.batch([]).state.num_rows == 0


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ({}, SchemaMismatch, "the operator has no outputs"),
        ({"the facts": OUTPUT}, SchemaMismatch, "the name of output 'the facts' is not valid"),
        ({"facts": pa.schema([("x", pa.dictionary(pa.int8(), pa.string()))])}, UnsupportedType, "x"),
    ],
)
def test_outputs_that_spark_cannot_hold_are_rejected_when_they_are_declared(
    output: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        adding(output=output)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"facts": OUTPUT, "Facts": OUTPUT}, r"duplicate names of outputs: \['facts'\]"),
        ({"facts": OUTPUT, "alerts": pa.schema([("a", pa.int8()), ("A", pa.int8())])}, "output 'alerts' has duplicate"),
    ],
)
def test_names_that_differ_only_in_case_are_rejected_at_the_start(output: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        preflight.require_usable(adding(output=output))


DELTA = DeltaSink("/tables/facts")
TO_FILES = DeltaSink("/tables/alerts", writer="tasks")


@pytest.mark.parametrize(
    ("sink", "error", "message"),
    [
        (DELTA, SchemaMismatch, "there is one sink, but the operator has the outputs .*'alerts', 'facts'"),
        ({"facts": DELTA}, SchemaMismatch, r"the sinks have the names \['facts'\]"),
        ({"facts": DELTA, "alerts": TO_FILES, "late": DELTA}, SchemaMismatch, r"names \['alerts', 'facts', 'late'\]"),
        ({"facts": DELTA, "alerts": AtLeastOnceSink(print)}, UnsafeSink, "'alerts' cannot report its batches"),
    ],
)
def test_sinks_that_do_not_fit_the_outputs_are_rejected(sink: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        require_sinks(adding(output=OUTPUTS), sink, Structure.V2)


def test_structure_v1_supports_one_output_through_spark() -> None:
    two = adding(output=OUTPUTS)
    with pytest.raises(UnsupportedEnvironment, match="can go through Spark in structure V1"):
        require_sinks(two, {"facts": DELTA, "alerts": DeltaSink("/tables/alerts")}, Structure.V1)
    for other in (TO_FILES, NoSink()):
        assert set(require_sinks(two, {"facts": DELTA, "alerts": other}, Structure.V1)) == set(OUTPUTS)


def test_named_sinks_of_an_operator_without_names_are_rejected() -> None:
    with pytest.raises(SchemaMismatch, match="the operator declares one output without a name"):
        require_sinks(adding(), {"facts": DELTA}, Structure.V2)


@pytest.mark.spark
@pytest.mark.slow
def test_two_sinks_with_one_path_are_rejected_before_the_start(delta_session: SparkSession, tmp_path: Path) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    sink = DeltaSink(stream.facts)
    with pytest.raises(
        UnsupportedEnvironment, match=r"the folder of the sink of facts .* the folder of the sink of alerts"
    ):
        stream.run(adding(output=OUTPUTS), sink={"facts": sink, "alerts": sink})
    assert not stream.root.exists()


# -- the record of an attempt ------------------------------------------------------------------------------------------

FILE = DataFile(
    path="part-00003-0b0e5f0e-8f5e-4f7e-9a55-3a1c1f6b9c10.snappy.parquet",
    size_bytes=7,
    modified_at_milliseconds=1,
    partition_values={"region": None, "day": "2024-02-29"},
    statistics='{"numRecords": 1}',
)


def test_the_record_of_an_attempt_keeps_its_outputs(tmp_path: Path) -> None:
    root = opened(open_storage(str(tmp_path)))
    outputs = {
        "facts": OutputRecord(columns="[]", sink=SinkPosition("a table", 7), files=(FILE.as_json(),)),
        "alerts": OutputRecord(columns="[]", rows="3:00ff"),
        "dropped": OutputRecord(columns="[]"),
    }
    root.begin(0, outer(0))
    pending = Pending(
        batch=0,
        attempt="11111111-0000-4000-8000-00000000000a",
        root_id=root.binding.root_id,
        query_id=QUERY,
        sources=outer(0).sources,
        schema=root.schema(),
        ids=fresh_ids(root),
        outputs=outputs,
    )
    root.write_pending(pending)
    found = root.pending(0, pending.attempt)
    assert found == pending
    assert DataFile.from_json(found.outputs["facts"].files[0]) == FILE
    root.commit(0, pending.ids)
    assert root.sinks_before(0) == {"facts": SinkPosition("a table", 7)}
    later = replace(
        pending,
        attempt="11111111-0000-4000-8000-00000000000b",
        outputs={**outputs, "facts": replace(outputs["facts"], sink=SinkPosition("a table", 9))},
    )
    root.write_pending(later)
    assert root.sinks_before(0) == {"facts": SinkPosition("a table", 9)}


@pytest.mark.parametrize("path", ["../other/part-00000-x.snappy.parquet", "/etc/passwd", "s3://other/file", ""])
def test_a_record_with_a_file_outside_of_the_table_is_invalid(path: str) -> None:
    with pytest.raises(ValueError, match=r"Expected `str` matching regex .* at `\$\.path`"):
        DataFile.from_json({**FILE.as_json(), "path": path})


def test_a_damaged_record_of_outputs_is_reported_with_its_file(tmp_path: Path) -> None:
    root = opened(open_storage(str(tmp_path)))
    attempt = "11111111-0000-4000-8000-00000000000a"
    body = {"root": "", "query": "", "batch": 0, "attempt": attempt, "sources": [], "schema": "", "ids": {}}
    root.storage.create(names.pending(0, attempt), json.dumps({**body, "outputs": {"facts": {"files": []}}}).encode())
    with pytest.raises(CorruptFile, match="is not a valid record of an attempt"):
        root.pending(0, attempt)


def test_the_state_schema_is_independent_of_the_outputs() -> None:
    assert adding(output=OUTPUTS).stores == adding().stores == {"default": STATE}
