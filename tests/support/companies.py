"""A company with a Dagster project and an instance of its own.

Its packages are `assets`, `resources` and `pipelines`, with definitions that have the names of Statekeeper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.test_utils import poll_for_finished_run
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_graphql.test.utils import execute_dagster_graphql

ASSETS = """
import dagster as dg

REGIONS = dg.DynamicPartitionsDefinition(name="streaming_query")

@dg.asset(partitions_def=REGIONS)
def snapshot() -> None: ...

@dg.asset(deps=[dg.AssetKey(["payments", "fleet_health"])])
def report() -> None: ...

clicks_stream = dg.AssetSpec(["kafka", "clicks"])
"""

RESOURCES = """
import dagster as dg

class Warehouse(dg.ConfigurableResource):
    name: str
"""

PIPELINES = """
import dagster as dg
from assets import report, snapshot

maintain_query = dg.define_asset_job("maintain_query", selection=dg.AssetSelection.assets(snapshot))

@dg.op
def delete_old_runs() -> None: ...

@dg.job
def prune_history() -> None:
    delete_old_runs()

@dg.schedule(job=prune_history, cron_schedule="0 3 * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def nightly_sweep() -> dg.RunRequest:
    return dg.RunRequest()

@dg.sensor(job=prune_history)
def changelog_tail() -> dg.SkipReason:
    return dg.SkipReason("a sensor of the company")
"""

HOME = """
run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}
"""


@dataclass
class Company:
    """The project of a company, with the code location `company` and its instance."""

    folder: Path
    instance: dg.DagsterInstance
    workspace: WorkspaceProcessContext

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of the only field of an answer to a GraphQL query."""
        context = self.workspace.create_request_context()
        (data,) = execute_dagster_graphql(context, query, variables).data.values()
        assert data is not None
        assert data["__typename"] not in ("PythonError", "RunConfigValidationInvalid"), data
        return data

    def selector(self, **more: str) -> dict[str, str]:
        return {"repositoryName": "__repository__", "repositoryLocationName": "company", **more}

    def sensed(self, sensor: str) -> dict[str, Any]:
        """Evaluate a sensor in the code server, as the daemon does."""
        answer = self.ask(
            """mutation($s: SensorSelector!) { sensorDryRun(selectorData: $s, cursor: "") { __typename
            ... on PythonError { message } ... on DryRunInstigationTick { evaluationResult { skipReason error { message }
            runRequests { runKey jobName tags { key value } runConfigYaml } dynamicPartitionsRequests { partitionKeys
            partitionsDefName } } } } }""",
            s=self.selector(sensorName=sensor),
        )
        found: dict[str, Any] = answer["evaluationResult"]
        assert found["error"] is None, found
        return found

    def scheduled(self, schedule: str) -> dict[str, Any]:
        """Evaluate a schedule in the code server, as the daemon does."""
        answer = self.ask(
            """mutation($s: ScheduleSelector!, $at: Float!) { scheduleDryRun(selectorData: $s, timestamp: $at) {
            __typename ... on PythonError { message } ... on DryRunInstigationTick { evaluationResult { skipReason
            error { message } runRequests { runKey tags { key value } runConfigYaml } } } } }""",
            s=self.selector(scheduleName=schedule),
            at=datetime(2026, 3, 1, 3, tzinfo=UTC).timestamp(),
        )
        found: dict[str, Any] = answer["evaluationResult"]
        assert found["error"] is None, found
        return found

    def launched(
        self, job: str, tags: dict[str, str] | None = None, config: dict[str, Any] | None = None
    ) -> dg.DagsterRun:
        """Launch a run of a job in the UI, and wait for its end."""
        run_id = self.begun(job, tags, config)
        poll_for_finished_run(self.instance, run_id, timeout=120)
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def begun(self, job: str, tags: dict[str, str] | None = None, config: dict[str, Any] | None = None) -> str:
        """Launch a run of a job in the UI. Returns its id."""
        answer = self.ask(
            """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename
            ... on PythonError { message } ... on RunConfigValidationInvalid { errors { message } }
            ... on LaunchRunSuccess { run { runId } } } }""",
            p={
                "selector": self.selector(jobName=job),
                "mode": "default",
                "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]},
                "runConfigData": config or {},
            },
        )
        return str(answer["run"]["runId"])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
