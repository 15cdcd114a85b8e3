"""The local disk between the old and the new partitions of a rewrite."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from statestore.maintenance.rewrites.spool import Spool

MOST_TABLES = 400


def _rows(seed: int, count: int) -> dict[tuple[int, bytes], bytes]:
    chosen = random.Random(seed)
    return {(chosen.randrange(3), chosen.randbytes(chosen.randrange(1, 9))): chosen.randbytes(5) for _ in range(count)}


def _add(spool: Spool, rows: dict[tuple[int, bytes], bytes], piece: int) -> None:
    items = list(rows.items())
    pieces = [items[begin : begin + piece] for begin in range(0, len(items), piece)]
    spool.add(
        (
            np.array([target for (target, _), _ in some], np.int32),
            [key for (_, key), _ in some],
            [value for _, value in some],
        )
        for some in pieces
    )


def test_rows_leave_the_spool_by_target_in_the_order_of_their_keys(tmp_path: Path) -> None:
    rows = _rows(7, 5_000)
    with Spool(tmp_path / "spool", 1_000) as spool:
        _add(spool, rows, 100)
        for target in range(4):
            found = [pair for keys, values in spool.rows_of(target) for pair in zip(keys, values, strict=True)]
            assert found == sorted((key, value) for (place, key), value in rows.items() if place == target)


def test_a_spool_of_many_pieces_has_few_tables(tmp_path: Path) -> None:
    tables = pieces = 0
    with Spool(tmp_path / "spool", 1) as spool:
        while tables >= pieces // 2 and pieces < MOST_TABLES:
            _add(spool, _rows(pieces, 10), 10)
            pieces += 1
            tables = len(list((tmp_path / "spool").glob("*.sst")))
        assert tables < pieces // 2
        assert sum(len(keys) for target in range(3) for keys, _ in spool.rows_of(target)) >= 9 * pieces
