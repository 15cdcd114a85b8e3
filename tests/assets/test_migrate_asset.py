"""The asset `migrate` plans, executes a launched migration, and removes what an interrupted one wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
from statekeeper.statestore.storage import open_storage
from tests.support.blueprints import change_schema
from tests.support.dagster_runs import checks, shown
from tests.support.faulty_storage import SimulatedCrash
from tests.support.maintainers import MAINTAINER
from tests.support.rescales import all_rows
from tests.support.switching import Dying
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"


def test_a_launch_plans_migrates_and_removes_what_an_interrupted_migration_wrote(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path, tmp_path: Path
) -> None:
    configuration.write_text(configuration.read_text().replace('url = "flights"', 'url = "checkpoint"'))
    old = unpacked(FIXTURES / "spark-4.2.0-v1-aggregation.zip", configuration.parent)
    blueprint = unpacked(FIXTURES / "spark-4.2.0-v2-aggregation.zip", tmp_path / "blueprint")
    change_schema(blueprint, values=lambda fields: fields[:1])
    new, died = tmp_path / "new", tmp_path / "died"

    def launched(destination: Path, **config: Any) -> dg.ExecuteInProcessResult:
        job = definitions.resolve_job_def("migrate_checkpoint")
        of_asset = {"blueprint": str(blueprint), "destination": str(destination), **config}
        ops = {"ops": {"migrate": {"config": of_asset}}}
        return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)

    refused = launched(new)
    assert (shown(refused, "migrate")["phase"], shown(refused, "migrate")["refusals"]) == ("refused", 1)
    planned = launched(new, allow_dropped_state=True)
    assert shown(planned, "migrate")["phase"] == "planned"
    assert checks(planned)["nothing_left_half_switched"].passed
    assert not new.exists()
    assert not launched(new, allow_dropped_state=True, do="APPLY").success
    done = launched(new, allow_dropped_state=True, do="APPLY", confirm_stopped=True)
    assert shown(done, "migrate")["phase"] == "migrated"
    clean(open_storage(str(new)), tmp_path)
    assert len(all_rows(new)) == len(all_rows(old))

    run = Run(
        storage=open_storage(str(old)),
        by=MAINTAINER,
        scratch=tmp_path,
        stopped=True,
        open_other=lambda url: Dying(open_storage(url)),
    )
    verb = Migrate(blueprint=str(blueprint), destination=str(died), allow_dropped_state=True)
    with pytest.raises(SimulatedCrash):
        perform(prepare(verb, run))
    statekeeper("lease", str(died), "--break")
    assert shown(launched(died, do="ABORT", confirm_stopped=True), "migrate")["phase"] == "aborted"
    assert open_storage(str(died)).list("state") == []
