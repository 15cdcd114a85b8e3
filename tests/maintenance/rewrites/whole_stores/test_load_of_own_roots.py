"""Savepoints with rows, loaded as the state of the root of a Python job."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.keyed_roots import KeyedRoot
from tests.support.loads import load, planned, savepoint, undo
from tests.support.twins import clean


def grown(folder: Path, batches: int, **how: object) -> KeyedRoot:
    root = KeyedRoot(open_storage(str(folder / "root")), folder / "job", **how)
    root.grow(batches)
    return root


@pytest.fixture
def of(tmp_path: Path) -> tuple[KeyedRoot, Storage]:
    source = grown(tmp_path / "source", 3, partitions=8, key_groups=256)
    return source, savepoint(source.storage, tmp_path / "savepoint")


@pytest.mark.parametrize(("partitions", "key_groups"), [pytest.param(8, 256, marks=pytest.mark.slow), (5, 100)])
def test_a_job_continues_on_the_loaded_rows(
    partitions: int, key_groups: int, of: tuple[KeyedRoot, Storage], tmp_path: Path
) -> None:
    source, saved = of
    root = grown(tmp_path / "target", 1, partitions=partitions, key_groups=key_groups)
    before = dict(root.rows)
    run = load(root.storage, saved, tmp_path / "scratch")
    root.rows = dict(source.rows)
    root.assert_right(partitions)
    clean(root.storage, tmp_path)
    undo(root.storage, run)
    root.rows = before
    root.assert_right(partitions)
    load(root.storage, saved, tmp_path / "scratch")
    root.rows = dict(source.rows)
    root.grow(2)
    root.assert_right(partitions)
    clean(root.storage, tmp_path)


@pytest.mark.slow
def test_an_undo_is_rejected_after_the_job_has_committed_a_batch(of: tuple[KeyedRoot, Storage], tmp_path: Path) -> None:
    root = grown(tmp_path / "target", 1)
    run = load(root.storage, of[1], tmp_path / "scratch")
    root.rows = dict(of[0].rows)
    root.grow(1)
    with pytest.raises(RefusedAsUnsafe, match="has begun batch 1 since the load"):
        undo(root.storage, run)
    root.assert_right()


def test_a_root_in_structure_v1_is_rejected(of: tuple[KeyedRoot, Storage], tmp_path: Path) -> None:
    root = grown(tmp_path / "target", 1, structure=Structure.V1)
    [refusal] = planned(root.storage, of[1], tmp_path / "scratch").refusals
    assert "statekeeper switch ROOT --to v2" in refusal
