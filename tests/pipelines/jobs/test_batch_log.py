"""An operator whose changelogs go into batch logs, on real Spark and real Delta."""

from __future__ import annotations

import os
import shutil

import pytest

from statekeeper.pipelines.batch.progress import Outcome, Phase
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.work import _worker_storage
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.root.attempts import metrics_at
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import StorageSpec, open_storage
from statekeeper.statestore.store.engine.sweep import SweepLimits
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.streams import Seen, Stream

pytestmark = pytest.mark.spark


@pytest.fixture
def stream(delta_session, tmp_path):
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.log = LogLayout.BATCH
    return stream


def _objects(stream):
    return sorted(str(path.relative_to(stream.root)) for path in (stream.root / names.BATCH_LOGS).glob("*"))


def test_a_batch_writes_one_object_for_all_partitions_and_another_host_continues_from_it(stream):
    stream.append(rows_of((1, 10), (1, 5), (2, 7)))
    stream.append(rows_of((1, -1), (2, -2)))
    reports = stream.run(adding(), partitions=4)
    assert [names.parse_batch_log(path)[0] for path in _objects(stream)] == [1, 2]
    assert stream.changelogs() == []
    assert list((stream.root / names.PENDING).glob("*")) == []
    shutil.rmtree(stream.folder / "local")
    stream.append(rows_of((2, 1)))
    reports = stream.run(adding(), partitions=4)
    assert [report.batch for report in reports] == [2]
    root_id = read_binding(open_storage(str(stream.root)))[0].root_id
    (folder,) = (stream.folder / "local").glob(f"statekeeper-*/{root_id}/{names.CACHED_BATCH_LOGS}")
    assert sorted(path.name.partition("-")[0] for path in folder.glob("*.log")) == ["1", "2"]
    assert stream.state(batch=1) == {(1,): (3, 14), (2,): (2, 5)}, "Spark reads an unpacked batch"
    assert stream.state() == {(1,): (3, 14), (2,): (3, 6)}
    assert [(row["key"], row["count"], row["total"]) for row in stream.output()] == [
        (1, 2, 15), (1, 3, 14), (2, 1, 7), (2, 2, 5), (2, 3, 6),
    ]  # fmt: skip


def test_the_figures_of_the_batches_are_in_the_reports_and_in_the_root(stream):
    for key in range(3):
        stream.append(rows_of((key, 1)))
    reports = stream.run(adding(), partitions=4)
    (*_, newest) = reports
    assert [report.metrics.batches for report in reports] == [1, 2, 3]
    of_batches = [
        report.driver_requests + sum(s.commit.requests + s.load.requests for p in report.partitions for s in p.stores)
        for report in reports
    ]
    assert newest.metrics.writes + newest.metrics.reads <= sum(of_batches)
    assert newest.metrics.writes >= 3 * len(reports), "offsets, batch log and commit"
    assert newest.metrics.members == 4
    assert newest.metrics.record_bytes == (stream.root / _objects(stream)[-1]).stat().st_size
    p50, p99, p999 = newest.metrics.record_milliseconds
    assert 0 < p50 <= p99 <= p999
    assert newest.metrics.seconds >= sum(sum(report.milliseconds.values()) for report in reports) / 1000
    storage = open_storage(str(stream.root))
    assert metrics_at(storage, 2) == reports[1].metrics, "a record has the figures of the batches before it"
    assert metrics_at(storage, 0) is None


@pytest.mark.parametrize("dies_at", [pytest.param(Phase.PENDING_WRITTEN, marks=pytest.mark.slow), Phase.SINK_WRITTEN])
def test_a_driver_that_dies_around_the_sink_leaves_state_and_sink_equal(stream, dies_at):
    stream.append(rows_of((1, 10), (2, 7)))
    stream.append(rows_of((1, -1), (2, -2)))

    def died(batch, phase):
        if (batch, phase) == (1, dies_at):
            raise RuntimeError("the driver died")

    with pytest.raises(Exception, match="died"):
        stream.run(adding(), seen=Seen(died))
    reports = stream.run(adding())
    taken = dies_at is Phase.SINK_WRITTEN
    assert reports[0].outcome is (Outcome.TAKEN_FROM_SINK if taken else Outcome.COMPUTED)
    assert [(row["key"], row["count"], row["total"]) for row in stream.output()] == [
        (1, 1, 10), (1, 2, 9), (2, 1, 7), (2, 2, 5),
    ]  # fmt: skip


def test_another_root_at_the_same_url_gets_its_own_objects(tmp_path):
    # An object has another name in another root, unless the same attempt is restored from different backups.
    tag = batch_log.tag_of("6ad1f0c2-11aa-4c3d-9abc-0123456789ab")
    version = VersionId(1, batch_log.id_with(tag, "00000000-0000-4000-8000-000000000000"))
    spec, store = StorageSpec(str(tmp_path / "root")), StorePath(0, 0)
    for root_id in ("first", "second"):
        body = batch_log.encode(1, tag, {}, {(store, version): root_id.encode()})
        open_storage(spec).replace(names.batch_log(1, tag), body)
        worker = _worker_storage(spec, root_id, str(tmp_path / "local"), SweepLimits(), os.getpid())
        assert worker.read(store.changelog(version)) == root_id.encode()
    assert len(list(tmp_path.glob("local/statekeeper-*/*/batch-logs/*.log"))) == 2
