"""Several jobs in one Spark session: their names, and their batches at the same time."""

from __future__ import annotations

import threading

import pytest

from statekeeper.pipelines import DeltaSink
from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.startup.query import start
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.host import Host
from statekeeper.statestore.base.errors import UnsupportedEnvironment
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.streams import Seen, Stream

pytestmark = pytest.mark.spark

SECONDS = 120
KEYS = 5
BATCHES = 2


def fed(session, folder, first: int) -> Stream:
    stream = Stream(session, folder, ROWS)
    for batch in range(BATCHES):
        stream.append(rows_of(*((first + key, batch + 1) for key in range(KEYS))))
    return stream


def begun(stream: Stream, name: str | None, *, host: Host | None = None, seen: Seen | None = None, sink=None):
    return start(
        adding(),
        stream.rows(),
        root=str(stream.root),
        checkpoint=str(stream.checkpoint),
        sink=sink or DeltaSink(stream.facts),
        partitions=2,
        key_groups=8,
        log=stream.log,
        host=host or Host(str(stream.folder / "local")),
        observer=seen,
        trigger={"availableNow": True},
        name=name,
    )


def test_two_jobs_of_one_session_run_their_batches_at_the_same_time(delta_session, tmp_path):
    jobs = {"orders": fed(delta_session, tmp_path / "a", 0), "payments": fed(delta_session, tmp_path / "b", 1000)}
    jobs["payments"].log = LogLayout.BATCH
    sinks = {
        "orders": DeltaSink(jobs["orders"].facts, merge_on=["key"]),
        "payments": DeltaSink(jobs["payments"].facts, writer=Writer.TASKS),
    }
    both = threading.Barrier(2, timeout=SECONDS)
    seen = {name: Seen(lambda _, phase: phase is Phase.COMPUTING and both.wait()) for name in jobs}
    host = Host(str(tmp_path / "local"))
    queries = {name: begun(job, name, host=host, seen=seen[name], sink=sinks[name]) for name, job in jobs.items()}
    assert {name: query.streaming_query.name for name, query in queries.items()} == {name: name for name in jobs}
    for query in queries.values():
        assert query.await_termination(SECONDS)
    for name, job in jobs.items():
        assert [report.batch for report in seen[name].batches] == list(range(BATCHES))
        assert len(job.state()) == KEYS, name
    of_orders, of_payments = ({row["key"] for row in job.output()} for job in jobs.values())
    assert of_orders == set(range(KEYS))
    assert of_payments == set(range(1000, 1000 + KEYS))


def test_jobs_without_a_name_share_a_session_and_an_active_name_is_taken(delta_session, tmp_path):
    go = threading.Event()
    waits = Seen(lambda _, phase: phase is Phase.STARTED and not go.wait(SECONDS))
    first, second, third = (fed(delta_session, tmp_path / one, 0) for one in "abc")
    running = begun(first, "orders", seen=waits)
    with pytest.raises(UnsupportedEnvironment, match="a query with the name 'orders' is active in this session"):
        begun(second, "orders")
    unnamed = [begun(one, None) for one in (second, third)]
    assert [query.streaming_query.name for query in unnamed] == [None, None]
    go.set()
    for query in (running, *unnamed):
        assert query.await_termination(SECONDS)
    assert [len(one.state()) for one in (first, second, third)] == [KEYS] * 3
