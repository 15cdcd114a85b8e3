"""Deletions of savepoints that were moved, copied, deleted by hand, or that have unusual locations."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.format import savepoint_names
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.clones import FULL, Roots, own
from tests.support.commands import statekeeper
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.maintainers import MAINTAINER
from tests.support.savepoints import kept, remove


def files_of(storage: Storage) -> int:
    return len(storage.list("", hidden=True))


def test_a_savepoint_in_a_folder_with_a_space_is_deleted(tmp_path: Path) -> None:
    source, savepoint = (open_storage(str(tmp_path / "my folder" / name)) for name in ("root", "save point"))
    own(source, tmp_path / "job")
    kept(source, savepoint, tmp_path)
    done = statekeeper("savepoint", tmp_path / "my folder" / "root", "--delete", "before", "--apply")
    assert (done.exit_code, f"at {savepoint.url}," in done.output) == (0, True), done.output
    assert files_of(savepoint) == 0
    assert verbs.savepoint.listed(source).labels == ()


def test_a_copy_of_a_savepoint_does_not_delete_the_original(disks: Roots, tmp_path: Path) -> None:
    source, savepoint = disks
    own(source, tmp_path)
    kept(source, savepoint, tmp_path)
    shutil.copytree(tmp_path / "clone", tmp_path / "copied")
    copied = open_storage(str(tmp_path / "copied"))
    before = files_of(savepoint), files_of(copied)
    done = statekeeper("savepoint", tmp_path / "copied", "--delete", "before", "--apply")
    assert (done.exit_code, "or the savepoint was moved here" in done.output) == (13, True)
    assert (files_of(savepoint), files_of(copied)) == before


def test_the_record_of_a_moved_savepoint_stays_until_a_person_forgets_it(disks: Roots, tmp_path: Path) -> None:
    source, savepoint = disks
    own(source, tmp_path)
    kept(source, savepoint, tmp_path)
    (tmp_path / "clone").rename(tmp_path / "elsewhere")
    verb = ("savepoint", tmp_path / "root", "--delete", "before")
    done = statekeeper(*verb, "--apply")
    assert (done.exit_code, "it was moved or deleted" in done.output, "add --forget" in done.output) == (13, True, True)
    assert len(verbs.savepoint.listed(source).labels) == 1
    assert statekeeper(*verb, "--forget", "--apply").exit_code == 0
    assert verbs.savepoint.listed(source).labels == ()
    assert files_of(open_storage(str(tmp_path / "elsewhere"))) > 20


def test_a_deletion_that_has_begun_is_completed_and_its_label_is_not_used_again(disks: Roots, tmp_path: Path) -> None:
    source, savepoint = disks
    own(source, tmp_path)
    kept(source, savepoint, tmp_path)
    traced = FaultyStorage(source)
    remove(traced, savepoint)
    last = traced.trace[-1]
    kept(source, savepoint, tmp_path)
    with pytest.raises((SimulatedCrash, StatekeeperError)):
        remove(FaultyStorage(source, {last.number: Fault.BEFORE}), savepoint)
    assert files_of(savepoint) == 0
    [label] = verbs.savepoint.listed(source).labels
    assert label.deleting
    assert "its deletion has begun" in statekeeper("savepoint", tmp_path / "root", "--list").output
    with pytest.raises(RefusedAsUnsafe, match="the label 'before' is already used"):
        kept(source, savepoint, tmp_path)
    remove(source, savepoint)
    assert verbs.savepoint.listed(source).labels == ()


# -- records -----------------------------------------------------------------------------------------------------------

BAD = [
    ("created_at_ms", 10**18),
    ("created_at_ms", -1),
    ("created_at_ms", 10**400),
    ("batch", 10**400),
    ("batch", -5),
    ("size_bytes", 2**63),
    ("size_bytes", True),
    ("destination", ""),
    ("destination", 5),
    ("note", None),
    ("label", "../x"),
]


def _spoilt(source: Storage, field: str, value: object) -> None:
    path = savepoint_names.label("before")
    source.replace(path, json.dumps({**json.loads(source.read(path)), field: value}).encode())


@pytest.mark.parametrize(("field", "value"), BAD, ids=[f"{field} {str(value)[:20]}" for field, value in BAD])
def test_a_record_with_a_bad_value_is_a_problem_of_the_list_and_does_not_block_others(
    disks: Roots, tmp_path: Path, field: str, value: object
) -> None:
    source, savepoint = disks
    own(source, tmp_path)
    kept(source, savepoint, tmp_path)
    other = open_storage(str(tmp_path / "other"))
    kept(source, other, tmp_path, "other")
    _spoilt(source, field, value)
    shown = statekeeper("savepoint", tmp_path / "root", "--list", "--output", "json")
    assert shown.exit_code == 3
    found = json.loads(shown.output)
    assert [one["label"] for one in found["savepoints"]] == ["other"]
    assert [one["path"] for one in found["problems"]] == [savepoint_names.label("before")]
    assert (
        "unreadable: _statekeeper/savepoints/before.json"
        in statekeeper("savepoint", tmp_path / "root", "--list").output
    )
    remove(source, other, "other")
    failed = statekeeper("savepoint", tmp_path / "root", "--delete", "before", "--apply")
    assert (failed.exit_code, "is not a valid record of a savepoint" in failed.output) == (1, True)


def test_a_note_does_not_control_the_terminal(disks: Roots, tmp_path: Path) -> None:
    source, savepoint = disks
    own(source, tmp_path)
    kept(source, savepoint, tmp_path, note="\x1b[31mred\x1b]0;x\x07")
    assert "\x1b" not in statekeeper("savepoint", tmp_path / "root", "--list").output


@pytest.mark.parametrize("label", ["my label", "../../commits/99", "a/b", "", "x" * 300])
def test_only_a_label_names_a_savepoint(disks: Roots, tmp_path: Path, label: str) -> None:
    source, destination = disks
    own(source, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="is not a label"):
        verbs.savepoint.plan_rows(source, destination, MAINTAINER, label=label)
    with pytest.raises(RefusedAsUnsafe, match="is not a label"):
        verbs.savepoint.plan_files(source, destination, FULL, MAINTAINER, label=label)
    with pytest.raises(RefusedAsUnsafe, match="no savepoint has the label"):
        verbs.savepoint.find(source, label)
    assert destination.list("", hidden=True) == []


def test_a_note_needs_a_label(disks: Roots, tmp_path: Path) -> None:
    own(disks[0], tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="a note needs a label"):
        verbs.savepoint.plan_rows(*disks, MAINTAINER, note="lost")


def test_a_savepoint_does_not_get_a_second_label(disks: Roots, tmp_path: Path) -> None:
    """Another process labels the savepoint between the plan and its execution."""
    source, destination = disks
    own(source, tmp_path)
    stale = verbs.savepoint.plan_files(source, destination, FULL, MAINTAINER, label="second")
    label = kept(source, destination, tmp_path).label
    with pytest.raises(RefusedAsUnsafe, match=r"is the savepoint before of .*the label second was not written"):
        verbs.savepoint.record_label(source, destination, replace(label, label="second"), stale.mode)
    assert len(verbs.savepoint.listed(source).labels) == 1
