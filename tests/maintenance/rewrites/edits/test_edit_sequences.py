"""Other verbs after an edit, and an edit after other verbs: each keeps the edited state."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.edits import apply, goal, rows
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
BOTH = pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
POISON = goal(k="key 3")
OPTIONS = ("--operator", "0", "--delete", "k=key 3")
APPLY = ("--apply", "--confirm-stopped")


class Edited:
    """A checkpoint of Spark whose key 3 is deleted. `rows`: after the edit; `run`: its id."""

    def __init__(self, structure: Structure, folder: Path) -> None:
        self.root = unpacked(FIXTURES / f"spark-4.2.0-{structure.value}-aggregation.zip", folder)
        self.scratch = ("--scratch", str(folder / "scratch"))
        self._folder = folder
        before = rows(self.root)
        self.run = apply(open_storage(str(self.root)), POISON, folder / "scratch")
        self.rows = rows(self.root)
        assert len(self.rows) == len(before) - 1

    def do(self, verb: str, *options: str, exit_code: int = 0) -> str:
        return " ".join(statekeeper(verb, str(self.root), *options, *self.scratch, exit_code=exit_code).split())

    def assert_kept(self, root: Path | None = None) -> None:
        """Check that the edited rows are there, and that a deep audit has no finding."""
        of = self.root if root is None else root
        assert rows(of) == self.rows
        clean(open_storage(str(of)), self._folder)
        statekeeper("audit", str(of), "--deep", *self.scratch)


@BOTH
def test_retention_and_snapshots_after_an_edit_keep_the_edited_state(structure: Structure, tmp_path: Path) -> None:
    edited = Edited(structure, tmp_path)
    edited.do("snapshot", "--at-head", "--confirm-stopped", "--mode", "snapshots")
    edited.do("gc", "--mode", "full", "--apply", "--grace", "0s", "--retain", "1")
    edited.assert_kept()


@BOTH
def test_a_switchover_and_its_way_back_after_an_edit_keep_the_edited_state(
    structure: Structure, tmp_path: Path
) -> None:
    edited = Edited(structure, tmp_path)
    for to in (structure.other, structure):
        edited.do("switch", "--to", to.value, "--for-spark", "4.2", *APPLY)
        edited.assert_kept()
    undo = statekeeper("edit", str(edited.root), "--undo", edited.run, "--confirm-stopped", exit_code=13)
    assert "not the newest rewrite" in " ".join(undo.split())


@BOTH
def test_a_rescale_and_a_rewind_follow_an_edit(structure: Structure, tmp_path: Path) -> None:
    edited = Edited(structure, tmp_path)
    edited.do("rescale", "--partitions", "1", "--for-spark", "4.2", *APPLY)
    clean(open_storage(str(edited.root)), tmp_path)
    undo = statekeeper("edit", str(edited.root), "--undo", edited.run, "--confirm-stopped", exit_code=13)
    assert "not the newest rewrite" in " ".join(undo.split())
    edited.do("rewind", "--to-batch", "2", "--keep-query-id", *APPLY)
    edited.assert_kept()


@BOTH
def test_a_rewind_to_the_batch_before_an_edit_has_the_deleted_key(structure: Structure, tmp_path: Path) -> None:
    edited = Edited(structure, tmp_path)
    edited.do("rewind", "--to-batch", "1", "--keep-query-id", *APPLY)
    assert any('"key 3"' in row for row in rows(edited.root))
    statekeeper("audit", str(edited.root), "--deep", *edited.scratch)


@BOTH
def test_an_edit_follows_a_rescale_and_a_switchover(structure: Structure, tmp_path: Path) -> None:
    root = unpacked(FIXTURES / f"spark-4.2.0-{structure.value}-aggregation.zip", tmp_path)
    scratch = ("--scratch", str(tmp_path / "scratch"))
    before = {row.split('"store"')[0] for row in rows(root) if '"key 3"' not in row}
    statekeeper("rescale", str(root), "--partitions", "3", "--for-spark", "4.2", *APPLY, *scratch)
    statekeeper("switch", str(root), "--to", structure.other.value, "--for-spark", "4.2", *APPLY, *scratch)
    statekeeper("edit", str(root), *OPTIONS, "--for-spark", "4.2", *APPLY, *scratch)
    assert {row.split('"store"')[0] for row in rows(root)} == before
    clean(open_storage(str(root)), tmp_path)


@BOTH
def test_a_clone_of_an_edited_checkpoint_has_the_edited_state(structure: Structure, tmp_path: Path) -> None:
    edited = Edited(structure, tmp_path)
    clone = tmp_path / "clone"
    edited.do("clone", str(clone), "--confirm-stopped")
    edited.assert_kept(clone)


def test_a_mirror_in_structure_v1_follows_an_edit(tmp_path: Path) -> None:
    root, mirror = unpacked(FIXTURES / "spark-4.2.0-v1-aggregation.zip", tmp_path), tmp_path / "mirror"
    options = (str(root), str(mirror), "--confirm-stopped", "--scratch", str(tmp_path / "scratch"))
    statekeeper("mirror", *options)
    assert any('"key 3"' in row for row in rows(mirror))
    apply(open_storage(str(root)), POISON, tmp_path)
    statekeeper("mirror", *options)
    assert rows(mirror) == rows(root)
    assert not any('"key 3"' in row for row in rows(mirror))


def test_a_mirror_in_structure_v2_that_has_the_edited_batch_stays_as_it_is_and_names_the_next_step(
    tmp_path: Path,
) -> None:
    root, mirror = unpacked(FIXTURES / "spark-4.2.0-v2-aggregation.zip", tmp_path), tmp_path / "mirror"
    scratch = ("--scratch", str(tmp_path / "scratch"))
    statekeeper("mirror", str(root), str(mirror), *scratch)
    before = rows(mirror)
    apply(open_storage(str(root)), POISON, tmp_path)
    told = " ".join(statekeeper("mirror", str(root), str(mirror), *scratch, exit_code=13).split())
    assert "commits/2 differs from the mirror" in told
    assert "an edit" in told
    assert "choose an empty destination" in told
    assert rows(mirror) == before
