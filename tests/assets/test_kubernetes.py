"""Runs in pods: Dagster's `K8sRunLauncher` makes the jobs, and a small kubelet runs each as a process in namespaces.

What a run needs is the database of the instance, the bucket, and the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]
from dagster import DagsterRunStatus
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget

from statekeeper.resources.worker import BEAT_TAG, HOLDER_TAG
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import open_storage
from tests.support import companies, postgres
from tests.support.checkpoints import Checkpoint
from tests.support.dagster_runs import stored_checks
from tests.support.kubelet import HOST, Kubelet, can_run_pods
from tests.support.s3_server import CREDENTIALS, S3Server

pytestmark = [
    pytest.mark.skipif(not postgres.PLACES, reason="no Postgres here: apt-get install postgresql"),
    pytest.mark.skipif(not can_run_pods(), reason="a pod needs root, and a kernel that has namespaces"),
]

QUERIES = ("clicks", "orders", "views")

PROJECT = """
from pathlib import Path

from statekeeper.dagster import build_definitions

defs = build_definitions(Path(__file__).parent / "statekeeper.toml", name="streams")
"""


@dataclass
class Cluster(companies.Company):
    """A company whose runs are pods."""

    kubelet: Kubelet
    checkpoints: dict[str, Checkpoint]


@pytest.fixture
def cluster(s3_server: S3Server, tmp_path: Path) -> Iterator[Cluster]:
    image, home = tmp_path / "image", tmp_path / "home"
    image.mkdir()
    home.mkdir()
    bucket = f"s3://{s3_server.make_bucket()}"
    (image / "project.py").write_text(PROJECT)
    options = ", ".join(f'{name} = "{value}"' for name, value in s3_server.options.items() if name not in CREDENTIALS)
    (image / "statekeeper.toml").write_text(
        "[defaults]\nsnapshot = { changelogs = 4 }\nretention = { versions = 3, grace = '0s' }\n"
        + "".join(f'[roots.{name}]\nurl = "{bucket}/{name}"\nstorage = {{ {options} }}\n' for name in QUERIES)
    )
    checkpoints = {
        name: Checkpoint(open_storage(f"{bucket}/{name}", options=s3_server.options), tmp_path / name)
        for name in QUERIES
    }
    for checkpoint in checkpoints.values():
        checkpoint.grow(9)
    environment = {
        **postgres.LOGIN,
        "AWS_ACCESS_KEY_ID": CREDENTIALS["key"],
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret"],
        "AWS_REGION": CREDENTIALS["region"],
    }
    launcher = {
        "module": "dagster_k8s",
        "class": "K8sRunLauncher",
        "config": {
            "load_incluster_config": False,
            "kubeconfig_file": str(tmp_path / "kubeconfig"),
            "service_account_name": "dagster",
            "instance_config_map": "dagster-instance",
            "dagster_home": str(home),
            "job_image": "company/statekeeper:1",
            "env_vars": [f"{name}={value}" for name, value in environment.items()],
        },
    }
    with postgres.Server.started() as server, pytest.MonkeyPatch.context() as patched:
        (home / "dagster.yaml").write_text(
            companies.HOME + server.storage() + yaml.safe_dump({"run_launcher": launcher})
        )
        for name, value in {**environment, "DAGSTER_HOME": str(home)}.items():
            patched.setenv(name, value)
        with Kubelet.started(tmp_path, {"dagster.yaml": (home / "dagster.yaml").read_text()}) as kubelet:
            (tmp_path / "kubeconfig").write_text(kubelet.kubeconfig())
            target = PythonFileTarget(str(image / "project.py"), None, str(image), "company")
            with (
                dg.DagsterInstance.from_config(str(home)) as instance,
                WorkspaceProcessContext(instance, target) as workspace,
            ):
                yield Cluster(image, instance, workspace, kubelet, checkpoints)


@pytest.mark.timeout(240)
def test_one_pod_maintains_all_due_queries_with_its_own_host_name_process_ids_and_files(
    cluster: Cluster, tmp_path: Path
) -> None:
    requests = cluster.sensed("streams_changelog_tail")["runRequests"]
    (request,) = [one for one in requests if one["jobName"] == "streams_maintain_queries"]
    tags = {one["key"]: one["value"] for one in request["tags"]}
    cluster.instance.add_dynamic_partitions("streams_streaming_query", QUERIES)
    run = cluster.launched("streams_maintain_queries", tags, yaml.safe_load(request["runConfigYaml"]))
    (pod,) = cluster.kubelet.pods
    assert run.status is DagsterRunStatus.SUCCESS, pod.log.read_text()
    assert pod.process.wait(30) == 0
    assert pod.job["metadata"]["labels"]["dagster/run-id"] == run.run_id

    kept = cluster.instance.get_materialized_partitions(dg.AssetKey(["streams", "snapshot"]))
    assert kept == set(QUERIES)
    for name, checkpoint in cluster.checkpoints.items():
        checkpoint.assert_snapshots_are_right(tmp_path / f"fresh {name}")
        leases = [checkpoint.storage.read(entry.path) for entry in checkpoint.storage.list(names.LEASES)]
        assert leases
        assert all(f"{HOST}-0:".encode() in one for one in leases)
    passed = [one for one in stored_checks(cluster.instance, run.run_id) if one.passed]
    assert len(passed) == len(stored_checks(cluster.instance, run.run_id)) >= 4 * len(QUERIES)

    # What the sensor of dead runs judges by: the daemon on another host finds it in the database.
    assert run.tags[HOLDER_TAG].startswith(f"{HOST}-0:")
    assert run.tags[BEAT_TAG]
