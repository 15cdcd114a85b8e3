"""Uncommitted changes, compared with a dict, in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import LocalStateDamaged
from statekeeper.statestore.store.engine.pending_changes import PendingChanges
from statekeeper.statestore.store.engine.rocks import range_of

keys = st.binary(max_size=2)
batches = st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), max_size=12)


@given(
    steps=st.lists(batches, max_size=6),
    spill_keys=st.integers(0, 8),
    spill_bytes=st.integers(0, 30),
    at_once=st.integers(1, 4),
    wanted=st.lists(keys, max_size=6),
    prefix=keys,
    stored=st.dictionaries(keys, st.binary(max_size=3), max_size=12),
    piece=st.integers(1, 5),
)
@settings(max_examples=50)
def test_it_behaves_like_a_dict_in_memory_and_on_disk(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[list[tuple[bytes, bytes | None]]],
    spill_keys: int,
    spill_bytes: int,
    at_once: int,
    wanted: list[bytes],
    prefix: bytes,
    stored: dict[bytes, bytes],
    piece: int,
) -> None:
    scratch = tmp_path_factory.mktemp("pending") / "scratch"
    pending = PendingChanges(scratch, spill_keys=spill_keys, spill_bytes=spill_bytes)
    in_range = sorted(item for item in stored.items() if item[0].startswith(prefix))
    pieces = [list(zip(*in_range[at : at + piece], strict=True)) for at in range(0, len(in_range), piece)]
    model: dict[bytes, bytes | None] = {}
    assert not pending
    for step in steps:
        pending.put_many([key for key, _ in step], [value for _, value in step])
        model.update(step)
        assert bool(pending) == bool(model)
        found, others = pending.split(wanted)
        assert found == {key: model[key] for key in wanted if key in model}
        assert others == [key for key in wanted if key not in model]
        inside = sorted(item for item in model.items() if item[0].startswith(prefix))
        assert list(pending.ordered([range_of(prefix)])) == inside
        start, end = range_of(prefix)
        middle = prefix + b"\x80"
        assert list(pending.ordered([(start, middle), (middle, end)])) == inside
        over = list(
            pending.over(((list(some), list(values)) for some, values in pieces), [range_of(prefix)], at_once=at_once)
        )
        after = {**dict(in_range), **dict(inside)}
        expected = sorted((key, value) for key, value in after.items() if value is not None)
        assert [pair for some, values in over for pair in zip(some, values, strict=True)] == expected
        assert all(some for some, _ in over)
    pending.close()
    assert not pending
    assert not scratch.exists()
    pending.close()


@pytest.mark.parametrize("spill_keys", [3, 1000])
def test_an_iteration_sees_the_changes_at_its_start(tmp_path: Path, spill_keys: int) -> None:
    pending = PendingChanges(tmp_path / "scratch", spill_keys=spill_keys)
    pending.put_many([b"a", b"b"], [b"1", None])
    seen = []
    for key, value in pending.ordered([range_of(b"")]):
        seen.append((key, value))
        pending.put_many([b"%d" % number for number in range(10)], [b"x"] * 10)
    assert seen == [(b"a", b"1"), (b"b", None)]
    pending.close()


def test_few_keys_with_large_values_spill_to_disk(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    pending = PendingChanges(scratch, spill_bytes=1_000)
    pending.put_many([b"a", b"b"], [b"x" * 499, b"y" * 499])
    assert not scratch.exists()
    pending.put_many([b"c"], [None])
    assert scratch.exists()
    assert pending.split([b"a", b"c", b"d"]) == ({b"a": b"x" * 499, b"c": None}, [b"d"])
    pending.close()


def test_a_scan_over_changes_on_disk_that_cannot_be_read_fails(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    pending = PendingChanges(scratch, spill_keys=1_000)
    random = np.random.default_rng(1)
    for start in range(0, 8_000, 500):
        numbered = [b"%08d" % number for number in range(start, start + 500)]
        pending.put_many(numbered, [random.bytes(4_000) for _ in numbered])
    assert pending._spilled is not None
    pending._spilled.flush(wait=True)
    for table in scratch.glob("*.sst"):
        with table.open("r+b") as file:
            file.seek(table.stat().st_size // 2)
            file.write(bytes(5_000))
    with pytest.raises(LocalStateDamaged):
        list(pending.ordered([range_of(b"")]))
    pending.close()
