"""Conversions of the checkpoints that Spark's default provider wrote to RocksDB, and back: the same rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.provider import Provider, provider_of
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites import whole_stores
from statekeeper.statestore.maintenance.rewrites.engine import Machine
from statekeeper.statestore.maintenance.rewrites.whole_stores import Convert
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import runs
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.rescales import FOR_SPARK, abort, all_rows
from tests.support.switching import WRITES, after_the_dead
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
CHECKPOINTS = sorted(FIXTURES.glob("spark-*-hdfs-*.zip"))
SESSIONS = FIXTURES / "spark-4.2.0-hdfs-sessions-snappy.zip"
JOIN = FIXTURES / "spark-4.2.0-hdfs-join-2.zip"


def convert(checkpoint: Path, *options: str, exit_code: int = 0) -> str:
    scratch = str(checkpoint.parent / "scratch")
    return statekeeper("convert", str(checkpoint), *options, "--scratch", scratch, exit_code=exit_code)


APPLY = ("--apply", "--confirm-stopped")


def provider_at(storage: Storage) -> Provider | None:
    batch = catalog.newest_batch(storage)
    assert batch is not None
    path = names.offsets(batch)
    return provider_of(logs.parse_offsets(storage.read(path), path).conf)


def _cases() -> list[object]:
    """CI converts each checkpoint to one of the structures, the slow tests to both."""
    cases = [(path, structure) for path in CHECKPOINTS for structure in Structure]
    return [
        pytest.param(
            *case,
            id=f"{case[0].stem.partition('hdfs-')[2]}-{case[1].value}",
            marks=() if number % 4 in (0, 3) else pytest.mark.slow,
        )
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("archive", "structure"), _cases())
def test_a_converted_checkpoint_has_the_same_rows(archive: Path, structure: Structure, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    assert before
    convert(checkpoint, "--to", "rocksdb", "--structure", structure.value, "--for-spark", "4.2", *APPLY)
    assert provider_at(storage) is Provider.ROCKSDB
    assert all_rows(checkpoint) == before
    heads = catalog.heads(storage)
    assert heads is not None
    assert {head.id is None for head in heads.heads.values()} == {structure is Structure.V1}
    clean(storage, tmp_path)


@pytest.mark.parametrize("archive", CHECKPOINTS[::3], ids=lambda path: path.stem.partition("hdfs-")[2])
def test_a_conversion_there_and_back_gives_the_same_rows(archive: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    convert(checkpoint, "--to", "rocksdb", "--for-spark", "4.2", *APPLY)
    convert(checkpoint, "--to", "hdfs", *APPLY)
    assert provider_at(storage) is Provider.HDFS_BACKED
    assert all_rows(checkpoint) == before
    statekeeper("audit", str(checkpoint), "--deep")


@pytest.mark.parametrize("archive", [SESSIONS, JOIN], ids=["sessions", "join"])
def test_convert_rescale_and_switch_follow_each_other(archive: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    before = all_rows(checkpoint)
    options = ("--for-spark", "4.2", *APPLY, "--scratch", str(tmp_path / "scratch"))
    convert(checkpoint, "--to", "rocksdb", "--for-spark", "4.2", *APPLY)
    statekeeper("rescale", str(checkpoint), "--partitions", "5", *options)
    statekeeper("switch", str(checkpoint), "--to", "v2", *options)
    assert all_rows(checkpoint) == before
    statekeeper("switch", str(checkpoint), "--to", "v1", *options)
    statekeeper("rescale", str(checkpoint), "--partitions", "2", *options)
    convert(checkpoint, "--to", "hdfs", *APPLY)
    assert all_rows(checkpoint) == before
    statekeeper("audit", str(checkpoint), "--deep")


def test_a_rescale_needs_a_conversion_first(tmp_path: Path) -> None:
    """The default provider ignores the guards of an interrupted rescale, and would load a part of its snapshots."""
    checkpoint = unpacked(JOIN, tmp_path)
    before = all_rows(checkpoint)
    options = ("--for-spark", "4.2", *APPLY, "--scratch", str(tmp_path / "scratch"))
    refused = statekeeper("rescale", str(checkpoint), "--partitions", "5", *options, exit_code=3)
    assert f"statekeeper convert {checkpoint} --to rocksdb" in " ".join(refused.split())
    assert rewrite_journal.open_journal(open_storage(str(checkpoint))) is None
    convert(checkpoint, "--to", "rocksdb", *APPLY)
    statekeeper("rescale", str(checkpoint), "--partitions", "5", *options)
    assert all_rows(checkpoint) == before
    statekeeper("audit", str(checkpoint), "--deep")


def test_no_file_of_the_query_is_changed(tmp_path: Path) -> None:
    checkpoint = unpacked(SESSIONS, tmp_path)
    storage = open_storage(str(checkpoint))
    before = {entry.path: storage.read(entry.path) for entry in storage.list("")}
    convert(checkpoint, "--to", "rocksdb", *APPLY)
    assert {path: storage.read(path) for path in before} == before


def test_the_plan_names_the_settings_with_which_the_query_starts(tmp_path: Path) -> None:
    plan = convert(unpacked(SESSIONS, tmp_path), "--to", "rocksdb", "--structure", "v2", "--for-spark", "4.2")
    assert "checkpointFormatVersion=2" in plan
    assert "--to rocksdb --structure v2 --for-spark 4.2" in plan.splitlines()[-1]
    assert plan.endswith(" --apply --confirm-stopped\n")


def test_an_operator_with_column_families_stays_on_rocksdb(tmp_path: Path) -> None:
    checkpoint = unpacked(FIXTURES / "spark-4.2.0-v1-transformWithState-checksums-and-commas.zip", tmp_path)
    refused = convert(checkpoint, "--to", "hdfs", exit_code=3)
    assert "has column families, which Spark's default provider does not support" in " ".join(refused.split())
    convert(checkpoint, "--to", "hdfs", *APPLY, exit_code=3)
    assert rewrite_journal.open_journal(open_storage(str(checkpoint))) is None


@pytest.mark.parametrize(
    ("archive", "options", "reason"),
    [
        (SESSIONS, ("--to", "hdfs"), "already has HDFSBackedStateStoreProvider"),
        (FIXTURES / "spark-4.2.0-v1-windows-lzf.zip", ("--to", "rocksdb"), "already has RocksDBStateStoreProvider"),
        (FIXTURES / "spark-4.2.0-v1-windows-lzf.zip", ("--to", "rocksdb", "--structure", "v2"), "statekeeper switch"),
        (FIXTURES / "spark-4.2.0-v1-windows-lzf.zip", ("--to", "hdfs", "--structure", "v2"), "only structure V1"),
        (FIXTURES / "spark-4.2.0-v2-sessions-snappy.zip", ("--to", "hdfs"), "statekeeper switch ROOT --to v1"),
    ],
)
def test_an_impossible_conversion_states_the_reason(
    archive: Path, options: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    there = "already has" in reason
    checkpoint = unpacked(archive, tmp_path)
    shown = convert(checkpoint, *options, exit_code=0 if there else 3)
    assert reason.replace("ROOT", str(checkpoint)) in " ".join(shown.split())


def test_too_little_local_disk_blocks_the_conversion(tmp_path: Path) -> None:
    facts = whole_stores.gather(open_storage(str(unpacked(SESSIONS, tmp_path))), scratch=tmp_path)
    full = replace(facts, stopped=replace(facts.stopped, free_bytes=10))
    refusals = whole_stores.plan(full, Convert(Provider.ROCKSDB), FOR_SPARK).refusals
    assert "10 are free" in refusals[-1]


def test_an_abort_keeps_a_batch_that_the_query_committed_after_an_interrupted_conversion(tmp_path: Path) -> None:
    """In structure V1, the commit of such a batch can have the bytes of the conversion's own commit."""
    checkpoint = unpacked(FIXTURES / "spark-4.2.0-hdfs-aggregation.zip", tmp_path)
    storage = open_storage(str(checkpoint))
    batch = catalog.newest_batch(storage)
    assert batch is not None

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.BEFORE if request.path == names.commits(batch + 1) and request.kind in WRITES else None

    plan = whole_stores.plan(whole_stores.gather(storage, scratch=tmp_path), Convert(Provider.ROCKSDB), FOR_SPARK)
    machine = Machine(scratch=tmp_path / "scratch", clock=SystemClock(), ids=RandomIds(), workers=1)
    with pytest.raises(SimulatedCrash):
        runs.rewrite(Dying(storage), plan, lambda _: None, run=RandomIds().fresh(), holder="dead", machine=machine)
    offsets = storage.read(names.offsets(batch)).replace(b'"batchTimestampMs":1', b'"batchTimestampMs":2')
    storage.create(names.offsets(batch + 1), offsets)
    storage.create(names.commits(batch + 1), storage.read(names.commits(batch)))
    abort(storage, clock=after_the_dead())
    assert storage.read(names.offsets(batch + 1)) == offsets
    assert catalog.newest_batch(storage) == batch + 1
    assert rewrite_journal.open_journal(storage) is None
