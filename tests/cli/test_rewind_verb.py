"""`statekeeper rewind` at a terminal and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner, Result

from statestore import catalog
from statestore.cli import main
from statestore.storage import open_storage
from tests.support.clones import own
from tests.support.maintainers import MAINTAINER
from tests.support.repairs import contents


def statekeeper(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)


def test_a_plan_is_shown_then_executed_then_undone(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    own(storage, tmp_path)
    before = contents(storage)
    verb = ("rewind", tmp_path / "root", "--to-batch", "5", "--scratch", tmp_path / "scratch")
    shown = statekeeper(*verb)
    assert shown.exit_code == 3, shown.output
    for text in ("rewind from batch 7 to 5", "each of the 2 stores was restored at batch 5", "continue_at_batch=6"):
        assert text in shown.output
    assert contents(storage) == before
    done = statekeeper(*verb, "--apply", "--confirm-stopped")
    assert done.exit_code == 0, done.output
    assert "rewound to batch 5: 9 files are in quarantine" in done.output
    assert catalog.newest_batch(storage) == 5
    again = statekeeper(*verb)
    assert (again.exit_code, "nothing to rewind" in again.output) == (0, True)
    run = re.search(r"--undo ([0-9a-f-]{36})", done.output)
    assert run is not None
    back = statekeeper("rewind", tmp_path / "root", "--undo", run[1], "--confirm-stopped")
    assert (back.exit_code, "put back 9 files" in back.output) == (0, True)
    assert contents(storage) == before


def test_json_has_the_actions_the_query_ids_and_the_refusals(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    own(storage, tmp_path)
    verb = ("rewind", tmp_path / "root", "--to-batch", "5", "--scratch", tmp_path, "--output", "json")
    planned = json.loads(statekeeper(*verb).stdout)
    assert (planned["batch"], planned["newest_batch"], planned["stores"], planned["done"]) == (5, 7, 2, 0)
    assert planned["former_query_id"] == "a query" != planned["query_id"]
    assert {action["reason"] for action in planned["actions"]} == {"query_id", "commit", "state", "offsets"}
    chosen = "0badc0de-0000-4000-8000-00000000000a"
    done = json.loads(statekeeper(*verb, "--query-id", chosen, "--apply", "--confirm-stopped").stdout)
    assert (done["query_id"], done["done"]) == (chosen, len(done["actions"]))
    store, version = next(iter(catalog.heads_at(storage, 4).heads.items()))
    storage.delete([store.changelog(version), store.snapshot(version)])
    refused = statekeeper("rewind", tmp_path / "root", "--to-batch", "4", "--scratch", tmp_path, "--output", "json")
    assert refused.exit_code == 3
    assert json.loads(refused.stdout)["refusals"][0]["code"] == "version_not_loadable"


def test_wrong_options_are_usage_errors(tmp_path: Path) -> None:
    own(open_storage(str(tmp_path / "root")), tmp_path)
    for options in (
        (),
        ("--to-batch", "5", "--to", "2026-11-20 03:00"),
        ("--to-batch", "5", "--query-id", "x"),
        ("--to", "yesterday"),
        ("--undo", "0badc0de-0000-4000-8000-00000000000a", "--to-batch", "5"),
    ):
        assert statekeeper("rewind", tmp_path / "root", *options).exit_code == 2, options
    early = statekeeper("rewind", tmp_path / "root", "--to", "2020-01-01 10:00")
    assert (early.exit_code, "the oldest retained batch, 0, was committed at" in early.output) == (1, True)
