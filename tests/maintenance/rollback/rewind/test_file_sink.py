"""A rewind removes later batches from the log of Spark's file sink, and its undo puts them back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import ObjectMissing, RefusedAsUnsafe, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_sink import LOG
from statekeeper.statestore.format.limits import MOST_READ_BYTES
from statekeeper.statestore.maintenance.rollback.rewind import RewindReason
from tests.support.audits import audited
from tests.support.file_sinks import CheckpointWithSink
from tests.support.repairs import contents
from tests.support.rescales import rescale
from tests.support.rewinds import planned, rewound, undone

TARGET = 0
TO = ("--to-batch", str(TARGET))
APPLY = (*TO, "--apply", "--confirm-stopped")


def _log(query: CheckpointWithSink) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in query.log.iterdir()}


def _held(query: CheckpointWithSink) -> tuple[dict[str, bytes], object]:
    return _log(query), contents(query.storage)


def test_the_entries_of_later_batches_go_to_the_quarantine_of_the_checkpoint_and_return(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path, interval=2)
    before = _held(query)
    sink = ("--file-sink", str(query.output))
    plan = json.loads(query.rewind(*TO, *sink, "--output", "json"))
    assert plan["file_sink"] == {"url": query.output.as_uri(), "entries": [f"{LOG}/1.compact", f"{LOG}/2"]}
    shown = query.rewind(*TO, *sink)
    assert "rewind moves the entries of batches 1 to 2 from _spark_metadata/ to the quarantine" in shown
    assert f"the output files of batches 1 to 2 stay in {query.output.as_uri()}" in shown
    assert _held(query) == before
    run = query.rewind(*APPLY, *sink).partition("--undo ")[2].split()[0]
    assert _log(query) == {"0": before[0]["0"]}
    assert query.storage.read(names.quarantine(run, f"{LOG}/1.compact")) == before[0]["1.compact"]
    query.rewind("--undo", run, "--confirm-stopped")
    assert _held(query) == before


def test_the_plan_says_what_was_not_checked_without_the_option(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path)
    assert "not checked: whether the query writes files with Spark's file sink" in query.rewind(*TO)
    assert "not checked: whether" not in query.rewind(*TO, "--no-file-sink")


def test_an_entry_is_removed_after_the_commit_and_before_the_state_of_its_batch(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path)
    reasons = [action.reason for action in planned(query.storage, 1, tmp_path, file_sink=query.sink).plan.actions]
    order = [RewindReason.COMMIT, RewindReason.FILE_SINK, RewindReason.STATE, RewindReason.OFFSETS]
    assert list(dict.fromkeys(reason for reason in reasons if reason in order)) == order


def test_a_log_above_the_limit_of_a_read_is_moved_and_put_back(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path, interval=2)
    for name in ("1.compact", "0"):  # one that is moved, and one that stays
        with (query.log / name).open("r+b") as file:
            file.seek(MOST_READ_BYTES + 1)
            file.write(b"}")
    before = {path.name: path.stat().st_size for path in query.log.iterdir()}
    run = rewound(query.storage, TARGET, tmp_path, file_sink=query.sink)
    assert query.files() == {"0"}
    undone(query.storage, run)
    assert {path.name: path.stat().st_size for path in query.log.iterdir()} == before


def test_a_sink_is_rolled_back_after_its_checkpoint(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path)
    before = _held(query)
    first = rewound(query.storage, TARGET, tmp_path)
    shown = query.rewind(*TO, "--file-sink", str(query.output))
    assert "rewind moves the entries of batches 1 to 2" in shown
    second = rewound(query.storage, TARGET, tmp_path, file_sink=query.sink)
    assert query.files() == {"0"}
    with pytest.raises(RefusedAsUnsafe, match="has moved entries of the file sink") as refused:
        undone(query.storage, first)
    assert f"--undo {second} --confirm-stopped" in str(refused.value.hint)
    undone(query.storage, second)
    undone(query.storage, first)
    assert _held(query) == before


def test_a_wrong_or_damaged_log_stops_the_rewind_before_anything_is_written(tmp_path: Path) -> None:
    def refused(name: str, kind: type[StatekeeperError], text: str) -> None:
        query = CheckpointWithSink(tmp_path / name)
        if name == "folder":
            query.output = tmp_path / "elsewhere"
        elif name == "gap":
            (query.log / "0").unlink()
        elif name == "later":
            (query.log / str(query.newest + 1)).write_bytes(b"v1")
        else:
            (query.log / "0").write_bytes(b"v2\n{}")
        before = contents(query.storage)
        with pytest.raises(kind, match=text):
            rewound(query.storage, TARGET, tmp_path, file_sink=query.sink)
        assert contents(query.storage) == before
        query.rewind(*APPLY, "--file-sink", str(query.output), exit_code=kind.exit_code)

    refused("folder", ObjectMissing, f"{LOG}/0: is missing")
    refused("gap", ObjectMissing, f"{LOG}/0: is missing")
    refused("later", RefusedAsUnsafe, "is newer than batch 2, the newest known batch of the query")
    refused("version", UnknownFormatVersion, "begins with")


def test_a_sink_that_an_earlier_run_names_must_be_rolled_back(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path)
    rescale(query.storage, 3, tmp_path, sink=query.sink)
    blocked = query.rewind("--to-batch", str(query.newest), exit_code=3)
    assert f"--to-batch {query.newest} --file-sink {query.output.as_uri()}" in blocked
    query.rewind("--to-batch", str(query.newest), "--apply", "--confirm-stopped", exit_code=RefusedAsUnsafe.exit_code)
    query.rewind("--to-batch", str(query.newest), "--apply", "--confirm-stopped", "--file-sink", str(query.output))
    assert query.files() == {str(batch) for batch in range(query.newest + 1)}
    assert "not checked" not in query.rewind(*APPLY, "--no-file-sink")


def test_the_audit_recognizes_batches_that_spark_has_skipped(tmp_path: Path) -> None:
    """In structure V1, Spark commits them: their offsets and commits are there again, and no store has a version."""
    query = CheckpointWithSink(tmp_path)
    run = rewound(query.storage, TARGET, tmp_path)
    assert audited(query.storage).findings == ()
    for log in (names.OFFSETS, names.COMMITS, f"{names.SOURCES}/0"):
        for batch in (1, 2):
            query.storage.create(f"{log}/{batch}", query.storage.read(names.quarantine(run, f"{log}/{batch}")))
    (found,) = audited(query.storage).findings
    assert (found.kind.code, found.file) == ("batches_skipped", names.commits(1))
    command = f"statekeeper rewind {query.storage.url} --to-batch 0 --file-sink URL --apply --confirm-stopped"
    assert command in found.action
    with pytest.raises(RefusedAsUnsafe, match="was committed without state"):
        rewound(query.storage, TARGET, tmp_path)
    rewound(query.storage, TARGET, tmp_path, file_sink=query.sink)
    assert audited(query.storage).findings == ()
    assert query.files() == {"0"}


def test_lost_changelogs_of_a_query_that_was_not_rewound_are_not_called_skipped(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path)
    query.storage.delete([one.path for one in query.storage.list(names.STATE) if one.path.endswith("3.changelog")])
    assert {found.kind.code for found in audited(query.storage).findings} == {"changelog_missing"}
