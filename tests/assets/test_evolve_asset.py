"""The asset `evolve` plans, executes a launched schema evolution, and reverses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import dagster as dg

from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import open_storage
from tests.support.dagster_runs import checks, shown
from tests.support.evolved_roots import RENAME
from tests.support.keyed_roots import KeyedRoot


def test_a_launch_shows_the_rows_changes_the_columns_and_undoes_that(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path, tmp_path: Path
) -> None:
    configuration.write_text(configuration.read_text().replace('url = "flights"', 'url = "root"'))
    storage = open_storage(str(configuration.parent / "root"))
    KeyedRoot(storage, tmp_path / "job", partitions=2, key_groups=16).grow(1)
    file = tmp_path / "changes.json"
    file.write_text(RENAME)

    def launched(**config: Any) -> dg.ExecuteInProcessResult:
        job = definitions.resolve_job_def("evolve_checkpoint")
        ops = {"ops": {"evolve": {"config": config}}}
        return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)

    def columns() -> bool:
        return "number" in read_binding(storage)[0].stores[0].value_json

    before = {entry.path for entry in storage.list("")}
    planned = launched(schema_file=str(file))
    plan = shown(planned, "evolve")
    assert (plan["phase"], plan["columns"], plan["changed_rows"]) == ("planned", "counts: number: long", 41)
    assert len(cast("dg.TableMetadataValue", plan["rows"]).records) == 20
    assert {entry.path for entry in storage.list("")} == before
    assert checks(planned)["nothing_left_half_switched"].passed
    assert not launched(schema_file=str(file), do="APPLY").success
    done = launched(schema_file=str(file), do="APPLY", confirm_stopped=True)
    assert done.success
    assert columns()
    undone = launched(do="UNDO", undo_run=shown(done, "evolve")["run"], confirm_stopped=True)
    assert shown(undone, "evolve")["phase"] == "undone"
    assert not columns()
