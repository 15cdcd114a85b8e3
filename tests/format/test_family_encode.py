"""Rows of each operator of Spark, decoded and encoded again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.contents.rows import OpenStore, Pairs, contents_at, layout, opened
from statekeeper.statestore.format.families import Family, KeyEncoder
from statekeeper.statestore.format.family_encode import encode_keys, encode_values
from statekeeper.statestore.format.family_rows import decode_keys, decode_rows_of
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.storage import open_storage
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
CHECKPOINTS = sorted(path for path in FIXTURES.glob("spark-*.zip") if "archived" not in path.stem)


def encoded(rows: OpenStore, pairs: Pairs, family: Family, conf: StateConf) -> tuple[list[bytes], list[bytes]]:
    decoded = rows.decoded(pairs)
    number = None if pairs.family is None else rows.families[pairs.family]
    keys = encode_keys(decoded.keys, family, number)
    return keys, encode_values(keys, decoded.values, decoded.counts if decoded.are_lists else None, family, conf)


@pytest.mark.parametrize("archive", CHECKPOINTS, ids=lambda path: path.stem)
def test_the_rows_that_spark_wrote_are_encoded_to_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    contents = contents_at(open_storage(str(unpacked(archive, tmp_path))))
    assert contents is not None
    found: Counter[str] = Counter()
    for store in sorted(contents.stores):
        of_store = layout(contents, store)
        with opened(contents, store, of_store, scratch=tmp_path, clock=SystemClock(), ids=RandomIds()) as rows:
            for pairs in rows.pairs():
                family = of_store.families[pairs.family]
                keys, values = encoded(rows, pairs, family, contents.conf)
                assert keys == list(pairs.keys), (store, pairs.family)
                if values != list(pairs.values):
                    # Several checksums in a list become one.
                    assert contents.conf.row_checksums, (store, pairs.family)
                    skip = 0 if pairs.family is None else 2
                    before = decode_rows_of(pairs.keys, pairs.values, family, contents.conf, skip=skip)
                    after = decode_rows_of(keys, values, family, contents.conf, skip=skip)
                    assert (after.values, after.counts.tolist()) == (before.values, before.counts.tolist())
                found[str(pairs.family)] += len(keys)
    assert found.total() > 0


NUMBERS = {
    pa.int8(): [-128, -1, 0, 127, None],
    pa.int64(): [-(2**63), -1, 0, 5, 2**63 - 1, None],
    pa.float32(): [float("-inf"), -1.5, 0.0, 2.5, float("inf"), None],
    pa.float64(): [float("-inf"), -1e300, 0.0, 1e-300, None],
}


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@pytest.mark.parametrize("columns", [1, 2])
def test_keys_that_sort_have_the_order_of_their_numbers(kind: pa.DataType, columns: int) -> None:
    key = pa.schema([pa.field("n", kind), pa.field("k", pa.string())][:columns])
    family = Family(key, pa.schema([]), KeyEncoder.RANGE, (0,))
    table = pa.table([pa.array(NUMBERS[kind], kind), pa.array(["k"] * len(NUMBERS[kind]))][:columns], schema=key)
    keys = encode_keys(table, family, 3)
    assert decode_keys(keys, family, skip=2).equals(table)
    assert sorted(keys) == keys
