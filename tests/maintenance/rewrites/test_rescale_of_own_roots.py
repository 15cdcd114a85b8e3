"""Rescales of the state roots of Python jobs: whole key groups move, and no batch is added."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statestore import catalog
from statestore.binding import read_binding
from statestore.errors import BatchConflict, HalfSwitched, RefusedAsUnsafe
from statestore.format import names
from statestore.format.structure import Structure
from statestore.maintenance import audit
from statestore.root import Ready
from statestore.storage import open_storage
from tests.support.keyed_roots import KeyedRoot
from tests.support.rescales import all_rows, planned, rescale
from tests.support.roots import opened, outer
from tests.support.twins import clean


def rooted(folder: Path, **settings: object) -> KeyedRoot:
    (folder / "root").mkdir(parents=True)
    return KeyedRoot(open_storage(str(folder / "root")), folder, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_batch_logs", [False, True], ids=["stores", "batch"])
def test_a_root_is_rescaled_up_and_down_and_back(in_batch_logs: bool, tmp_path: Path) -> None:
    root = rooted(tmp_path, in_batch_logs=in_batch_logs)
    root.grow(3)
    before = all_rows(tmp_path / "root")
    for partitions in (12, 3, 8):
        rescale(root.storage, partitions, tmp_path)
        assert all_rows(tmp_path / "root") == before
        root.assert_right(partitions)
        clean(root.storage, tmp_path)
        root.grow(1)
        root.assert_right(partitions)
        clean(root.storage, tmp_path)
        before = all_rows(tmp_path / "root")
