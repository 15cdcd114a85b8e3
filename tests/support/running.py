"""Starts Dagster in its own processes, as users do, and queries it through GraphQL."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from statekeeper.resources.launcher.platform import LOGS
from tests.support.processes import children_of, in_session, kill

REPOSITORY = Path(__file__).resolve().parents[2]
T = TypeVar("T")


@dataclass(frozen=True)
class Running:
    """A started platform. `process` is the command of the user."""

    process: subprocess.Popen[str]
    port: int
    home: Path
    log: Path

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data of an answer to a GraphQL query."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            told = json.loads(answer.read())
        assert not told.get("errors"), told["errors"]
        found: dict[str, Any] = told["data"]
        return found

    def sessions(self) -> set[int]:
        """The sessions of all that it has started, its own included."""
        found = {self.process.pid}
        for child in _family(self.process.pid):
            with suppress(ProcessLookupError):  # it has ended since
                found.add(os.getsid(child))
        return found

    def wait_for(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        """Call `look` until it finds something, and return it. A missing answer counts as nothing."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = look()
            except (urllib.error.URLError, ConnectionError, TimeoutError, json.JSONDecodeError):
                found = None
            if found:
                return found
            assert self.process.poll() is None, f"it ended: {self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"{what}: not seen in {seconds:.0f} s\n{self.logs()}"
            time.sleep(0.5)

    def logs(self) -> str:
        """The last lines that each process said."""
        logs = sorted((self.home / LOGS).glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in [*logs, self.log])

    def runs(self, job: str | None = "maintain_queries", **filters: Any) -> list[dict[str, Any]]:
        """The runs of a job, or of all, newest first."""
        query = """query($filter: RunsFilter!) { runsOrError(filter: $filter, limit: 200) { ... on Runs { results {
            runId pipelineName status startTime tags { key value } } } } }"""
        found = self.ask(query, filter={**({"pipelineName": job} if job else {}), **filters})["runsOrError"]["results"]
        return [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]

    def materializations(self, asset: str, limit: int = 50) -> list[dict[str, Any]]:
        """The metadata of an asset's materializations, newest first, with the rows of the table `figures`."""
        query = """query($key: AssetKeyInput!, $limit: Int!) { assetOrError(assetKey: $key) { ... on Asset {
            assetMaterializations(limit: $limit) { runId partition metadataEntries { label
              ... on IntMetadataEntry { intRepr } ... on FloatMetadataEntry { floatValue }
              ... on TextMetadataEntry { text }
              ... on TableMetadataEntry { table { records } } } } } } }"""
        found = self.ask(query, key={"path": [asset]}, limit=limit)["assetOrError"].get("assetMaterializations", [])
        return [{"run": one["runId"], "query": one["partition"], **_figures(one["metadataEntries"])} for one in found]

    def checks(self, asset: str) -> dict[str, dict[str, Any]]:
        """The newest evaluation of each check of an asset."""
        query = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
            assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization {
              status evaluation { success severity description } } } } } } } }"""
        found = self.ask(query, key={"path": [asset]})["assetNodeOrError"]["assetChecksOrError"]["checks"]
        return {
            one["name"]: one["executionForLatestMaterialization"]["evaluation"]
            for one in found
            if one["executionForLatestMaterialization"] and one["executionForLatestMaterialization"]["evaluation"]
        }

    def ticks(self, sensor: str) -> list[dict[str, Any]]:
        """The newest ticks of a sensor."""
        query = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor {
            sensorState { ticks(limit: 20) { status skipReason runIds error { message } } } } } }"""
        selector = {"repositoryName": "__repository__", "repositoryLocationName": "statekeeper", "sensorName": sensor}
        found: list[dict[str, Any]] = self.ask(query, s=selector)["sensorOrError"]["sensorState"]["ticks"]
        return found

    def launch(self, query: str, job: str = "maintain_query", config: dict[str, Any] | None = None) -> None:
        """Launch a run of a job by hand, as a user does after a repair. `config`: of the op with the name of the asset."""
        mutation = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename
            ... on PythonError { message } ... on RunConfigValidationInvalid { errors { message } } } }"""
        selector = {
            "repositoryName": "__repository__",
            "repositoryLocationName": "statekeeper",
            "jobName": job,
        }
        tags = [{"key": "dagster/partition", "value": query}]
        params = {"selector": selector, "mode": "default", "executionMetadata": {"tags": tags}}
        if config is not None:
            [asset, _] = job.split("_")
            params["runConfigData"] = {"ops": {asset: {"config": config}}}
        told = self.ask(mutation, p=params)
        assert told["launchRun"]["__typename"] == "LaunchRunSuccess", told


def succeeded(platform: Running, at_least: int = 1) -> list[dict[str, Any]]:
    """Wait for this number of successful runs of `maintain_queries`, and return them newest first."""

    def look() -> list[dict[str, Any]] | None:
        runs = platform.runs(statuses=["SUCCESS"])
        return runs if len(runs) >= at_least else None

    return platform.wait_for(f"{at_least} runs that succeeded", look, 150)


def _figures(entries: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entries:
        if entry.get("intRepr") is not None:
            found[entry["label"]] = int(entry["intRepr"])
        elif entry.get("floatValue") is not None:
            found[entry["label"]] = entry["floatValue"]
        elif entry.get("text") is not None:
            found[entry["label"]] = entry["text"]
        elif entry["label"] == "figures":
            rows = [json.loads(record) for record in entry["table"]["records"]]
            found |= {row["figure"]: row["value"] for row in rows}
    return found


@contextmanager
def running(
    folder: Path,
    module: str,
    *arguments: str,
    home: Path,
    environment: Mapping[str, str] | None = None,
    port: int | None = None,
) -> Iterator[Running]:
    """A command that starts Dagster, until the block is left: then Ctrl-C, half a minute, and nothing may be left. The
    block may kill it."""
    port = port or free_port()
    log = folder / f"{module}.log"
    with log.open("a") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, "--port", str(port)],
            cwd=REPOSITORY,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    made = Running(process, port, home, log)
    try:
        yield made
        sessions, deadline = made.sessions(), time.monotonic() + 30
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert_gone(sessions, max(0.0, deadline - time.monotonic()))
    finally:
        family = _family(process.pid)
        process.kill()
        kill(family)
        process.wait()


def assert_gone(sessions: Collection[int], seconds: float = 30) -> None:
    """Assert that all processes of these sessions end within this number of seconds. Processes of Spark's JVM end a
    moment after it."""
    deadline = time.monotonic() + seconds
    while left := [one for session in sessions for one in in_session(session)]:
        said = [(one.id, one.parent, one.command[:200]) for one in left]
        assert time.monotonic() < deadline, f"processes were left behind: {said}"
        time.sleep(0.2)


def _family(process_id: int) -> list[int]:
    """All that descends from a process, as long as its parents live."""
    return [one for child in children_of(process_id) for one in (child.id, *_family(child.id))]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
