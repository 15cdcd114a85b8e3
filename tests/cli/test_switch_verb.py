"""`statekeeper switch` shows its plan, executes it after confirmation, and prints the next step."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from statekeeper.statestore.cli import main
from statekeeper.statestore.format.structure import Structure
from tests.support.checkpoints import Checkpoint
from tests.support.maintainers import MAINTAINER
from tests.support.structures import as_sparks, without_ids
from tests.support.switching import (
    contents,
    is_right,
    structure_of,
)


def statekeeper(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["switch", *map(str, arguments)], obj=MAINTAINER)


def test_the_verb_shows_the_plan_requires_confirmation_and_prints_the_conf_for_the_restart(
    checkpoint: Checkpoint, root: Path, tmp_path: Path
) -> None:
    without_ids(as_sparks(checkpoint))
    before = contents(checkpoint.storage)
    shown = statekeeper(root, "--to", "v2")
    assert shown.exit_code == 0, shown.output
    setting = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    pasteable = [f"  --conf {setting}=2", f'  spark.conf.set("{setting}", "2")']
    assert shown.output.splitlines()[-3:-1] == pasteable
    assert "2 stores" in shown.output
    assert statekeeper(root, "--to", "v2", "--apply").exit_code == 13
    assert contents(checkpoint.storage) == before
    done = statekeeper(root, "--to", "v2", "--apply", "--confirm-stopped", "--output", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["switched"] is True
    assert structure_of(checkpoint.storage) is Structure.V2
    again = statekeeper(root, "--to", "v2").output
    assert ("nothing to do" in again, again.splitlines()[-2:]) == (True, pasteable)
    assert statekeeper(root, "--abort", "--confirm-stopped").exit_code == 13
    assert is_right(checkpoint, checkpoint.storage, tmp_path)


def test_a_mode_that_forbids_the_switch_is_obeyed(checkpoint: Checkpoint, root: Path, tmp_path: Path) -> None:
    without_ids(as_sparks(checkpoint))
    before = contents(checkpoint.storage)
    configured = tmp_path / "statekeeper.toml"
    configured.write_text(f'[roots.query]\nurl = "{root}"\nmode = "snapshots"\n')
    command = ["--config", str(configured), "switch", "query", "--to", "v2"]
    shown = CliRunner().invoke(main, command)
    assert shown.exit_code == 3
    assert "blocked: " in shown.output
    assert "to execute" not in shown.output
    assert "set mode" in json.loads(CliRunner().invoke(main, [*command, "--output", "json"]).stdout)["refusals"][0]
    done = CliRunner().invoke(main, [*command, "--apply", "--confirm-stopped"])
    assert done.exit_code == 13
    for output in (shown.output, done.output):
        assert "the configured mode of this root is snapshots" in output
    assert contents(checkpoint.storage) == before
