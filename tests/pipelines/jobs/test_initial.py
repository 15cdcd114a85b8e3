"""A job that starts from initial rows: totals are those of pandas, and errors are typed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.sinks.sink import AtLeastOnceSink, Attempt
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.base.errors import SchemaMismatch, StatekeeperError, WrongInitial
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.counting import ONE_JOB, V1, V2, Job, Watching, in_a_process, once, variant
from tests.support.streams import Seen, Stream
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark

FIRST = "key bigint, count bigint, total bigint"
STOPPED = "stopped by a test"


def initial_table(folder: Path, keys: int = 500) -> str:
    """Totals of some keys of the input, and of many others."""
    path = folder / "initial.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(0, keys, 2)
    rows = pd.DataFrame({"stamp": "initial", "total": numbers * 7, "key": numbers, "count": numbers % 5 + 1})
    rows.to_parquet(path, index=False, row_group_size=50)
    return str(path)


@pytest.fixture(params=[V2, pytest.param(V1, marks=pytest.mark.slow), ONE_JOB])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    job = variant(tmp_path, request.param)
    job.partitions = 5
    job.initial = initial_table(tmp_path)
    return job


def stop_at(batch: int, phase: Phase) -> Watching:
    def fail() -> None:
        raise RuntimeError(STOPPED)

    return once(batch, phase, fail)


def test_totals_continue_from_the_initial_rows_as_in_pandas(job: Job, session: SparkSession) -> None:
    reports = job.feed(2).run(session)
    assert sum(one.initial.rows for one in reports[0].partitions if one.initial) == 250
    assert [one.initial for one in reports[1].partitions] == [None] * 5
    assert sum(one.rows_in for one in reports[0].partitions) == 40
    job.assert_right(2, session)
    # A restart needs no initial rows, and reads none.
    Path(job.initial).rename(job.folder / "moved.parquet")
    job.feed(1).run(session)
    job.initial = str(job.folder / "moved.parquet")
    job.assert_right(3, session)
    clean(open_storage(str(job.root)), job.folder / "scratch")


@pytest.mark.parametrize("phase", [Phase.OFFSETS_WRITTEN, Phase.PENDING_WRITTEN, Phase.SINK_WRITTEN])
def test_a_stop_in_batch_0_repeats_it_or_takes_it_from_the_sink(job: Job, session: SparkSession, phase: Phase) -> None:
    with pytest.raises(RuntimeError, match=STOPPED):
        job.feed(2).run(session, stop_at(0, phase))
    job.run(session)
    job.assert_right(2, session)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["COMPUTING", "PENDING_WRITTEN", "SINK_WRITTEN"])
def test_a_kill_in_batch_0_loses_no_initial_row_and_applies_none_twice(
    job: Job, session: SparkSession, phase: str
) -> None:
    job.feed(2)
    in_a_process(job, "--kill-at", "0", phase, code=-9)
    job.run(session)
    job.assert_right(2, session)


def test_initial_rows_survive_a_rescale_an_edit_and_a_savepoint(job: Job, session: SparkSession) -> None:
    if job.structure is Structure.V1:
        pytest.skip("structure V1 has no rescale and no edit")
    scratch = ("--scratch", str(job.folder / "scratch"))
    job.feed(1).run(session)
    statekeeper("rescale", str(job.root), "--partitions", "8", "--apply", "--confirm-stopped", *scratch)
    job.feed(1).run(session)
    job.assert_right(2, session)
    saved = job.folder / "savepoint"
    statekeeper("savepoint", str(job.root), str(saved), "--rows", *scratch)
    files = list(saved.rglob("*.parquet"))
    rows = pd.concat([pd.read_parquet(path) for path in files])
    assert len(rows) == len(job.state()) >= 250
    statekeeper("edit", str(job.root), "--operator", "0", "--delete", "key=400", "--apply", "--confirm-stopped")
    assert 400 not in set(job.state()["key"])
    statekeeper("audit", str(job.root), "--deep", *scratch)
    job.feed(1).run(session)
    clean(open_storage(str(job.root)), job.folder / "scratch")


@pytest.fixture
def stream(session: SparkSession, tmp_path: Path) -> Stream:
    made = Stream(session, tmp_path, ROWS)
    made.append(rows_of((1, 10), (2, 20)))
    return made


def frame(session: SparkSession, rows: list[tuple[Any, ...]], schema: str = FIRST) -> DataFrame:
    return session.createDataFrame(rows, schema)


@pytest.mark.parametrize("writer", [Writer.SPARK, Writer.TASKS])
def test_more_partitions_than_slots_and_only_initial_rows_in_most_of_them(stream: Stream, writer: Writer) -> None:
    stream.writer = writer
    session = stream.session
    initial = session.range(1000).select(
        F.col("id").alias("key"), F.lit(1).cast("bigint").alias("count"), F.col("id").alias("total")
    )
    stream.run(adding(), partitions=8, tasks=2, initial=initial)
    expected = {(key,): (1, key) for key in range(1000)} | {(1,): (2, 11), (2,): (2, 22)}
    assert stream.state() == expected


@pytest.mark.parametrize(
    ("rows", "schema", "said"),
    [
        ([(1, 1)], "key bigint, count bigint", r"lacks the columns \['total'\]"),
        ([(1, 1, 1, 1)], f"{FIRST}, more int", r"has other columns \['more'\]"),
        ([(1, 1, 1)], "key bigint, count int, total bigint", "column count is int, but the operator has bigint"),
        ([("1", 1, 1)], "key string, count bigint, total bigint", "column key is string, but the operator has bigint"),
    ],
)
def test_wrong_columns_and_types_are_rejected_before_the_query_starts(
    stream: Stream, rows: list[tuple[Any, ...]], schema: str, said: str
) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        stream.start(adding(), initial=lambda: frame(stream.session, rows, schema))
    assert not stream.root.exists()


def test_duplicate_columns_streams_and_other_objects_are_rejected(stream: Stream) -> None:
    twice = frame(stream.session, [(1, 1, 1)]).selectExpr("*", "count as total")
    with pytest.raises(SchemaMismatch, match=r"duplicate columns \['total'\]"):
        stream.start(adding(), initial=twice)
    with pytest.raises(SchemaMismatch, match="is a stream"):
        stream.start(adding(), initial=stream.rows())
    with pytest.raises(SchemaMismatch, match="initial is a list"):
        stream.start(adding(), initial=lambda: [1])  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("writer", [Writer.SPARK, Writer.TASKS])
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(None, 1, 1)], "key column 'key' contains nulls"),
        ([(5, 1, 1), (5, 1, 2)], r"contain two rows of one key: \{'key': 5\};"),
    ],
)
def test_null_and_duplicate_keys_stop_batch_0_before_it_commits_anything(
    stream: Stream, rows: list[tuple[Any, ...]], said: str, writer: Writer
) -> None:
    stream.writer = writer
    good = [(key, 1, 1) for key in range(100, 130)]
    with pytest.raises(WrongInitial, match=said) as refused:
        stream.run(adding(), initial=frame(stream.session, [*good, *rows]))
    assert refused.value.exit_code == 13
    assert stream.committed() == []
    assert stream.output() == []
    # After the table is corrected, batch 0 runs.
    stream.run(adding(), initial=frame(stream.session, good))
    assert stream.state() == {(key,): (1, 1) for key in range(100, 130)} | {(1,): (1, 10), (2,): (1, 20)}


def test_a_duplicate_key_is_found_across_arrow_batches(stream: Stream) -> None:
    stream.session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        with pytest.raises(WrongInitial, match="two rows of one key"):
            stream.run(adding(), initial=frame(stream.session, [(5, 1, 1), (6, 1, 1), (5, 1, 2)]))
    finally:
        stream.session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_null_in_a_value_declared_without_nulls_stops_batch_0(stream: Stream) -> None:
    state = pa.schema([("count", pa.int64()), pa.field("total", pa.int64(), nullable=False)])
    with pytest.raises(WrongInitial, match="column 'total' contains nulls"):
        stream.run(adding(state=state), initial=frame(stream.session, [(5, 1, None)]))
    assert stream.committed() == []


def test_a_root_that_has_batches_rejects_initial_rows_which_it_has_not_applied(stream: Stream) -> None:
    stream.run(adding())
    before = stream.state()
    with pytest.raises(WrongInitial, match="was created without initial rows"):
        stream.start(adding(), initial=frame(stream.session, [(1, 1, 1)]))
    assert stream.state() == before


def test_a_root_that_starts_from_initial_rows_needs_them_until_batch_0_is_committed(stream: Stream) -> None:
    initial = frame(stream.session, [(1, 1, 100)])

    def fail(batch: int, phase: Phase) -> None:
        if phase is Phase.COMPUTING:
            raise RuntimeError(STOPPED)

    with pytest.raises(RuntimeError, match=STOPPED):
        stream.run(adding(), initial=initial, seen=Seen(fail))
    with pytest.raises(WrongInitial, match="the job has no `initial`"):
        stream.start(adding())
    stream.run(adding(), initial=initial)
    stream.append(rows_of((1, 1)))
    stream.run(adding())
    assert stream.state() == {(1,): (3, 111), (2,): (1, 20)}


@pytest.mark.parametrize("log", list(LogLayout))
def test_a_rerun_of_batch_0_with_other_rows_is_rejected(stream: Stream, log: LogLayout) -> None:
    stream.log = log
    written: list[int] = []

    def write(rows: DataFrame, attempt: Attempt) -> None:
        written.append(rows.count())
        if len(written) == 1:
            raise RuntimeError(STOPPED)

    sink = AtLeastOnceSink(write)
    with pytest.raises(RuntimeError, match=STOPPED):
        stream.run(adding(), initial=frame(stream.session, [(1, 1, 100)]), sink=sink)
    with pytest.raises(WrongInitial, match="an earlier attempt at batch 0 read other initial rows"):
        stream.run(adding(), initial=frame(stream.session, [(1, 1, 101)]), sink=sink)
    assert (stream.committed(), len(written)) == ([], 1)
    stream.run(adding(), initial=frame(stream.session, [(1, 1, 100)]), sink=sink)
    assert stream.state() == {(1,): (2, 110), (2,): (1, 20)}


def _ones(rows: pa.Table, state: Any) -> Update:
    keys = rows.select(["key"]).group_by("key").aggregate([])
    n = pa.array([1] * len(keys), pa.int64())
    assert set(state) == {"seen", "name"}
    return Update(keys.append_column("n", n), {"seen": keys.append_column("n", n)})


SEVERAL = StatefulOperator(
    keys=["key"],
    order_by=["at"],
    state={
        "name": pa.schema([("day", pa.timestamp("us", tz="UTC")), ("tags", pa.list_(pa.string()))]),
        "seen": pa.schema([("n", pa.int64())]),
    },
    output=pa.schema([("key", pa.int64()), ("n", pa.int64())]),
    update=_ones,
)


def test_several_stores_start_from_a_dataframe_each(stream: Stream) -> None:
    session = stream.session
    at = dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)
    names = frame(session, [(1, at, ["a", None]), (9, None, None)], "key bigint, day timestamp, tags array<string>")
    seen = frame(session, [(7, 70)], "key bigint, n bigint")
    stream.run(SEVERAL, initial={"seen": seen, "name": names})
    found = {
        key: (value[0].astimezone(dt.UTC) if value[0] else None, value[1]) for key, value in stream.state(0).items()
    }
    assert found == {(1,): (at, ["a", None]), (9,): (None, None)}
    assert stream.state(1) == {(7,): (70,), (1,): (1,), (2,): (1,)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda one: one, "initial is one DataFrame, but the operator has the stores"),
        (lambda one: {"other": one}, r"stores that are not declared: \['other'\]"),
        (lambda one: {}, "initial is an empty dict"),
    ],
)
def test_rows_of_several_stores_must_name_their_store(
    stream: Stream, given: Callable[[DataFrame], Any], said: str
) -> None:
    with pytest.raises(SchemaMismatch, match=said) as refused:
        stream.start(SEVERAL, initial=given(frame(stream.session, [(7, 70)], "key bigint, n bigint")))
    assert isinstance(refused.value, StatekeeperError)
