"""A rescale of a query with a file sink adds the appended batch to the log of the sink, and an abort removes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import ObjectMissing, RefusedAsUnsafe, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format.file_sink import LOG
from statekeeper.statestore.storage import Storage
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.file_sinks import CheckpointWithSink
from tests.support.rescales import abort, rescale
from tests.support.switching import WRITES, after_the_dead
from tests.support.twins import statekeeper

APPLY = ("--partitions", "3", "--apply", "--confirm-stopped")


def test_the_appended_batch_has_an_empty_entry_as_spark_writes_it(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path, interval=3)
    before = query.files()
    query.rescale(*APPLY, "--file-sink", str(query.output))
    assert query.files() - before == {str(query.newest + 1)}
    assert (query.log / str(query.newest + 1)).read_bytes() == b"v1"


def test_at_a_compaction_the_entry_has_the_files_of_all_batches(tmp_path: Path) -> None:
    for interval in (1, 2, 10):
        query = CheckpointWithSink(tmp_path / str(interval), interval)
        at = query.newest + 1
        # Before its first compaction, the log does not show the interval of the query.
        is_compacted = interval == 10 or (at + 1) % interval == 0
        query.rescale(*APPLY, "--file-sink", str(query.output))
        written = query.log / (f"{at}.compact" if is_compacted else str(at))
        assert written.read_bytes() == b"\n".join([b"v1", *(query.lines if is_compacted else [])])


def test_the_plan_names_the_option_or_the_entry(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path)
    before = query.files()
    assert "add --file-sink URL" in query.rescale("--partitions", "3")
    shown = query.rescale("--partitions", "3", "--file-sink", str(query.output))
    entry = f"{LOG}/{query.newest + 1}.compact"
    assert f"adds {entry} to the file sink {query.output.as_uri()}" in " ".join(shown.split())
    assert f"compacts the log of this sink after every {query.newest + 2} batches" in " ".join(shown.split())
    plan = json.loads(query.rescale("--partitions", "3", "--file-sink", str(query.output), "--output", "json"))
    assert plan["file_sink"]["entry"] == entry
    assert plan["file_sink"]["sets_interval"] == query.newest + 2
    assert query.files() == before


def test_a_wrong_or_incomplete_log_stops_the_rescale_before_anything_is_written(tmp_path: Path) -> None:
    def refused(name: str, spoil: str, kind: type[StatekeeperError], text: str) -> None:
        query = CheckpointWithSink(tmp_path / name)
        path = query.log / str(query.newest)
        if spoil == "folder":
            query.output = tmp_path / "elsewhere"
        elif spoil == "gap":
            path.unlink()
        elif spoil == "later":
            (query.log / str(query.newest + 1)).write_bytes(b"v1")
        else:
            path.write_bytes(b"v2\n{}")
        with pytest.raises(kind, match=text):
            rescale(query.storage, 3, tmp_path, sink=query.sink)
        assert rewrite_journal.open_journal(query.storage) is None
        assert catalog.newest_batch(query.storage) == query.newest
        query.rescale(*APPLY, "--file-sink", str(query.output), exit_code=kind.exit_code)

    refused("a", "folder", ObjectMissing, "has no entry")
    refused("b", "gap", ObjectMissing, "is missing")
    refused("c", "later", RefusedAsUnsafe, "is newer than batch")
    refused("d", "version", UnknownFormatVersion, "begins with")


@pytest.mark.parametrize("interval", [10, 1])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_an_interrupted_rescale_is_finished_without_the_option(tmp_path: Path, fault: Fault, interval: int) -> None:
    query = CheckpointWithSink(tmp_path, interval)
    before = query.files()
    with pytest.raises(SimulatedCrash):
        rescale(query.storage, 3, tmp_path, sink=_dying(query.sink, fault))
    assert catalog.newest_batch(query.storage) == query.newest + 1
    opened = rewrite_journal.open_journal(query.storage)
    assert opened is not None
    assert f"--partitions 3 --file-sink {query.output.as_uri()} --apply" in opened.begun.finishing
    query.unlock()
    query.rescale(*APPLY, "--file-sink", str(tmp_path / "elsewhere"), exit_code=13)
    query.rescale(*APPLY)
    assert len(query.files() - before) == 1
    assert rewrite_journal.open_journal(query.storage) is None


@pytest.mark.parametrize("interval", [10, 1])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_an_abort_removes_the_entry_and_then_the_batch(tmp_path: Path, fault: Fault, interval: int) -> None:
    query = CheckpointWithSink(tmp_path, interval)
    before = query.files()
    with pytest.raises(SimulatedCrash):
        rescale(query.storage, 3, tmp_path, sink=_dying(query.sink, fault))
    with pytest.raises(SimulatedCrash):
        abort(query.storage, clock=after_the_dead(), sink=_dying(query.sink, fault))
    assert catalog.newest_batch(query.storage) == query.newest + 1
    query.unlock()
    statekeeper("rescale", str(query.checkpoint), "--abort", "--confirm-stopped")
    assert query.files() == before
    assert catalog.newest_batch(query.storage) == query.newest
    query.rescale(*APPLY, "--file-sink", str(query.output))


def test_an_abort_before_the_batch_leaves_the_sink_as_it_is(tmp_path: Path) -> None:
    query = CheckpointWithSink(tmp_path)
    before = query.files()

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.BEFORE if request.kind in WRITES and "commits/" in request.path else None

    with pytest.raises(SimulatedCrash):
        rescale(Dying(query.storage), 3, tmp_path, sink=query.sink)
    assert query.files() == before
    query.unlock()
    statekeeper("rescale", str(query.checkpoint), "--abort", "--confirm-stopped")
    assert query.files() == before


def _dying(sink: Storage, fault: Fault) -> Storage:
    """A sink whose first write fails."""

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return fault if request.kind in WRITES else None

    return Dying(sink)
