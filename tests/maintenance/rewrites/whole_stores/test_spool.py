"""The local disk between the old and the new partitions of a rewrite."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from statekeeper.statestore.maintenance.rewrites.whole_stores.spool import OpenPart, Part, SharedSpool, rows_of

MOST_TABLES = 400


def _rows(seed: int, count: int) -> dict[tuple[int, bytes], bytes]:
    chosen = random.Random(seed)
    return {(chosen.randrange(3), chosen.randbytes(chosen.randrange(1, 9))): chosen.randbytes(5) for _ in range(count)}


def _add(part: OpenPart, rows: dict[tuple[int, bytes], bytes], piece: int) -> None:
    items = list(rows.items())
    pieces = [items[begin : begin + piece] for begin in range(0, len(items), piece)]
    part.add(
        (
            np.array([target for (target, _), _ in some], np.int32),
            [key for (_, key), _ in some],
            [value for _, value in some],
        )
        for some in pieces
    )


def test_rows_leave_the_spool_by_target_in_the_order_of_their_keys(tmp_path: Path) -> None:
    rows = _rows(7, 5_000)
    with OpenPart.create(tmp_path / "spool", 1_000) as spool:
        _add(spool, rows, 100)
        for target in range(4):
            found = [pair for keys, values in spool.rows_of(target, 1) for pair in zip(keys, values, strict=True)]
            assert found == sorted((key, value) for (place, key), value in rows.items() if place == target)


def test_a_spool_of_many_pieces_has_few_tables(tmp_path: Path) -> None:
    tables = pieces = 0
    with OpenPart.create(tmp_path / "spool", 1) as spool:
        while tables >= pieces // 2 and pieces < MOST_TABLES:
            _add(spool, _rows(pieces, 10), 10)
            pieces += 1
            tables = len(list((tmp_path / "spool").glob("*.sst")))
        assert tables < pieces // 2
        assert sum(len(keys) for target in range(3) for keys, _ in spool.rows_of(target, 1)) >= 9 * pieces


def test_rows_of_several_parts_leave_the_spool_in_the_order_of_their_keys(tmp_path: Path) -> None:
    rows = _rows(8, 40_000)
    spool = SharedSpool(tmp_path / "spool", 20_000)
    with spool.lend() as first, spool.lend() as second, spool.lend() as third:
        for remainder, part in enumerate((first, second, third)):
            with part.writing() as opened:
                _add(opened, {row: rows[row] for row in rows if row[1][0] % 3 == remainder}, 3_000)
    # A part that was given back is lent again.
    with spool.lend() as again, again.writing() as opened:
        _add(opened, {(3, b"later"): b"value"}, 1)
    assert len(spool.parts) == 3
    for target in range(3):
        expected = sorted((key, value) for (place, key), value in rows.items() if place == target)
        assert _pairs_of(spool.parts, target) == expected
    assert _pairs_of(spool.parts, 3) == [(b"later", b"value")]


def _pairs_of(parts: Sequence[Part], target: int) -> list[tuple[bytes, bytes]]:
    return [pair for keys, values in rows_of(parts, target) for pair in zip(keys, values, strict=True)]
