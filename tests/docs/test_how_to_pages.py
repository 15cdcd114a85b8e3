"""The pages on the ways to install maintenance, followed literally: with their files, their commands and their bucket.

`tests/packaging` installs the wheel. The pages on a component and on a code location of its own are followed in
`tests/assets/test_component.py` and `tests/examples/test_own_code_location.py`.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]
from dagster import DagsterRunStatus
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget
from filelock import FileLock

from statekeeper.statestore.storage import StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.companies import HOME, Company
from tests.support.pages import Machine, Page
from tests.support.running import free_port
from tests.support.s3_server import S3Server

URL = "s3://bucket/orders/checkpoint"
"""The checkpoint of the pages."""


@pytest.fixture
def machine(s3_server: S3Server, tmp_path: Path) -> Iterator[Machine]:
    """A machine with access to the bucket of the pages, whose only checkpoint has batches."""
    s3_server.make_bucket("bucket")
    orders = Checkpoint(open_storage(StorageSpec(URL, tuple(s3_server.options.items()))), tmp_path / "job")
    orders.grow(64)
    options = s3_server.options
    home = tmp_path / "opt" / "dagster" / "home"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(HOME)
    variables = {
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_REGION": options["region"],
        "DAGSTER_HOME": str(home),
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        yield Machine(tmp_path, variables)
    orders.storage.delete([entry.path for entry in orders.storage.list("", hidden=True)])


def test_the_page_of_ones_own_dagster_leads_to_a_run_that_audits_the_query(machine: Machine) -> None:
    page = Page.of("how-to/add-to-your-dagster.md")
    machine.write("/etc/statekeeper/payments.toml", page.file("/etc/statekeeper/payments.toml"))
    assert "orders" in machine.run(page.command("audit --all"))
    file = machine.write("definitions.py", page.file("definitions.py"))
    told = machine.run(page.command("dagster definitions validate"))
    assert "run monitoring" in told, "the log names what the instance lacks"
    target = PythonFileTarget(str(file), None, str(machine.folder), "company")
    home = machine.environment["DAGSTER_HOME"]
    with (
        dg.DagsterInstance.from_config(home) as instance,
        WorkspaceProcessContext(instance, target) as workspace,
    ):
        company = Company(machine.folder, instance, workspace)
        found = company.sensed("payments_changelog_tail")
        instance.add_dynamic_partitions(
            "payments_streaming_query", found["dynamicPartitionsRequests"][0]["partitionKeys"]
        )
        request = next(one for one in found["runRequests"] if one["jobName"] == "payments_maintain_queries")
        run = company.launched(request["jobName"], config=yaml.safe_load(request["runConfigYaml"]))
        assert run.status is DagsterRunStatus.SUCCESS
        assert instance.get_materialized_partitions(dg.AssetKey(["payments", "lineage"])) == {"orders"}


def test_the_page_of_one_process_leads_to_a_service_with_metrics(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page.of("how-to/maintain-without-dagster.md")
    for variable in ("PAYMENTS_SLACK", "PLATFORM_SLACK"):
        machine.environment[variable] = f"http://127.0.0.1:{free_port()}/?a=b&c=d"
    machine.write("/etc/statekeeper/payments.toml", page.file("/etc/statekeeper/payments.toml"))
    tried = machine.run(page.command("maintain --all --dry-run"), exit_code=3)
    shown = next(block for block in page.blocks if "The longest tail" in block)
    (said,) = re.findall(r"^WARN: orders: .*$", machine.place(shown), re.MULTILINE)
    assert said in " ".join(tried.split("\n")), "the page shows what the command prints"
    (header,) = re.findall(r"^┃ root .*$", shown, re.MULTILINE)
    assert header.split() in [line.split() for line in tried.splitlines()]

    # From here on, only the file has the variables.
    secrets = re.sub(
        r"^(\w+)='.*'$",
        lambda line: f"{line[1]}='{machine.environment.pop(line[1])}'",
        page.file("/etc/statekeeper/secrets"),
        flags=re.MULTILINE,
    )
    file = machine.write("/etc/statekeeper/secrets", secrets)
    variables = dict(word.split("=", 1) for word in shlex.split(secrets, comments=True))
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)

    unit = page.file("/etc/systemd/system/statekeeper.service").replace("\\\n", " ")
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    port = str(free_port())
    command = machine.place(command).replace("9464", port)
    (machine.folder / "var" / "lib" / "statekeeper").mkdir(parents=True)
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=machine.folder,
        env={**machine.variables, **variables},
        stdout=subprocess.DEVNULL,
    ) as service:
        try:
            metrics = ""
            while 'statekeeper_query_status{fleet="payments",query="orders",team="payments"} 1.0' not in metrics:
                assert service.poll() is None, service.returncode
                time.sleep(0.2)
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                        metrics = answer.read().decode()
                except OSError:
                    continue
        finally:
            service.send_signal(signal.SIGTERM)
    assert service.returncode == 0
    assert (machine.folder / "var/lib/statekeeper/payments.json").exists()

    assert re.findall(r"^EnvironmentFile=(.*)$", machine.place(unit), re.MULTILINE) == [str(file)]
    (machine.folder / "var" / "lib" / "node_exporter").mkdir()
    machine.environment["XDG_STATE_HOME"] = str(machine.folder / "state")
    cron = page.command("*/5 * * * *").removeprefix("*/5 * * * * ")
    mail = machine.run(cron, exit_code=3)
    assert "┏" not in mail, "the table is not in the mail"
    assert ("is not set" in mail, "the webhook could not be called" in mail) == (False, True)
    assert 'query="orders"' in (machine.folder / "var/lib/node_exporter/statekeeper.prom").read_text()
    (state,) = (machine.folder / "state" / "statekeeper").glob("payments-*.json")
    with FileLock(f"{state}.lock"):
        machine.run(cron, exit_code=11)
