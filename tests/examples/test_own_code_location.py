"""The files of `examples/own-code-location`: the command of the container serves a fleet, and a run of it is launched.

No container is built and no chart is rendered here.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster import DagsterRunStatus
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget

from statekeeper.assets.partitions import QUERY_TAG
from statekeeper.dagster import build_definitions
from statekeeper.resources.fleet import FLEET_TAG
from statekeeper.statestore.maintenance.verbs import config
from tests.support.companies import HOME, Company, files
from tests.support.entry_points import ROCKSDB
from tests.support.pages import Page
from tests.support.running import REPOSITORY, free_port
from tests.support.unpacked import unpacked

EXAMPLE = REPOSITORY / "examples" / "own-code-location"

CONTAINERFILE = (EXAMPLE / "Containerfile").read_text()

KEYS_OF_A_DEPLOYMENT = {
    *("name", "image", "dagsterApiGrpcArgs", "codeServerArgs", "includeConfigInLaunchedRuns", "deploymentNamespace"),
    *("port", "env", "envConfigMaps", "envSecrets", "annotations", "nodeSelector", "affinity", "tolerations"),
    *(
        "podSecurityContext",
        "securityContext",
        "resources",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "labels",
    ),
    *("volumeMounts", "volumes", "schedulerName", "initContainers", "sidecarContainers", "service", "serviceAccount"),
    "deploymentStrategy",
}
"""The keys that Dagster's chart `dagster-user-deployments` 1.13 accepts."""


def command() -> list[str]:
    """The command of the container."""
    (found,) = re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    parsed: list[str] = json.loads(found)
    return parsed


def values() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((EXAMPLE / "values.yaml").read_text())
    return parsed


def wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the code server listens."""
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"the code server ended with exit code {server.returncode}")


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    """An instance with the example's workspace, whose code server is the command of the container."""
    unpacked(ROCKSDB, tmp_path / "unpacked").rename(tmp_path / "checkpoint")
    configurations = tmp_path / "statekeeper"
    configurations.mkdir()
    example = (EXAMPLE / "payments.toml").read_text()
    (configurations / "payments.toml").write_text(
        example.replace("s3://bucket/orders/checkpoint", str(tmp_path / "checkpoint"))
    )
    (tmp_path / "definitions.py").write_bytes((EXAMPLE / "definitions.py").read_bytes())
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(HOME)
    port = str(free_port())
    workspace = (EXAMPLE / "workspace.yaml").read_text()
    workspace = workspace.replace("host: statekeeper", "host: 127.0.0.1").replace("4000", port)
    (tmp_path / "workspace.yaml").write_text(workspace.replace("location_name: statekeeper", "location_name: company"))
    changed = {
        "0.0.0.0": "127.0.0.1",
        "4000": port,
        "/opt/statekeeper/definitions.py": str(tmp_path / "definitions.py"),
    }
    started = [changed.get(word, word) for word in command()]
    started[0] = str(Path(sys.executable).with_name(started[0]))
    environment = os.environ | {
        "DAGSTER_HOME": str(home),
        "STATEKEEPER_FOLDER": str(configurations),
        "PYTHONPATH": str(REPOSITORY),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with (
        pytest.MonkeyPatch.context() as patched,
        subprocess.Popen(started, cwd=tmp_path, env=environment) as server,
    ):
        patched.setenv("DAGSTER_HOME", str(home))
        try:
            wait_for(server, int(port))
            with (
                dg.DagsterInstance.from_config(str(home)) as instance,
                WorkspaceProcessContext(instance, WorkspaceFileTarget([str(tmp_path / "workspace.yaml")])) as process,
            ):
                yield Company(tmp_path, instance, process)
        finally:
            server.terminate()
            # Dagster's server sometimes waits for its own child without an end.
            with suppress(subprocess.TimeoutExpired):
                server.wait(5)
            server.kill()


def test_the_command_of_the_container_serves_a_fleet_and_a_run_of_it_only_reads(company: Company) -> None:
    before = files(company.folder / "checkpoint")
    company.instance.add_dynamic_partitions("payments_streaming_query", ["orders"])
    run = company.launched("payments_maintain_query", {QUERY_TAG: "orders"})
    assert (run.status, run.tags[FLEET_TAG]) == (DagsterRunStatus.SUCCESS, "payments")
    assert company.instance.get_materialized_partitions(dg.AssetKey(["payments", "lineage"])) == {"orders"}
    assert files(company.folder / "checkpoint") == before


def test_the_example_of_a_configuration_is_valid() -> None:
    assert list(config.load(EXAMPLE / "payments.toml").roots) == ["orders"]


def test_the_values_have_the_keys_of_the_chart_and_start_the_same_definitions() -> None:
    (deployment,) = values()["dagster-user-deployments"]["deployments"]
    assert set(deployment) <= KEYS_OF_A_DEPLOYMENT
    host, port = "0.0.0.0", str(deployment["port"])
    serve = ["dagster", "code-server", "start", "--host", host, "--port", port]
    assert command() == [*serve, *deployment["codeServerArgs"]]
    assert {one["name"] for one in deployment["volumes"]} == {one["name"] for one in deployment["volumeMounts"]}
    (server,) = yaml.safe_load((EXAMPLE / "workspace.yaml").read_text())["load_from"]
    assert (server["grpc_server"]["host"], server["grpc_server"]["port"]) == (deployment["name"], deployment["port"])


def test_the_page_starts_the_same_command_on_a_virtual_machine() -> None:
    started = Page.of("how-to/own-code-location.md").command("dagster code-server start")
    assert started.replace("examples/own-code-location/", "/opt/statekeeper/").split() == command()


def test_the_container_copies_files_that_exist() -> None:
    sources = [word for line in re.findall(r"^COPY (.*) \S+$", CONTAINERFILE, re.MULTILINE) for word in line.split()]
    assert sources == ["requirements.lock", "dist/statekeeper-*.whl", "examples/own-code-location/definitions.py"]
    assert all((REPOSITORY / one).exists() for one in sources if not one.startswith("dist/"))


def test_a_link_to_a_configuration_is_followed_only_when_it_is_read(tmp_path: Path) -> None:
    """Kubernetes replaces the link of a ConfigMap, and deletes the former folder."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "payments.toml").write_text(f"[roots.orders{version}]\nurl = 'orders'\n")
    link = tmp_path / "payments.toml"
    link.symlink_to(tmp_path / "1" / "payments.toml")
    fleet: Any = (build_definitions(link, name="payments").resources or {})["payments_fleet"]
    link.unlink()
    link.symlink_to(tmp_path / "2" / "payments.toml")
    (tmp_path / "1" / "payments.toml").unlink()
    assert list(fleet.configuration().roots) == ["orders2"]
