"""`statekeeper load`: its plan, its execution, its undo, and other verbs after it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.storage import open_storage
from tests.support.rescales import all_rows
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
APPLY = ("--replace-state", "--apply", "--confirm-stopped", "--for-spark", "4.2")


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str]:
    """A savepoint of a checkpoint, and another checkpoint of the same query, which lacks a key."""
    source = unpacked(ARCHIVE, tmp_path / "source")
    statekeeper("savepoint", str(source), str(tmp_path / "savepoint"), "--rows")
    target = unpacked(ARCHIVE, tmp_path / "target")
    statekeeper("edit", str(target), "--operator", "0", "--delete", "k=key 3", "--apply", *APPLY[2:])
    return str(tmp_path / "savepoint"), str(target)


def loaded(*places: str) -> str:
    """Load, and return the id of the run."""
    output = statekeeper("load", *places, *APPLY, "--output", "json")
    done = json.loads(output[output.index("{") :])
    assert done["loaded"]
    return str(done["run"])


def test_a_plan_without_the_option_is_blocked(places: tuple[str, str]) -> None:
    shown = json.loads(statekeeper("load", *places, "--for-spark", "4.2", "--output", "json", exit_code=3))
    assert "--replace-state" in shown["refusals"][0]
    assert shown["rows"] == sum(all_rows(places[1]).values()) + 1
    assert "blocked: " in statekeeper("load", *places, "--for-spark", "4.2", exit_code=3)


def test_a_load_is_executed_and_undone(places: tuple[str, str]) -> None:
    savepoint, root = places
    before, saved = all_rows(root), all_rows(Path(savepoint).parent / "source" / "checkpoint")
    assert " --apply --confirm-stopped\n" in statekeeper("load", *places, "--replace-state", "--for-spark", "4.2")
    run = loaded(*places)
    assert all_rows(root) == saved != before
    statekeeper("load", root, "--undo", run, "--confirm-stopped")
    assert all_rows(root) == before


def test_the_printed_commands_undo_a_load_and_an_edit_as_they_are(places: tuple[str, str]) -> None:
    _, root = places
    before = all_rows(root)
    deletion = ("--operator", "0", "--delete", "k=key 4", "--apply", *APPLY[2:])
    for command in (("load", *places, *APPLY), ("edit", root, *deletion)):
        _, undo = statekeeper(*command).split("to undo this run: statekeeper ")
        statekeeper(*shlex.split(undo.splitlines()[0]))
    assert all_rows(root) == before


@pytest.mark.slow
def test_other_verbs_work_after_a_load(places: tuple[str, str], tmp_path: Path) -> None:
    savepoint, root = places
    run = loaded(savepoint, root)
    saved, storage = all_rows(root), open_storage(root)
    statekeeper("rescale", root, "--partitions", "3", *APPLY[1:])
    statekeeper("load", root, "--undo", run, "--confirm-stopped", exit_code=13)
    statekeeper("load", savepoint, root, *APPLY)
    statekeeper("snapshot", root, "--at-head", "--confirm-stopped", "--mode", "snapshots")
    statekeeper("gc", root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    assert all_rows(root) == saved
    batch = catalog.newest_batch(storage)
    assert batch is not None
    statekeeper("savepoint", root, str(tmp_path / "again"), "--rows")
    manifests = [json.loads((Path(one) / "savepoint.json").read_text()) for one in (savepoint, tmp_path / "again")]
    assert manifests[0]["digest"] == manifests[1]["digest"]
    clean(storage, tmp_path)


@pytest.mark.parametrize("options", [(), ("--apply",), ("--abort", "--undo", "x"), ("--abort", "--replace-state")])
def test_wrong_usage_is_rejected(places: tuple[str, str], options: tuple[str, ...]) -> None:
    statekeeper("load", places[1], *options, exit_code=2)
