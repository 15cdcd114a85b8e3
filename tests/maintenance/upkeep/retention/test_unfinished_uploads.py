"""Retention aborts the uploads of dead processes, which no listing of objects shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import AccessDenied, StorageError
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep import retention
from statekeeper.statestore.maintenance.upkeep.retention import RetentionFacts, RetentionPlan, Rule
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.retention import AT_ONCE, collect
from tests.support.s3_server import S3Server, Wire

DAY_SECONDS = 24 * 3600.0


class LaterClock(SystemClock):
    """A clock that is ahead."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now_seconds(self) -> float:
        return super().now_seconds() + self.seconds


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket()


@pytest.fixture
def storage(s3_server: S3Server, bucket: str) -> Storage:
    return open_storage(f"s3://{bucket}/a root", options=s3_server.options)


@pytest.fixture
def checkpoint(storage: Storage, tmp_path: Path) -> Checkpoint:
    made = Checkpoint(storage, tmp_path / "job")
    made.grow(2)
    return made


@pytest.fixture
def left(checkpoint: Checkpoint) -> str:
    """The name of an object for which two uploads are unfinished, and which another attempt created."""
    path = checkpoint.stores[0].changelog(checkpoint.versions[2][0])
    for size in (1000, 70):
        upload = checkpoint.storage.create_in_parts(path, part_bytes=1000)
        assert upload is not None
        upload.send(0, bytes(size))
    return path


def gathered(storage: Storage, *, after_seconds: float, everything: bool = True) -> RetentionFacts:
    return retention.gather(storage, AT_ONCE, clock=LaterClock(after_seconds), everything=everything)


def planned(storage: Storage, *, after_seconds: float, everything: bool = True) -> RetentionPlan:
    return retention.plan(gathered(storage, after_seconds=after_seconds, everything=everything), AT_ONCE)


def of_uploads(plan: RetentionPlan) -> list[tuple[str, int, Rule]]:
    return [(v.path.partition("?")[0], v.size_bytes, v.rule) for v in plan.verdicts if v.upload is not None]


def test_an_old_upload_is_aborted_and_the_object_of_its_name_is_kept(
    checkpoint: Checkpoint, storage: Storage, left: str, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    plan = planned(storage, after_seconds=2 * DAY_SECONDS)
    assert sorted(of_uploads(plan)) == [(left, 70, Rule.LEFTOVER), (left, 1000, Rule.LEFTOVER)]
    done = collect(storage, plan)
    assert sum(step.files for step in done) == len(plan.deletions)
    assert s3_server.open_uploads(bucket) == 0
    checkpoint.assert_right(tmp_path / "host", 1)
    assert of_uploads(planned(storage, after_seconds=2 * DAY_SECONDS)) == []


def test_an_upload_that_may_be_of_a_running_task_is_kept_and_the_forecast_tells_how_long(
    storage: Storage, left: str
) -> None:
    # moto's uploads all began in 2010.
    started = min(upload.started_at_seconds for upload in storage.unfinished_uploads())
    facts = gathered(storage, after_seconds=started + DAY_SECONDS - 60 - SystemClock().now_seconds())
    plan = retention.plan(facts, AT_ONCE)
    assert {rule for _, _, rule in of_uploads(plan)} == {Rule.YOUNG}
    collect(storage, plan)
    assert len(storage.unfinished_uploads()) == 2
    (young,) = [one for one in retention.forecast(facts, plan, AT_ONCE).later if one.rule is Rule.YOUNG]
    assert young.from_seconds == started + DAY_SECONDS


def test_only_a_pass_over_everything_in_an_own_root_lists_uploads(storage: Storage, left: str) -> None:
    assert of_uploads(planned(storage, after_seconds=2 * DAY_SECONDS, everything=False)) == []
    storage.delete([names.BINDING])
    assert of_uploads(planned(storage, after_seconds=2 * DAY_SECONDS)) == []


def test_uploads_that_must_not_be_listed_are_a_finding(
    storage: Storage, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied() -> None:
        raise AccessDenied("access denied (AccessDenied)", path=left)

    monkeypatch.setattr(storage, "unfinished_uploads", denied)
    (finding,) = planned(storage, after_seconds=2 * DAY_SECONDS).findings
    assert "s3:ListBucketMultipartUploads" in finding


def test_a_running_task_whose_upload_is_aborted_sends_its_file_again(storage: Storage, left: str) -> None:
    plan = planned(storage, after_seconds=2 * DAY_SECONDS)
    for upload in storage.unfinished_uploads():
        storage.abort_upload(upload)
    done = collect(storage, plan)
    assert sum(step.files for step in done) == len(plan.deletions), "an upload that has ended is no error"


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LOST_REPLY])
def test_a_run_that_dies_at_an_abort_is_completed_by_the_next_one(storage: Storage, left: str, fault: Fault) -> None:
    faulty = FaultyStorage(storage)
    plan = planned(storage, after_seconds=2 * DAY_SECONDS)
    aborts = [v.upload for v in plan.deletions if v.upload is not None]
    assert len(aborts) == 2
    number = iter(range(2))

    def fault_of(request: object) -> Fault | None:
        return fault if getattr(request, "path", "") == left and next(number) == 0 else None

    faulty._fault_of = fault_of  # type: ignore[method-assign]
    with pytest.raises((SimulatedCrash, StorageError)):
        collect(faulty, plan)
    for again in (planned(storage, after_seconds=2 * DAY_SECONDS), planned(storage, after_seconds=2 * DAY_SECONDS)):
        for verdict in again.deletions:
            if verdict.upload is not None:
                storage.abort_upload(verdict.upload)
    assert storage.unfinished_uploads() == []
    assert storage.stat(left) is not None


def test_the_pass_of_the_command_aborts_uploads(storage: Storage, left: str, s3_server: S3Server, bucket: str) -> None:
    clock = LaterClock(2 * DAY_SECONDS)
    policies = Policies(retention=AT_ONCE)
    prepared = verbs.retention.plan(storage, policies, clock=clock, mode=Mode.FULL, everything=True)
    s3_server.next("DELETE", "uploadId", Wire.REFUSE)
    done = verbs.retention.execute(storage, prepared, Maintainer("a test", clock, RandomIds()))
    assert sum(step.files for step in done) == len(prepared.plan.deletions) >= 2
    assert s3_server.open_uploads(bucket) == 0
