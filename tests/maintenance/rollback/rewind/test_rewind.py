"""Rewinds: the rows of the target, an audit without findings, later batches and verbs, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rollback.rewind import SourceNeed
from statekeeper.statestore.maintenance.verbs.rewind import source_line
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.audits import audited
from tests.support.clones import FEW_KINDS, KINDS, cloned, made, own
from tests.support.repairs import aggressively_collected, contents
from tests.support.rewinds import planned, rewound, undone
from tests.support.structures import held
from tests.support.unpacked import unpacked

CHECKPOINTS = Path(__file__).parents[3] / "fixtures" / "checkpoints"


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
@pytest.mark.parametrize("to", [4, pytest.param(6, marks=pytest.mark.slow), 7])
def test_a_rewound_query_has_the_rows_of_its_target_and_continues(
    root: Storage, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool, to: int
) -> None:
    query = made(root, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    rewound(root, to, tmp_path)
    query.forget_after(to)
    assert catalog.newest_batch(root) == to
    assert query.is_right()
    assert audited(root, scratch=tmp_path / "deep").findings == ()
    query.grow(4)
    assert query.is_right()
    assert audited(root, scratch=tmp_path / "deep again").findings == ()


@pytest.mark.parametrize("verb", ["snapshot", "gc", "switch", "repair"])
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_each_verb_works_after_a_rewind_and_a_rewind_after_each_verb(
    root: Storage, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool, verb: str
) -> None:
    query = made(root, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    rewound(root, 5, tmp_path)
    query.forget_after(5)
    if verb == "repair":
        query.grow(3)
    getattr(query, verb)()
    assert query.is_right()
    query.grow(3)
    newest = catalog.newest_batch(root)
    assert newest is not None
    rewound(root, newest - 1, tmp_path)
    query.forget_after(newest - 1)
    query.grow(2)
    assert query.is_right()
    assert audited(root, scratch=tmp_path / "deep").findings == ()


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
def test_undo_restores_every_byte(
    root: Storage, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    query = made(root, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    before = contents(root)
    run = rewound(root, 4, tmp_path)
    assert contents(root) != before
    restored = undone(root, run)
    assert contents(root) == before
    assert restored
    assert root.list(names.QUARANTINE) == []
    assert query.is_right()
    query.grow(2)
    assert query.is_right()


def test_undo_restores_after_retention_with_a_snapshot_of_the_target(tmp_path: Path) -> None:
    root = open_storage(str(tmp_path / "root"))
    query = own(root, tmp_path)
    rows = held(root, tmp_path / "before")
    run = rewound(root, 4, tmp_path)
    query.forget_after(4)
    query.snapshot()
    aggressively_collected(root)
    undone(root, run)
    assert held(root, tmp_path / "after") == rows
    assert audited(root, scratch=tmp_path / "deep").findings == ()


def test_undo_is_rejected_after_the_query_has_committed(root: Storage, tmp_path: Path) -> None:
    query = own(root, tmp_path)
    run = rewound(root, 4, tmp_path)
    query.forget_after(4)
    query.grow(1)
    before = contents(root)
    with pytest.raises(RefusedAsUnsafe, match="committed since"):
        undone(root, run)
    assert contents(root) == before


def test_undo_of_an_earlier_rewind_is_rejected_until_the_later_one_is_undone(root: Storage, tmp_path: Path) -> None:
    query = own(root, tmp_path)
    before = contents(root)
    first, second = rewound(root, 6, tmp_path), rewound(root, 4, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="undo that run first"):
        undone(root, first)
    undone(root, second)
    undone(root, first)
    assert contents(root) == before
    assert query.is_right()


@pytest.mark.parametrize("kind", ["own", "native"])
def test_a_rewound_query_gets_a_new_id_unless_it_keeps_its_own(root: Storage, tmp_path: Path, kind: str) -> None:
    made(root, tmp_path, kind, Structure.V2, in_batch_logs=False)

    def query_id() -> str:
        if kind == "own":
            return binding.parse_binding(root.read(names.BINDING)).query_id
        return logs.parse_metadata(root.read(names.QUERY_METADATA), names.QUERY_METADATA)

    first = query_id()
    rewound(root, 6, tmp_path, keep_query_id=True)
    assert query_id() == first
    rewound(root, 5, tmp_path)
    assert query_id() != first
    chosen = "0badc0de-0000-4000-8000-00000000000a"
    rewound(root, 4, tmp_path, query_id=chosen)
    assert query_id() == chosen


def test_the_later_entries_of_a_file_source_are_quarantined(root: Storage, tmp_path: Path) -> None:
    own(root, tmp_path)
    there = tmp_path / "there.json"
    there.write_text("{}")
    for batch in range(8):
        path = names.offsets(batch)
        log = logs.parse_offsets(root.read(path), path)
        position = (f'{{"logOffset":{batch}}}', f'{{"clicks":{{"0":{batch * 10}}}}}')
        root.replace(
            path,
            logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=batch, conf=log.conf, sources=position)),
        )
        read = f"{there.as_uri()}" if batch != 6 else "file:///gone.json"
        root.create(
            f"{names.SOURCES}/0/{batch}", b'v1\n{"path":"%s","timestamp":1,"batchId":%d}' % (read.encode(), batch)
        )
    root.create(
        f"{names.SOURCES}/0/9.compact", b'v1\n{"path":"file:///gone.json","batchId":6}\n{"path":"x","batchId":5}\n{'
    )
    prepared = planned(root, 5, tmp_path)
    files, kafka = prepared.sources
    assert files.missing == ("file:///gone.json",)
    assert "2 files" in files.needs
    assert kafka.needs == "topic clicks, partition 0: offset 50 and later"
    run = rewound(root, 5, tmp_path)
    assert [entry.path for entry in root.list(names.SOURCES)] == [f"{names.SOURCES}/0/{entry}" for entry in range(6)]
    undone(root, run)
    assert len(root.list(names.SOURCES)) == 9
    root.replace(f"{names.SOURCES}/0/7", b'v1\n{"path":"s3://[x","batchId":7}\n{"path":1,"batchId":"x"}\n\xff')
    files = planned(root, 5, tmp_path).sources[0]
    assert (files.missing, files.unchecked) == (
        ("file:///gone.json",),
        "sources/0/7 cannot be read: not all files are known; 1 not checked",
    )


def test_the_plan_names_missing_data_and_says_what_it_did_not_check() -> None:
    files = SourceNeed("0", "the 2 files that later batches have read", ("file:///gone.json", "file:///too.json"))
    assert source_line(files) == (
        "source 0 must still have: the 2 files that later batches have read; missing now: file:///gone.json and 1 more "
        "(--output json lists them)"
    )
    kafka = SourceNeed("1", "topic clicks, partition 0: offset 50 and later", None, "not checked. To check it, add X")
    assert source_line(kafka).endswith("offset 50 and later; not checked. To check it, add X")
    assert source_line(SourceNeed("0", "the file", ())) == "source 0 must still have: the file; nothing is missing"


def test_a_clone_of_a_rewound_query_has_its_rows(tmp_path: Path) -> None:
    root, other = open_storage(str(tmp_path / "root")), open_storage(str(tmp_path / "clone"))
    query = own(root, tmp_path)
    rewound(root, 5, tmp_path)
    query.forget_after(5)
    cloned(root, other, tmp_path)
    assert held(other, tmp_path / "look") == held(root, tmp_path / "look too")
    assert other.list(names.QUARANTINE) == []


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_a_query_with_a_lost_head_is_rewound_to_the_newest_batch_that_loads(
    root: Storage, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    """The end of a bad night: the newest commit is damaged, and the state of the batch before it is lost."""
    query = made(root, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    files = catalog.files(root)
    lost = {files[store].object_of(version) for store, version in catalog.heads_at(root, 6).heads.items()}
    root.delete(lost)
    root.replace(names.commits(7), b"v2\n{")
    with pytest.raises(StatekeeperError):
        query.is_right()
    rewound(root, 5, tmp_path)
    query.forget_after(5)
    assert query.is_right()
    assert audited(root, scratch=tmp_path / "deep").findings == ()
    query.grow(2)
    assert query.is_right()


@pytest.mark.parametrize("structure", ["v1", "v2"])
def test_a_rewind_to_a_batch_before_a_repartitioning_leaves_no_file_of_the_added_store(
    tmp_path: Path, structure: str
) -> None:
    """Batch 3 has repartitioned the query from two partitions to three."""
    archive = CHECKPOINTS / f"spark-4.2.0-{structure}-repartitioned.zip"
    root = open_storage(str(unpacked(archive, tmp_path / "query")))
    before = contents(root)
    rows = held(root, tmp_path / "before")
    assert any(path.startswith("state/0/2/SSTs/") for path in before)
    run = rewound(root, 2, tmp_path)
    assert root.list("state/0/2") == []
    assert len(held(root, tmp_path / "rewound")) == 2
    assert audited(root, scratch=tmp_path / "deep").findings == ()
    undone(root, run)
    assert contents(root) == before
    assert held(root, tmp_path / "after") == rows
    assert audited(root, scratch=tmp_path / "deep again").findings == ()


def test_a_later_run_moves_the_tables_that_an_interrupted_rewind_has_left(tmp_path: Path) -> None:
    archive = CHECKPOINTS / "spark-4.2.0-v1-repartitioned.zip"
    root = open_storage(str(unpacked(archive, tmp_path / "query")))
    rewound(root, 2, tmp_path)
    root.create("state/0/2/SSTs/000008-1168a284-ad3b-49d8-b35b-f8994d9b7ce8.sst", b"a table")
    root.create("state/0/7/notes.txt", b"of a person")
    rewound(root, 2, tmp_path)
    assert [entry.path for entry in root.list("state/0/2")] == []
    assert root.read("state/0/7/notes.txt") == b"of a person"
