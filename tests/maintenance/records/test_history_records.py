"""Records of the maintenance history are read back as they were written, and malformed lines are rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.records import history
from statekeeper.statestore.maintenance.records.history import (
    DeletedFiles,
    EndedRun,
    FailedRun,
    FailedSnapshot,
    HistoryRecord,
    PlannedDeletion,
    PlannedSnapshot,
    RetentionHead,
    TakenSnapshot,
    decode,
)
from statekeeper.statestore.storage.lines import PIECE_BYTES
from tests.support.clocks import SleeplessClock
from tests.support.memory import MemoryStorage

STORE = StorePath(0, 3)
RUN = "0198c0de-0000-4000-8000-000000000001"
VERSION = VersionId(7, "0198c0de-0000-4000-8000-000000000000")
TAKEN = TakenSnapshot(
    store=STORE,
    version=VERSION,
    outcome="new",
    keys=5,
    tables=2,
    new_tables=1,
    uploaded_bytes=100,
    replayed_keys=9,
    skipped_snapshots=("state/0/3/4.zip: is damaged",),
    tail_bytes=2_000_000,
    restore_seconds=0.25,
    seconds=0.5,
)
RECORDS: list[tuple[str, str, HistoryRecord]] = [
    ("snapshot", "plan", PlannedSnapshot(store=STORE, version=VERSION, reason="count", explained="why")),
    ("snapshot", "outcome", TAKEN),
    ("snapshot", "outcome", FailedSnapshot(store=STORE, code="corrupt_file", error="is damaged")),
    ("snapshot", "outcome", FailedRun(failed="interrupted", code="failed")),
    ("snapshot", "outcome", EndedRun(ended=1_700_000_000.25, seconds=0.5, writes=3, reads=2)),
    ("switch", "outcome", EndedRun(ended=1_700_000_000.25)),
    ("gc", "plan", RetentionHead(head=9, stored_files=12, stored_bytes=3_000)),
    ("gc", "plan", RetentionHead(head=9, floor=None, findings=("one",), reads=(str(STORE),), read_bytes=4)),
    ("gc", "plan", PlannedDeletion(path=STORE.snapshot(VERSION), rule="superseded")),
    (
        "gc",
        "outcome",
        DeletedFiles(
            store=None, outcome="done", files=1, bytes=2, spared=("a",), detail="", read_files=3, read_bytes=4
        ),
    ),
]


@pytest.mark.parametrize(("verb", "part", "record"), RECORDS, ids=lambda value: type(value).__name__)
def test_a_record_is_read_back_as_it_was_written(verb: str, part: str, record: HistoryRecord) -> None:
    assert decode(verb, part, json.loads(json.dumps(record.encode()))) == record


def test_durations_are_rounded_to_milliseconds() -> None:
    encoded = structs.replace(TAKEN, seconds=1.23456, restore_seconds=0.0004).encode()
    assert (encoded["seconds"], encoded["restore_seconds"]) == (1.235, 0.0)


def test_an_outcome_ends_with_the_time_and_the_requests_of_the_run_also_if_it_failed() -> None:
    storage = MemoryStorage(lambda: 0.0)

    def fails() -> None:
        with history.recorded(storage, "gc", RUN, [{"head": 9}], SleeplessClock(60.0)) as done:
            done.append(DeletedFiles(outcome="done", files=1).encode())
            storage.list("state")
            raise CorruptFile("is damaged", path="state/0/3/7.zip")

    with pytest.raises(CorruptFile):
        fails()
    [path] = [entry.path for entry in storage.list(names.HISTORY) if entry.path.endswith(".outcome.jsonl")]
    *_, failed, ended = map(json.loads, storage.read(path).splitlines())
    assert failed["code"] == "corrupt_file"
    # Two records and a listing.
    assert ended == {"ended": 60.0, "seconds": 0.0, "writes": 3, "reads": 0}
    assert [type(one) for one in history.read(storage, path)] == [DeletedFiles, FailedRun]


def test_a_planned_deletion_names_its_snapshot() -> None:
    assert PlannedDeletion(path=STORE.snapshot(VERSION), rule="").snapshot == (STORE, VERSION)
    assert PlannedDeletion(path=STORE.changelog(VERSION), rule="").snapshot is None
    assert PlannedDeletion(path="../state/0/3/7.zip", rule="").snapshot is None


BAD = [
    {"store": "state/0/3/../4"},
    {"store": "../state/0/3"},
    {"store": ["state/0/3"]},
    {"version": "-1"},
    {"version": None},
    {"version": {}},
    {"tail_bytes": -1},
    {"tail_bytes": 10**400},
    {"tail_bytes": True},
    {"tail_bytes": "7"},
    {"restore_seconds": float("nan")},
    {"restore_seconds": float("inf")},
    {"restore_seconds": -0.5},
    {"restore_seconds": []},
    {"skipped_snapshots": "abc"},
    {"skipped_snapshots": [1]},
    {"outcome": 5},
]


@pytest.mark.parametrize("change", BAD, ids=lambda change: str(change)[:40])
def test_a_hostile_outcome_is_rejected_and_its_line_is_skipped(change: dict[str, Any]) -> None:
    bad = {**TAKEN.encode(), **change}
    with pytest.raises(ValueError, match=r"the record names no|Expected|out of range"):
        decode("snapshot", "outcome", bad)
    storage, path = MemoryStorage(lambda: 0.0), names.history("20260101T000000Z", "snapshot", RUN, "outcome")
    storage.create(path, f"{json.dumps(bad)}\n{json.dumps(TAKEN.encode())}\n".encode())
    assert history.read(storage, path) == [TAKEN]
    assert history.newest_outcome(storage, "snapshot") == [TAKEN]


@pytest.mark.parametrize("line", [b'{"store": "state/0/x", "version": "7"}', b'{"stores": 1}', b"[]", b"{"])
def test_a_malformed_line_of_a_plan_is_an_error_because_its_snapshot_would_be_missed(line: bytes) -> None:
    storage, path = MemoryStorage(lambda: 0.0), names.history("20260101T000000Z", "snapshot", RUN, "plan")
    storage.create(path, line + b"\n")
    with pytest.raises(CorruptFile):
        history.read(storage, path)


def test_a_long_record_that_is_deleted_while_it_is_read_is_an_error_and_not_a_short_record() -> None:
    storage, path = MemoryStorage(lambda: 0.0), names.history("20260101T000000Z", "snapshot", RUN, "outcome")
    line = json.dumps(TAKEN.encode()).encode() + b"\n"
    storage.create(path, line * (PIECE_BYTES // len(line) + 2))
    found = history.records(storage, path)
    assert next(found) == TAKEN
    storage.delete([path])
    with pytest.raises(ObjectMissing):
        list(found)


def test_a_missing_record_and_a_missing_outcome_are_empty() -> None:
    storage = MemoryStorage(lambda: 0.0)
    assert history.read(storage, names.history("20260101T000000Z", "gc", RUN, "outcome")) == []
    assert history.newest_outcome(storage, "gc") == []
