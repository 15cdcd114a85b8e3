"""The asset `edit` plans, executes a launched edit, reverses it, and shows an incomplete one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pyarrow.parquet
import pytest

from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.storage import open_storage
from tests.support.dagster_runs import checks, shown
from tests.support.edits import rows
from tests.support.faulty_storage import Fault, FaultyStorage, Request
from tests.support.switching import WRITES, contents
from tests.support.unpacked import unpacked

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
DELETE = {"delete": {"k": "key 3"}}


@pytest.fixture
def checkpoint(configuration: Path) -> Path:
    """A checkpoint of Spark, as the query `flights`."""
    configuration.write_text(configuration.read_text().replace('url = "flights"', 'url = "checkpoint"'))
    return unpacked(ARCHIVE, configuration.parent)


def launched(definitions: dg.Definitions, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("edit_checkpoint")
    ops = {"ops": {"edit": {"config": config}}}
    return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)


def test_a_launch_with_the_default_action_shows_the_changed_rows_and_changes_nothing(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path, tmp_path: Path
) -> None:
    storage = open_storage(str(checkpoint))
    before = {entry.path for entry in storage.list("")}
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.table({"k": ["new"], "count": [1], "sum": [2]}), path)
    result = launched(definitions, instance, **DELETE, upsert=str(path))
    assert result.success
    plan = shown(result, "edit")
    assert (plan["phase"], plan["added_rows"], plan["removed_rows"], plan["changed_rows"]) == ("planned", 1, 1, 0)
    assert plan["refusal"] == "none"
    table = cast("dg.TableMetadataValue", plan["rows"])
    assert {(row.data["change"], row.data["key"]) for row in table.records} == {
        *(("added", "{'k': 'new'}"), ("removed", "{'k': 'key 3'}"))
    }
    assert {entry.path for entry in storage.list("")} == before
    assert checks(result)["nothing_left_half_switched"].passed


def test_it_edits_a_query_confirmed_as_stopped_and_undoes_the_edit(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path
) -> None:
    storage = open_storage(str(checkpoint))
    before, files = rows(checkpoint), contents(storage)
    assert not launched(definitions, instance, **DELETE, do="APPLY").success
    assert rows(checkpoint) == before
    result = launched(definitions, instance, **DELETE, do="APPLY", confirm_stopped=True)
    assert result.success
    done = shown(result, "edit")
    assert (done["phase"], done["removed_rows"]) == ("edited", 1)
    assert rows(checkpoint) == [row for row in before if '"key 3"' not in row]
    undone = launched(definitions, instance, do="UNDO", undo_run=done["run"], confirm_stopped=True)
    assert undone.success
    assert shown(undone, "edit")["phase"] == "undone"
    assert rows(checkpoint) == before
    assert contents(storage) == files


def test_an_incomplete_edit_is_red_until_a_launch_completes_or_reverses_it(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(str(checkpoint))
    before = rows(checkpoint)

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.LOST_REPLY if request.kind in WRITES and "made-" in request.path else None

    for end in ("ABORT", "APPLY"):
        with monkeypatch.context() as patched:
            patched.setattr("statekeeper.resources.fleet.open_storage", lambda *_, **__: Dying(storage))
            result = launched(definitions, instance, **DELETE, do="APPLY", confirm_stopped=True)
        assert not result.success
        red = checks(result)["nothing_left_half_switched"]
        assert not red.passed
        assert '"delete": {"k": "key 3"}, "do": "APPLY", "confirm_stopped": true}' in (red.description or "")
        result = launched(definitions, instance, **DELETE, do=end, confirm_stopped=True)
        assert result.success
        assert checks(result)["nothing_left_half_switched"].passed
        assert rewrite_journal.open_journal(storage) is None
        assert (rows(checkpoint) == before) is (end == "ABORT")


def test_a_key_that_the_operator_does_not_have_fails_with_the_columns(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path
) -> None:
    result = launched(definitions, instance, delete={"customer": "1"})
    assert not result.success
    assert "its columns are: k" in str(result.all_events)
