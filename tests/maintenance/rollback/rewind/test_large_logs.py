"""The log of a file source that has listed very many files is above the limit of a read, and every verb works with it."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.limits import MOST_READ_BYTES
from statekeeper.statestore.maintenance.records import quarantine
from statekeeper.statestore.maintenance.records.quarantine import QuarantineRecord, QueryPosition
from statekeeper.statestore.maintenance.rollback.rewind.sources import data
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.audits import audited
from tests.support.clones import cloned
from tests.support.file_sinks import CheckpointWithSink
from tests.support.mirrors import mirrored
from tests.support.rewinds import planned, rewound, undone

FILES = 80_000
"""With URLs of almost a kilobyte, the longest in a bucket."""


def _listed(storage: Storage, path: str, *, batch: int) -> Path:
    """Write an entry of a file source with many files of this batch."""
    entry = Path(storage.location.place) / path
    with entry.open("w") as file:
        file.write("v1")
        for number in range(FILES):
            url = f"s3a://bucket/{'x' * 800}/{number}.json"
            file.write(f'\n{{"path":"{url}","timestamp":1795795200000,"batchId":{batch}}}')
    assert entry.stat().st_size > MOST_READ_BYTES
    return entry


def _sizes(storage: Storage) -> dict[str, int]:
    return {entry.path: entry.size_bytes for entry in storage.list(names.SOURCES)}


@pytest.fixture
def query(tmp_path: Path) -> CheckpointWithSink:
    return CheckpointWithSink(tmp_path / "query")


def test_a_rewind_over_the_entry_and_its_undo_need_little_memory(
    query: CheckpointWithSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MOST_FILES", 1000)
    _listed(query.storage, "sources/0/2", batch=2)
    before = _sizes(query.storage)
    then, now = [logs.parse_offsets(query.storage.read(path), path) for path in (names.offsets(1), names.offsets(2))]
    tracemalloc.start()
    try:
        data.read(query.storage, then, now, before)
        assert tracemalloc.get_traced_memory()[1] < MOST_READ_BYTES // 2
    finally:
        tracemalloc.stop()
    (need,) = planned(query.storage, 1, tmp_path, file_sink=query.sink).sources
    assert need.needs == "more than 1,000 files that later batches have read"
    assert "only the first 1,000 files were looked up" in str(need.unchecked)
    run = rewound(query.storage, 1, tmp_path, file_sink=query.sink)
    assert _sizes(query.storage).keys() == before.keys() - {"sources/0/2"}
    undone(query.storage, run)
    assert _sizes(query.storage) == before


def test_a_rewind_reads_only_the_later_files_of_a_merged_entry(query: CheckpointWithSink, tmp_path: Path) -> None:
    entry = _listed(query.storage, "sources/0/2", batch=0)
    with entry.open("a") as file:
        file.write('\n{"path":"s3a://bucket/last.json","timestamp":1,"batchId":2}')
    entry.rename(entry.with_suffix(".compact"))
    (need,) = planned(query.storage, 1, tmp_path).sources
    assert need.needs == "the file that later batches have read"
    assert need.unchecked is not None
    assert "cannot be read" not in need.unchecked


def test_the_record_of_a_rewind_of_very_many_files_can_be_read(tmp_path: Path) -> None:
    root = open_storage(str(tmp_path))
    order = tuple(f"state/0/{number}/{'x' * 200}.changelog" for number in range(MOST_READ_BYTES // 200))
    record = QuarantineRecord(
        position=QueryPosition(3, "a"), rewound={4: "b"}, order=order, file_sink="s3://bucket/output"
    )
    run = RandomIds().fresh()
    quarantine.begin(root, run, record)
    assert quarantine.recorded(root, run) == record
    (tmp_path / names.quarantine_position(run)).write_bytes(record.encoded().rpartition(b"\n")[0])
    with pytest.raises(CorruptFile):
        quarantine.recorded(root, run)
    former = {"batch": 3, "commit": "a", "rewound": {"4": "b"}, "rewritten": {}, "order": ["commits/4", "offsets/4"]}
    (tmp_path / names.quarantine_position(run)).write_text(json.dumps(former))
    assert quarantine.recorded(root, run) == replace(record, order=("commits/4", "offsets/4"), file_sink=None)


def test_the_audit_a_clone_a_mirror_and_a_rescale_accept_the_entry(query: CheckpointWithSink, tmp_path: Path) -> None:
    entry = _listed(query.storage, "sources/0/0", batch=0)
    clone, mirror = (open_storage(str(tmp_path / name)) for name in ("clone", "mirror"))
    assert audited(query.storage, scratch=tmp_path / "deep").findings == ()
    cloned(query.storage, clone, tmp_path)
    mirrored(query.storage, mirror, tmp_path)
    sink = ("--file-sink", str(query.output))
    query.rescale("--partitions", "3", "--apply", "--confirm-stopped", *sink)
    # The mirror has other bytes from a batch that ran again.
    mirror.replace("sources/0/0", b"v1\n")
    mirrored(query.storage, mirror, tmp_path)
    for root in (clone, mirror):
        assert _sizes(root)["sources/0/0"] == entry.stat().st_size
