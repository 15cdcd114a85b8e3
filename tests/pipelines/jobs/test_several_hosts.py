"""Tasks that move between executors, each with its own local state."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.counting import Job, conf, in_a_process

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 10
LOST_IN_BATCH = 5


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Job, list, list[str]]]:
    """Ten batches on three executors; one is killed when it has computed, before the sink has read it."""
    job = Job(tmp_path_factory.mktemp("several-hosts"), partitions=4).feed(BATCHES)
    reports, warnings = in_a_process(
        job,
        *("--master", "local-cluster[3,1,1024]", "--local-folder", "local"),
        *("--driver", "KnowsItsExecutors", "--kill-an-executor-at", str(LOST_IN_BATCH), "SINK_WRITING"),
        *conf(locality_wait="0s", executor_memory="1g"),
    )
    yield job, reports, warnings
    # Spark creates a folder per executor below SPARK_HOME with a copy of all jars, and never deletes it.
    hosts = {partition.host.partition(":")[2] for report in reports for partition in report.partitions}
    for application in {Path(host).parents[1] for host in hosts}:
        assert application.name.startswith("app-")
        shutil.rmtree(application)


def test_state_and_output_are_correct_when_tasks_change_hosts(ran: tuple[Job, list, list[str]]) -> None:
    job, _, _ = ran
    job.assert_right(BATCHES)


def test_a_host_fetches_only_missing_files(ran: tuple[Job, list, list[str]]) -> None:
    job, reports, _ = ran
    fetched: Counter[str] = Counter()
    uploaded: Counter[str] = Counter()
    for partition in (partition for report in reports for partition in report.partitions):
        fetched[partition.host] += sum(store.load.fetched_bytes for store in partition.stores)
        uploaded[partition.host] += sum(store.commit.uploaded_bytes for store in partition.stores)
    for host in sorted(uploaded):
        print(f"{Path(host).parent.name}: committed {uploaded[host]:,} bytes, fetched {fetched[host]:,} to catch up")
    chosen = sum(
        (job.root / "state" / "0" / str(partition) / f"{batch + 1}_{checkpoint_id}.changelog").stat().st_size
        for batch in range(BATCHES)
        for partition, checkpoint_id in enumerate(job.ids(batch))
    )
    assert len(uploaded) >= 3
    assert sum(uploaded.values()) == chosen
    assert sum(fetched.values()) > 0
    # Each host fetches each changelog at most once. A host that restarts after a kill fetches them again.
    assert sum(fetched.values()) <= len(uploaded) * chosen


def test_an_executor_lost_with_its_rows_causes_a_new_attempt_in_the_same_call(
    ran: tuple[Job, list, list[str]],
) -> None:
    _, reports, warnings = ran
    assert {report.batch: report.attempts for report in reports if report.attempts > 1} == {LOST_IN_BATCH: 2}
    assert "the batch is computed again" in warnings[0]
