"""A Python job whose state root is edited: it continues from the edited rows, and an edit never contradicts its sink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, Host, StatefulOperator, Update, start
from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.contents.rows import contents_at, layout, opened
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.edits import Edit
from statekeeper.statestore.storage import StorageSpec, open_storage
from tests.support.counting import RIGHT, Job, Watching, once, rows_of
from tests.support.dumped import dumped
from tests.support.edits import apply, table, undo
from tests.support.s3_server import S3Server
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark
BATCHES = 3
STOPPED = "stopped by a test"
DELETED, CHANGED, NEW = 2, 5, 77
APPLY = ("--apply", "--confirm-stopped")


def edit(root: object, *options: str, exit_code: int = 0) -> str:
    return " ".join(statekeeper("edit", str(root), "--operator", "0", *options, exit_code=exit_code).split())


def corrected(folder: Path) -> str:
    rows = {"key": [CHANGED, NEW], "count": [100, 1], "total": [-5, 9], "stamp": ["edited", "edited"]}
    return table(folder / "rows.parquet", rows)


def edited(before: pd.DataFrame) -> pd.DataFrame:
    """Return the state after the edit of these tests."""
    new = pd.DataFrame({"key": [CHANGED, NEW], "count": [100, 1], "total": [-5, 9], "stamp": "edited"})
    kept = before[~before["key"].isin([DELETED, CHANGED])]
    return pd.concat([kept, new]).sort_values("key", ignore_index=True)


def output_after(state: pd.DataFrame, batches: range) -> pd.DataFrame:
    """Return the output of batches that start from this state."""
    rows = pd.concat([rows_of(batch) for batch in batches], ignore_index=True)
    before = rows[["key"]].merge(state, on="key", how="left")[["count", "total"]].fillna(0).astype("int64")
    of_key = rows.groupby("key")
    count = before["count"] + of_key.cumcount() + 1
    rows = rows.assign(count=count, total=before["total"] + of_key["number"].cumsum())
    return rows.sort_values("number", ignore_index=True)


def state_of(job: Job) -> pd.DataFrame:
    """Return the newest state as `statekeeper dump` shows it: retention may have deleted old commits."""
    found = pd.DataFrame([{"key": row["key"]["key"], **row["value"]} for row in dumped(job.root)])
    return found.sort_values("key", ignore_index=True)


def assert_continued(job: Job, state: pd.DataFrame, batches: range) -> None:
    later = job.output()
    later = later[later["number"] >= batches.start * 1_000_000].reset_index(drop=True)
    expected = output_after(state, batches)
    pd.testing.assert_frame_equal(later[RIGHT], expected[RIGHT], check_dtype=False)
    last = expected.groupby("key").last()
    now = state_of(job).set_index("key")
    for key in last.index:
        assert tuple(now.loc[key, ["count", "total"]]) == tuple(last.loc[key, ["count", "total"]])


def stop_at(batch: int, phase: Phase) -> Watching:
    def fail() -> None:
        raise RuntimeError(STOPPED)

    return once(batch, phase, fail)


@pytest.mark.parametrize(
    "log", [pytest.param(LogLayout.STORES, marks=pytest.mark.slow), LogLayout.BATCH], ids=lambda one: one.value
)
def test_a_job_whose_next_batch_failed_runs_it_again_on_the_edited_state(
    session: SparkSession, tmp_path: Path, log: LogLayout
) -> None:
    job = Job(tmp_path, log=log)
    job.feed(BATCHES).run(session)
    before = job.state()
    with pytest.raises(RuntimeError, match=STOPPED):
        job.feed(1).run(session, stop_at(BATCHES, Phase.COMPUTING))
    plan: dict[str, Any] = json.loads(
        statekeeper(
            *("edit", str(job.root), "--operator", "0", "--delete", f"key={DELETED}", "--upsert", corrected(tmp_path)),
            *("--output", "json"),
        )
    )
    assert plan["totals"] == {"added": 1, "removed": 1, "changed": 1}
    assert plan["is_in_batch"] is True
    edit(job.root, "--delete", f"key={DELETED}", "--upsert", corrected(tmp_path), *APPLY)
    state = job.state()
    pd.testing.assert_frame_equal(state, edited(before), check_dtype=False)
    clean(open_storage(str(job.root)), tmp_path / "scratch")
    job.feed(1).run(session)
    assert_continued(job, state, range(BATCHES, BATCHES + 2))
    pd.testing.assert_frame_equal(job.state_by_spark(session), job.state(), check_dtype=False)
    # Maintenance continues on the edited root.
    scratch = ("--scratch", str(tmp_path / "scratch"))
    statekeeper("snapshot", str(job.root), "--all", *scratch)
    statekeeper("gc", str(job.root), "--apply", "--grace", "0s", "--retain", "1", *scratch)
    statekeeper("audit", str(job.root), "--deep", *scratch)
    after = state_of(job)
    job.feed(1).run(session)
    assert_continued(job, after, range(BATCHES + 2, BATCHES + 3))


def test_a_recorded_attempt_at_the_next_batch_blocks_the_edit_and_the_undo(
    session: SparkSession, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    job.feed(BATCHES).run(session)
    before = job.state()
    with pytest.raises(RuntimeError, match=STOPPED):
        job.feed(1).run(session, stop_at(BATCHES, Phase.SINK_WRITTEN))
    told = edit(job.root, "--delete", f"key={DELETED}", *APPLY, exit_code=3)
    assert f"is the record of an attempt at batch {BATCHES}, so the sink may already contain its rows" in told
    pd.testing.assert_frame_equal(job.state(), before)
    job.run(session)
    job.assert_right(BATCHES + 1)

    before = job.state()
    told = edit(job.root, "--delete", f"key={DELETED}", *APPLY)
    run = told.split("--undo ")[1].split()[0]
    with pytest.raises(RuntimeError, match=STOPPED):
        job.feed(1).run(session, stop_at(BATCHES + 1, Phase.SINK_WRITTEN))
    state = job.state()
    undo = " ".join(statekeeper("edit", str(job.root), "--undo", run, "--confirm-stopped", exit_code=13).split())
    assert "the sink may already contain its rows" in undo
    job.run(session)
    assert_continued(job, state, range(BATCHES + 1, BATCHES + 2))


@pytest.mark.slow
def test_a_job_continues_after_the_undo_of_an_edit_as_without_it(session: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.feed(BATCHES).run(session)
    before = job.state()
    told = edit(job.root, "--delete", f"key={DELETED}", "--upsert", corrected(tmp_path), *APPLY)
    assert len(job.state()) == len(before)
    assert not job.state().equals(before)
    run = told.split("--undo ")[1].split()[0]
    statekeeper("edit", str(job.root), "--undo", run, "--confirm-stopped")
    pd.testing.assert_frame_equal(job.state(), before)
    clean(open_storage(str(job.root)), tmp_path / "scratch")
    job.feed(1).run(session)
    job.assert_right(BATCHES + 1)


def test_a_root_in_structure_v1_is_rejected_with_the_command_that_switches_it(
    session: SparkSession, tmp_path: Path
) -> None:
    job = Job(tmp_path, structure=Structure.V1)
    job.feed(1).run(session)
    refused = edit(job.root, "--delete", f"key={DELETED}", exit_code=3)
    assert f"statekeeper switch {job.root} --to v2" in refused


def _sum_up(rows: pa.Table, state: pa.Table) -> Update:
    joined = pa.concat_tables([rows.group_by("k").aggregate([("x", "count")]).rename_columns(["k", "n"]), state])
    total = joined.group_by("k").aggregate([("n", "sum")]).rename_columns(["k", "n"])
    return Update(output=total, state=total)


@pytest.mark.slow
def test_a_root_in_a_bucket_is_edited_and_the_edit_is_undone(
    delta_session: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    spec = StorageSpec(f"s3://{s3_server.make_bucket()}/state", tuple(s3_server.options.items()))
    columns = pa.schema([("k", pa.string()), ("n", pa.int64())])

    def run() -> None:
        deltalake.write_deltalake(tmp_path / "source", pa.table({"k": ["a", "b", "c"], "x": [1, 2, 3]}), mode="append")
        start(
            StatefulOperator(keys=["k"], order_by=["x"], state=columns.remove(0), output=columns, update=_sum_up),
            delta_session.readStream.format("delta").load(str(tmp_path / "source")),
            root=spec,
            checkpoint=str(tmp_path / "checkpoint"),
            sink=DeltaSink(str(tmp_path / "sink")),
            partitions=2,
            host=Host(str(tmp_path / "host")),
            trigger={"availableNow": True},
        ).await_termination()

    def state() -> dict[str, int]:
        found = contents_at(storage)
        counts: dict[str, int] = {}
        assert found is not None
        for store in found.stores:
            of = layout(found, store)
            with opened(found, store, of, scratch=scratch, clock=SystemClock(), ids=RandomIds()) as rows:
                for decoded in map(rows.decoded, rows.pairs()):
                    keys, values = decoded.keys.column("k").to_pylist(), decoded.values.column("n").to_pylist()
                    assert not counts.keys() & set(keys)
                    counts.update(zip(keys, values, strict=True))
        return counts

    storage, scratch = open_storage(spec), tmp_path / "scratch"
    run()
    run()
    assert state() == {"a": 2, "b": 2, "c": 2}
    change = Edit(operator=0, texts={"k": "a"}, upserts=pa.table({"k": ["b", "d"], "n": [10, 1]}))
    undone = apply(storage, change, scratch)
    assert state() == {"b": 10, "c": 2, "d": 1}
    undo(storage, undone)
    assert state() == {"a": 2, "b": 2, "c": 2}
    clean(storage, scratch)
    apply(storage, change, scratch)
    run()
    assert state() == {"a": 1, "b": 11, "c": 3, "d": 1}
    clean(storage, scratch)
