"""Copies, rewinds and other edits after an edit, and their undo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.dumped import dumped
from tests.support.edits import apply, goal, rows, undo
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
BOTH = pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
APPLY = ("--apply", "--confirm-stopped")
HEAD = VersionId(3)
"""The newest version of the checkpoints, of batch 2."""


def opened(structure: Structure, folder: Path) -> Storage:
    return open_storage(str(unpacked(FIXTURES / f"spark-4.2.0-{structure.value}-aggregation.zip", folder)))


def root(storage: Storage) -> str:
    return storage.url.removeprefix("file://")


def idle_key(storage: Storage) -> str:
    """A key that the newest batch did not change."""
    before = dumped(root(storage), "--batch", "1")
    return str(next(row["key"]["k"] for row in dumped(root(storage)) if row in before))


def newest_changes(storage: Storage) -> Mapping[StorePath, bytes]:
    heads = catalog.heads(storage)
    assert heads is not None
    return {store: storage.read(store.changelog(HEAD)) for store in heads.heads}


def next_batch(storage: Storage, changes: Mapping[StorePath, bytes]) -> None:
    """The query commits a batch with these changelogs, in structure V1."""
    storage.create(names.offsets(3), storage.read(names.offsets(2)))
    for store, body in changes.items():
        storage.create(store.changelog(VersionId(HEAD.version + 1)), body)
    storage.create(names.commits(3), storage.read(names.commits(2)))


@BOTH
def test_a_clone_has_the_edited_state_also_after_the_undo_in_the_source(structure: Structure, tmp_path: Path) -> None:
    storage, clone = opened(structure, tmp_path), str(tmp_path / "clone")
    before = rows(root(storage))
    run = apply(storage, goal(k="key 3"), tmp_path)
    edited = rows(root(storage))
    statekeeper("clone", root(storage), clone, "--confirm-stopped", "--scratch", str(tmp_path))
    undo(storage, run)
    assert rows(clone) == edited
    assert rows(root(storage)) == before
    clean(open_storage(clone), tmp_path)
    statekeeper("audit", clone, "--deep")


def mirror_of(storage: Storage, folder: Path, name: str = "mirror", exit_code: int = 0) -> str:
    """Bring a mirror up to date, and return its URL or the error."""
    options = ("--confirm-stopped", "--scratch", str(folder))
    told = statekeeper("mirror", root(storage), str(folder / name), *options, exit_code=exit_code)
    return str(folder / name) if exit_code == 0 else told


def test_in_structure_v2_a_mirror_rejects_an_edit_of_a_mirrored_batch_and_a_new_one_has_it(tmp_path: Path) -> None:
    storage = opened(Structure.V2, tmp_path)
    mirror = mirror_of(storage, tmp_path)
    before = rows(mirror)
    run = apply(storage, goal(k=idle_key(storage)), tmp_path)
    assert "rewritten by a switchover, an edit, a repair or a rescale" in mirror_of(storage, tmp_path, exit_code=13)
    assert rows(mirror) == before
    assert rows(mirror_of(storage, tmp_path, "another mirror")) == rows(root(storage)) != before
    undo(storage, run)
    assert rows(mirror_of(storage, tmp_path)) == before


@pytest.mark.parametrize("has_snapshots", [False, True], ids=["changelogs", "snapshots at the head"])
def test_in_structure_v1_a_mirror_follows_an_edit_and_its_undo(has_snapshots: bool, tmp_path: Path) -> None:
    storage = opened(Structure.V1, tmp_path)
    key, changes = idle_key(storage), newest_changes(storage)
    if has_snapshots:
        options = ("--at-head", "--confirm-stopped", "--mode", "snapshots", "--scratch", str(tmp_path))
        statekeeper("snapshot", root(storage), *options)
    mirror = mirror_of(storage, tmp_path)
    before = rows(mirror)
    for _ in range(2):
        run = apply(storage, goal(k=key), tmp_path)
        assert rows(mirror_of(storage, tmp_path)) == rows(root(storage)) != before
        clean(open_storage(mirror), tmp_path)
        undo(storage, run)
        assert rows(mirror_of(storage, tmp_path)) == before
        clean(open_storage(mirror), tmp_path)
    apply(storage, goal(k=key), tmp_path)
    next_batch(storage, changes)
    assert rows(mirror_of(storage, tmp_path)) == rows(root(storage))
    assert not any(f'"{key}"' in row for row in rows(mirror))
    clean(open_storage(mirror), tmp_path)


@BOTH
def test_a_rewind_to_the_batch_before_an_edit_has_its_rows_and_can_be_undone(
    structure: Structure, tmp_path: Path
) -> None:
    storage = opened(structure, tmp_path)
    before = sorted(map(str, dumped(root(storage), "--batch", "1")))
    apply(storage, goal(k="key 3"), tmp_path)
    edited = rows(root(storage))
    options = ("--to-batch", "1", "--keep-query-id", *APPLY, "--scratch", str(tmp_path))
    told = statekeeper("rewind", root(storage), *options)
    assert sorted(map(str, dumped(root(storage)))) == before
    clean(storage, tmp_path)
    run = told.split("--undo ")[1].split()[0]
    statekeeper("rewind", root(storage), "--undo", run, "--confirm-stopped")
    assert rows(root(storage)) == edited
    clean(storage, tmp_path)


@BOTH
def test_edits_are_undone_in_reverse_order_only(structure: Structure, tmp_path: Path) -> None:
    storage = opened(structure, tmp_path)
    first = apply(storage, goal(k="key 3"), tmp_path)
    once = rows(root(storage))
    second = apply(storage, goal(k="key 1"), tmp_path)
    assert rows(root(storage)) != once
    with pytest.raises(RefusedAsUnsafe, match="not the newest rewrite"):
        undo(storage, first)
    undo(storage, second)
    assert rows(root(storage)) == once
    clean(storage, tmp_path)
