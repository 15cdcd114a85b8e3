"""Savepoints with rows, loaded as the state of checkpoints that Spark wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import (
    CorruptFile,
    NotACheckpoint,
    ObjectMissing,
    RefusedAsUnsafe,
    StatekeeperError,
    UnknownFormatVersion,
)
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.maintenance.rewrites.engine import Progress, RewritePhase
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import rescales
from tests.support.loads import load, planned, savepoint, undo
from tests.support.placed_rows import placed_rows
from tests.support.rescales import all_rows
from tests.support.switching import contents
from tests.support.twins import clean
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
CHECKPOINTS = sorted(path for path in FIXTURES.glob("spark-*.zip") if "-hdfs-" not in path.stem)
OF_CI = (
    "v1-join-4-checksums-and-commas",
    "v2-join-3",
    "v2-transformWithState",
    "v2-sessions-snappy",
    "v1-aggregation-of-all-rows",
    "v1-two-operators-zstd",
)
AGGREGATION = FIXTURES / "spark-4.2.0-v2-aggregation.zip"


def _cases() -> list[object]:
    slow = pytest.mark.slow
    return [
        pytest.param(path, moves, id=f"{path.stem}-{'other' if moves else 'same'}", marks=marks)
        for path in CHECKPOINTS
        for moves in (False, True)
        for marks in [() if path.stem.removeprefix("spark-4.2.0-") in OF_CI and moves else slow]
    ]


@pytest.mark.parametrize(("archive", "moves"), _cases())
def test_a_loaded_checkpoint_has_the_rows_of_the_savepoint(archive: Path, moves: bool, tmp_path: Path) -> None:
    source = open_storage(str(unpacked(archive, tmp_path / "source")))
    checkpoint = unpacked(archive, tmp_path / "target")
    storage = open_storage(str(checkpoint))
    of = savepoint(source, tmp_path / "savepoint")
    if moves:
        is_there = rescales.planned(storage, 3, tmp_path / "scratch").is_there
        rescales.rescale(storage, 4 if is_there else 3, tmp_path / "scratch")
    heads, batch = catalog.heads(storage), catalog.newest_batch(storage)
    assert heads is not None
    assert batch is not None
    load(storage, of, tmp_path / "scratch")
    assert all_rows(checkpoint) == all_rows(tmp_path / "source" / "checkpoint") != {}
    placed = placed_rows(checkpoint, tmp_path / "placed")
    assert +placed.elsewhere == {}
    after = catalog.heads(storage)
    assert after is not None
    assert (catalog.newest_batch(storage), after.heads.keys()) == (batch + 1, heads.heads.keys())
    clean(storage, tmp_path)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Storage, Storage]:
    """A checkpoint, and a savepoint of another one of the same query."""
    of = savepoint(open_storage(str(unpacked(AGGREGATION, tmp_path / "source"))), tmp_path / "savepoint")
    return open_storage(str(unpacked(AGGREGATION, tmp_path / "target"))), of


def test_a_checkpoint_with_rows_is_not_replaced_without_the_option(
    pair: tuple[Storage, Storage], tmp_path: Path
) -> None:
    storage, of = pair
    before = contents(storage)
    [refusal] = planned(storage, of, tmp_path / "scratch", replaces_state=False).refusals
    assert "add --replace-state" in refusal
    with pytest.raises(RefusedAsUnsafe, match="--replace-state"):
        load(storage, of, tmp_path / "scratch", replaces_state=False)
    assert contents(storage) == before


def test_the_plan_has_counts_bytes_and_seconds(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    plan = planned(*pair, tmp_path / "scratch")
    assert plan.rows == sum(all_rows(tmp_path / "source" / "checkpoint").values()) > 0
    assert min(plan.read_bytes, plan.local_bytes, plan.seconds) > 0


def test_progress_counts_the_rows_that_are_verified_and_read(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    shown = list[Progress]()
    load(*pair, tmp_path / "scratch", progress=shown.append)
    rows = sum(all_rows(tmp_path / "source" / "checkpoint").values())
    for phase in (RewritePhase.VERIFIED, RewritePhase.READ):
        counts = [(one.done, one.of) for one in shown if one.phase is phase]
        assert counts == sorted(counts)
        assert counts[-1] == (rows, rows)


@pytest.mark.parametrize("watermark_ms", [0, 4_000_000_000_000])
def test_the_watermarks_of_the_savepoint_become_those_of_the_query(watermark_ms: int, tmp_path: Path) -> None:
    archive = FIXTURES / "spark-4.2.0-v1-windows-lzf.zip"
    source = open_storage(str(unpacked(archive, tmp_path / "source")))
    batch = catalog.newest_batch(source)
    assert batch is not None
    storage = open_storage(str(unpacked(archive, tmp_path / "target")))
    path = names.commits(batch)
    saved = logs.parse_commit(source.read(path), path)
    late_ms, path_of_offsets = saved.next_watermark_ms - 60_000, names.offsets(batch)
    lower = logs.with_confs(
        source.read(path_of_offsets).decode(), path_of_offsets, {}, watermark_ms=late_ms, lowers=True
    )
    source.replace(path_of_offsets, lower)
    storage.replace(path, logs.encode_commit(replace(saved, next_watermark_ms=watermark_ms)))
    load(storage, savepoint(source, tmp_path / "savepoint"), tmp_path / "scratch")
    commit, offsets = names.commits(batch + 1), names.offsets(batch + 1)
    assert logs.parse_commit(storage.read(commit), commit).next_watermark_ms == saved.next_watermark_ms
    assert logs.parse_offsets(storage.read(offsets), offsets).watermark_ms == late_ms


def test_an_undo_restores_the_former_state_until_the_query_has_begun_a_batch(
    pair: tuple[Storage, Storage], tmp_path: Path
) -> None:
    storage, of = pair
    before = contents(storage)
    run = load(storage, of, tmp_path / "scratch")
    batch = catalog.newest_batch(storage)
    assert batch is not None
    started = names.offsets(batch + 1)
    storage.create(started, storage.read(names.offsets(batch)))
    with pytest.raises(RefusedAsUnsafe, match="has begun batch"):
        undo(storage, run)
    storage.delete([started])
    with pytest.raises(RefusedAsUnsafe, match="not the newest rewrite"):
        undo(storage, RandomIds().fresh())
    undo(storage, run)
    after = contents(storage)
    assert {path: body for path, body in after.items() if not path.startswith("_statekeeper/")} == before
    clean(storage, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="reversed already"):
        undo(storage, run)


def _changed(of: Storage, change: Callable[[dict[str, Any]], None]) -> None:
    body = json.loads(of.read("savepoint.json"))
    change(body)
    of.replace("savepoint.json", json.dumps(body).encode())


def _part(of: Storage) -> str:
    return next(entry.path for entry in of.list("rows") if entry.size_bytes)


def _one_row_less(of: Storage) -> None:
    """Remove a row from a file, and give the manifest the size of the new file."""
    path = _part(of)
    table = pq.read_table(pa.BufferReader(of.read(path)))
    sink = pa.BufferOutputStream()
    pq.write_table(table.slice(1), sink)
    body = sink.getvalue().to_pybytes()
    of.replace(path, body)
    text = of.read("savepoint.json").decode()
    parts = [part for table in json.loads(text)["tables"] for part in table["partitions"]]
    [size] = [file["bytes"] for part in parts for file in part["files"] if file["path"] == path]
    of.replace("savepoint.json", text.replace(f'"bytes": {size}\n', f'"bytes": {len(body)}\n').encode())


def _other_bytes(of: Storage) -> None:
    path = _part(of)
    body = bytearray(of.read(path))
    body[len(body) // 3] ^= 0xFF
    of.replace(path, bytes(body))


DAMAGES: dict[str, tuple[Callable[[Storage], None], type[StatekeeperError]]] = {
    "no manifest": (lambda of: of.delete(["savepoint.json"]), NotACheckpoint),
    "a missing file": (lambda of: of.delete([_part(of)]), ObjectMissing),
    "a truncated file": (lambda of: of.replace(_part(of), of.read(_part(of))[:-9]), CorruptFile),
    "other bytes": (_other_bytes, CorruptFile),
    "a row less": (_one_row_less, CorruptFile),
    "a wrong total": (lambda of: _changed(of, lambda body: body.update(rows=body["rows"] + 1)), CorruptFile),
    "a wrong digest": (lambda of: _changed(of, lambda body: body.update(digest="0" * 32)), CorruptFile),
    "no watermark": (lambda of: _changed(of, lambda body: body.pop("watermark_ms")), CorruptFile),
    "a later format": (lambda of: _changed(of, lambda body: body.update(format=2)), UnknownFormatVersion),
    "a text as a flag": (
        lambda of: _changed(of, lambda body: body["tables"][0]["key_schema"][0].update(nullable="false")),
        CorruptFile,
    ),
    "a missing table": (
        lambda of: _changed(of, lambda body: body.update(tables=[], rows=0, digest="0" * 32)),
        RefusedAsUnsafe,
    ),
    "another operator": (
        lambda of: _changed(of, lambda body: body["tables"][0].update(operator="dedupe")),
        RefusedAsUnsafe,
    ),
    "another schema": (
        lambda of: _changed(of, lambda body: body["tables"][0]["value_schema"][0].update(type="int32")),
        RefusedAsUnsafe,
    ),
    "another number of partitions": (
        lambda of: _changed(of, lambda body: body["tables"][0].update(partition_count=7)),
        RefusedAsUnsafe,
    ),
    "a job's root": (lambda of: _changed(of, lambda body: body.update(origin="own")), RefusedAsUnsafe),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_savepoint_that_does_not_fit_is_rejected_and_nothing_is_written(
    damage: str, pair: tuple[Storage, Storage], tmp_path: Path
) -> None:
    storage, of = pair
    before = contents(storage)
    change, error = DAMAGES[damage]
    change(of)
    with pytest.raises(error):
        load(storage, of, tmp_path / "scratch")
    after = contents(storage)
    assert {path: body for path, body in after.items() if not path.startswith(names.LEASES)} == before
    assert rewrite_journal.open_journal(storage) is None
