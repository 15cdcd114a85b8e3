"""`statekeeper drill`: its output, its exit codes, and the predictions of other verbs after it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from statekeeper.statestore.format import names
from statekeeper.statestore.storage import open_storage
from tests.support import planted
from tests.support.commands import json_output, run
from tests.support.keyed_roots import KeyedRoot
from tests.support.switching import take_snapshots


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> KeyedRoot:
    """Two snapshots of each store."""
    folder = tmp_path_factory.mktemp("made")
    made = KeyedRoot(open_storage(str(folder / "root")), folder / "hosts", partitions=2)
    for _ in range(2):
        made.grow(2)
        take_snapshots(made.storage, folder / "scratch")
    made.grow(1)
    return made


@pytest.fixture
def root(made: KeyedRoot, tmp_path: Path) -> KeyedRoot:
    return made.copied_to(open_storage(str(tmp_path / "root")), tmp_path / "hosts")


def test_predicted_and_measured_seconds_are_side_by_side_and_later_predictions_use_them(
    root: KeyedRoot, tmp_path: Path
) -> None:
    before = json_output("inspect", tmp_path / "root")
    assert before["restore_measured"] is None
    shown = json_output("drill", tmp_path / "root")
    assert (shown["is_green"], shown["stores"], shown["prediction_from_drills"]) == (True, 4, False)
    assert shown["measured_seconds"] == pytest.approx(sum(one["seconds"] for one in shown["restored"]), abs=0.01)
    for one in shown["restored"]:
        assert one["seconds"] > one["predicted_seconds"]
        assert one["seconds"] == pytest.approx(one["base_seconds"] + one["replay_seconds"], abs=0.002)
        assert [found["equal"] for found in one["compared"]] == [True]
    after = json_output("inspect", tmp_path / "root")
    assert after["restore_seconds"] == pytest.approx(shown["measured_seconds"], abs=0.02)
    assert after["restore_measured"] == {
        "drilled_at": after["restore_measured"]["drilled_at"],
        "stores": 4,
        "seconds": pytest.approx(shown["measured_seconds"], abs=0.01),
    }
    text = run("inspect", tmp_path / "root").stdout
    assert "restore times are predicted from drills, the newest of " in text
    again = json_output("drill", tmp_path / "root")
    assert again["prediction_from_drills"]
    assert again["predicted_seconds"] == pytest.approx(shown["measured_seconds"], abs=0.02)


def test_a_dry_run_shows_the_sample_and_restores_nothing(root: KeyedRoot, tmp_path: Path) -> None:
    shown = run("drill", tmp_path / "root", "--sample", "1", "--dry-run")
    assert shown.exit_code == 0
    assert "3 stores not restored in this drill; 4 drills of this size restore each store" in shown.stdout
    assert "to execute: statekeeper drill" in shown.stdout
    as_json = json_output("drill", tmp_path / "root", "--sample", "1", "--dry-run")
    assert [(one["reason"], one["compares"]) for one in as_json["sample"]] == [("never", ["replay"])]
    assert root.storage.stat(names.DRILLS) is None


def test_rows_that_differ_are_a_finding_with_the_first_key_and_the_way_out(root: KeyedRoot, tmp_path: Path) -> None:
    store, version = next(one for one in _snapshots(root) if one[0].operator == 0)
    planted.in_snapshot(root.storage, store, version, lambda rows: dict(list(rows.items())[1:]), tmp_path)
    found = run("drill", tmp_path / "root")
    assert found.exit_code == 3
    assert "1 store restored with other rows; 3 stores restored with equal rows" in found.stdout
    assert "rows: 1 missing; first key: {" in found.stdout
    text, of_root = " ".join(found.stdout.split()), tmp_path / "root"
    assert "Either side may be wrong: the snapshot of batch 3, which a restart uses, or the older base" in text
    show = re.search(
        rf"statekeeper (dump {of_root} --batch 4 --store 0/\d --key key_group=0 --key 'key=key [0-9 ]+')\.", text
    )
    assert show is not None, text
    shown = run(*shlex.split(show[1]), "--output", "jsonl")
    assert shown.exit_code == 0, "it can be pasted"
    assert f"If that is wrong, stop the query and go back to batch {version.version - 2}" in text
    assert f"statekeeper rewind {of_root} --to-batch {version.version - 2}. If it is right, do not go back" in text
    assert f"statekeeper snapshot {of_root} --all" in text
    [outcome] = [one for one in root.storage.list(names.HISTORY) if one.path.endswith("outcome.jsonl")][-1:]
    lines = [json.loads(line) for line in root.storage.read(outcome.path).splitlines()]
    [wrong] = [line for line in lines if line.get("verdict") == "differs"]
    assert wrong["detail"].endswith("rows: 1 missing"), "the history has no key of the state"


def test_a_store_that_does_not_restore_is_a_finding(root: KeyedRoot, tmp_path: Path) -> None:
    (path,) = [one.path for one in root.storage.list("state/1/1") if one.path.rpartition("/")[2].startswith("5_")]
    root.storage.delete([path])
    found = run("drill", tmp_path / "root")
    assert found.exit_code == 3
    assert "1 store of 4 cannot be restored" in found.stdout
    assert f"run: statekeeper audit {tmp_path / 'root'} --deep" in found.stdout


def test_rows_that_were_not_compared_are_not_a_success(root: KeyedRoot, tmp_path: Path) -> None:
    old = [one.path for one in root.storage.list("state/0/0") if one.path.rpartition("/")[2][0] in "1234"]
    root.storage.delete([path for path in old if path.endswith(".changelog")])
    found = run("drill", tmp_path / "root", "--stores", "0/0")
    assert found.exit_code == 4, found.output
    assert "1 store restored, rows not compared" in found.stdout
    assert "To compare now, run: statekeeper drill" in found.stdout
    second = run("drill", tmp_path / "root", "--stores", "0/0")
    assert second.exit_code == 4, "equal rows prove nothing if those of the first drill were not proved"
    assert "unchanged since the last drill, of batch 4, which proved no rows" in " ".join(
        second.stdout.replace("│", " ").split()
    )
    third = run("drill", tmp_path / "root", "--stores", "0/0", "--output", "json")
    [result] = json.loads(third.stdout)["restored"]
    assert [(one["against"], one["equal"], one["proves"]) for one in result["compared"]] == [
        ("last_drill", True, False)
    ]


def test_the_seconds_of_several_workers_are_not_used_for_predictions(root: KeyedRoot, tmp_path: Path) -> None:
    shown = run("drill", tmp_path / "root", "--workers", "2")
    assert shown.exit_code == 0
    assert "predictions do not use these seconds" in shown.stdout
    assert json_output("inspect", tmp_path / "root")["restore_measured"] is None


def test_an_unknown_store_is_refused(root: KeyedRoot, tmp_path: Path) -> None:
    wrong = run("drill", tmp_path / "root", "--stores", "0/7")
    assert (wrong.exit_code, "the stores are: 0/0, 0/1, 1/0, 1/1" in wrong.stderr) == (13, True)


def _snapshots(root: KeyedRoot) -> list[tuple]:
    """The newest snapshot of each store."""
    newest: dict = {}
    for entry in root.storage.list(names.STATE):
        place = names.parse_store_path(entry.path)
        if place is not None and entry.path.endswith(".zip"):
            store, file = place
            newest[store] = max(newest.get(store, file.version), file.version, key=lambda one: one.version)
    return sorted(newest.items())
