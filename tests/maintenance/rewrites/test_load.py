"""Savepoints with rows, loaded as the state of checkpoints that Spark wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statestore import catalog, switch_journal
from statestore.errors import CorruptFile, NotACheckpoint, ObjectMissing, RefusedAsUnsafe
from statestore.format import logs, names
from statestore.storage import open_storage
from tests.support import rescales
from tests.support.loads import load, planned, savepoint
from tests.support.placed_rows import placed_rows
from tests.support.rescales import all_rows
from tests.support.switching import contents
from tests.support.twins import clean
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
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
JOIN = FIXTURES / "spark-4.2.0-v2-join-3.zip"


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
        rescales.rescale(storage, 3, tmp_path / "scratch")
    heads, batch = catalog.heads(storage), catalog.newest_batch(storage)
    assert heads is not None and batch is not None
    load(storage, of, tmp_path / "scratch")
    assert all_rows(checkpoint) == all_rows(tmp_path / "source" / "checkpoint") != {}
    placed = placed_rows(checkpoint, tmp_path / "placed")
    assert +placed.elsewhere == {}
    after = catalog.heads(storage)
    assert after is not None
    assert (catalog.newest_batch(storage), after.heads.keys()) == (batch + 1, heads.heads.keys())
    clean(storage, tmp_path)
