"""Each request of a batch with due timers and expiring rows, with each fault: each timer fires once, in state and sink."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.storage.batch_logs import LoggedStorage
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.structures import held
from tests.support.timed_root import STEADY, TimedJob, expected

FEWEST_CASES = {LogLayout.STORES: 90, LogLayout.BATCH: 50}


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("log", LogLayout)
def test_after_a_crash_at_any_request_each_timer_fires_once_and_the_state_is_that_of_a_twin(
    tmp_path: Path, log: LogLayout, stride: int, record_property: Callable[[str, object], None]
) -> None:
    first = TimedJob(folder=tmp_path / "first", log=log)
    first.grow(root_of(first), STEADY)

    def again(name: str) -> TimedJob:
        """The job before the batch, on the same host."""
        shutil.copytree(first.folder, tmp_path / name)
        job = copy.copy(first)
        job.folder, job.sink = tmp_path / name, dict(first.sink)
        return job

    twin = again("twin")
    twin.run(root_of(twin), STEADY)
    twin.run(root_of(twin), STEADY + 1)
    assert twin.told() == expected(STEADY + 2)
    assert len(twin.told()[STEADY]) == 3, "timers are due in this batch"
    state = held(root_of(twin), tmp_path)

    rehearsal = again("rehearsal")
    trace = FaultyStorage(inner(root_of(rehearsal)))
    rehearsal.run(LoggedStorage(trace), STEADY)
    cases = crash_matrix(trace.trace)
    for request, fault in cases[::stride]:
        job = again("case")
        faulty = FaultyStorage(inner(root_of(job)), {request.number: fault})
        with suppress(SimulatedCrash, StorageError):
            job.run(LoggedStorage(faulty), STEADY)
        assert len(faulty.trace) > request.number, f"{request} was not reached"
        job.run(root_of(job), STEADY)
        job.run(root_of(job), STEADY + 1)
        assert job.told() == twin.told(), (request, fault)
        assert held(root_of(job), tmp_path) == state, (request, fault)
        shutil.rmtree(job.folder)
    assert len(cases) >= FEWEST_CASES[log]
    record_property("crash_matrix_cases", len(cases))
    print(f"{len(trace.trace)} requests, {len(cases)} cases")


def root_of(job: TimedJob) -> Storage:
    return open_storage(str(job.folder / "root"))


def inner(storage: Storage) -> Storage:
    assert isinstance(storage, LoggedStorage)
    return storage.inner
