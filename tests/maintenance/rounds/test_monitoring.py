"""The alert rules and the dashboard in `monitoring/`, against the metrics that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from statekeeper.statestore.maintenance.rounds import metrics
from statekeeper.statestore.maintenance.rounds.due import Asked, latest_seconds
from statekeeper.statestore.maintenance.rounds.memory import Memory, Remembered
from statekeeper.statestore.maintenance.rounds.notices import Told, next_notice
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Policies, Schedule
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.running import REPOSITORY, free_port

MONITORING = Path(__file__).parents[3] / "monitoring"
RULES, DASHBOARD = MONITORING / "alerts.yaml", MONITORING / "dashboard.json"
OTHER_LABELS = {
    "statekeeper_fleet_info": {"fleet", "command"},
    "statekeeper_unhealthy": {"fleet", "severity"},
    "statekeeper_subject_status": {"fleet", "team", "subject"},
    "statekeeper_unsent_notices": {"fleet", "team"},
}
METRIC = re.compile(r"\bstatekeeper_\w+")


def fleet() -> str:
    """The metrics of a fleet with one damaged query."""
    memory = Memory()
    memory.queries["orders"] = Remembered(
        asked=Asked(7, 0, 0.0),
        visited_seconds=1e9,
        due_seconds=1e9 + 3600,
        status=Status.ERROR,
        team="payments",
        figures=dict.fromkeys(metrics.GAUGES, 1.0),
        totals=dict.fromkeys(metrics.COUNTERS, 2.0),
    )
    memory.told["orders"] = Told(status=Status.ERROR, since_seconds=0, told_seconds=0)
    memory.told["typo"], _ = next_notice(
        "typo", None, Status.WARN, "no batch", now_seconds=0, policies=Policies(team="crm")
    )
    return generate_latest(metrics.registry("prod", memory, ("--config", "/etc/statekeeper/*.toml"))).decode()


def names() -> set[str]:
    return {sample.name for family in text_string_to_metric_families(fleet()) for sample in family.samples}


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda file: file.name)
def test_each_metric_that_is_asked_for_exists(file: Path) -> None:
    asked = set(METRIC.findall(file.read_text()))
    assert asked
    assert asked <= names()


def test_each_metric_has_a_description_and_the_labels_of_its_query() -> None:
    for family in text_string_to_metric_families(fleet()):
        assert family.documentation
        labels = OTHER_LABELS.get(family.name, {"fleet", "team", "query"})
        assert {frozenset(sample.labels) for sample in family.samples} == {frozenset(labels)}


def test_a_root_that_was_never_maintained_has_a_status_with_its_team() -> None:
    assert 'statekeeper_subject_status{fleet="prod",subject="typo",team="crm"} 1.0' in fleet()


def test_the_messages_that_no_channel_accepted_are_counted_by_team() -> None:
    assert 'statekeeper_unsent_notices{fleet="prod",team="crm"} 1.0' in fleet()
    assert 'statekeeper_unsent_notices{fleet="prod",team="payments"} 0.0' in fleet()


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning"}
    assert all({"summary", "action"} <= set(rule["annotations"]) for rule in rules)


def test_no_panel_covers_another() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


def promtool(folder: Path, test: str) -> None:
    """Test the rules with the series and the expected alerts of a test in YAML."""
    (folder / "test.yaml").write_text(f"rule_files: [{RULES}]\ntests:{test}")
    tested = subprocess.run(
        ["promtool", "test", "rules", str(folder / "test.yaml")], text=True, capture_output=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
def test_prometheus_accepts_the_metrics() -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=fleet(), text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@needs_promtool
def test_prometheus_fires_the_alert_of_a_damaged_query_with_a_command_that_can_be_pasted(tmp_path: Path) -> None:
    (info,) = re.findall(r'^statekeeper_fleet_info{command="(.*)",fleet="prod"} 1.0$', fleet(), re.MULTILINE)
    assert info == "statekeeper --config '/etc/statekeeper/*.toml'"
    labels = "fleet: prod, instance: vm, query: orders, severity: critical, team: payments"
    promtool(
        tmp_path,
        f"""
  - interval: 1m
    input_series:
      - series: statekeeper_query_status{{fleet="prod", query="orders", team="payments", instance="vm"}}
        values: "0x5 2x20"
      - series: statekeeper_fleet_info{{fleet="prod", command="{info}", instance="vm"}}
        values: "1x30"
      - series: statekeeper_fleet_info{{fleet="prod", command="that of another machine", instance="other"}}
        values: "1x30"
    alert_rule_test:
      - {{ eval_time: 5m, alertname: StatekeeperQueryDamaged, exp_alerts: [] }}
      - eval_time: 10m
        alertname: StatekeeperQueryDamaged
        exp_alerts:
          - exp_labels: {{ {labels} }}
            exp_annotations:
              summary: "orders: state is lost or wrong, the query cannot be read, or its maintenance fails"
              action: "Run: {info} audit orders"
""",
    )


@needs_promtool
def test_a_query_with_a_window_raises_no_alert_until_it_has_missed_the_window(tmp_path: Path) -> None:
    visited = 5.5 * 3600
    schedule = Schedule(window=(22 * 60, 6 * 60))
    due = latest_seconds(schedule, newest_seconds=visited, visited_seconds=visited, sweep_seconds=3600)
    promtool(
        tmp_path,
        f"""
  - interval: 4m
    input_series:
      - series: statekeeper_query_due_timestamp_seconds{{fleet="prod", query="orders", team="payments"}}
        values: "{due:.0f}x400"
      - series: statekeeper_query_visited_timestamp_seconds{{fleet="prod", query="orders", team="payments"}}
        values: "{visited:.0f}x400"
    alert_rule_test:
      - {{ eval_time: 9h, alertname: StatekeeperNotMaintained, exp_alerts: [] }}
      - {{ eval_time: 24h, alertname: StatekeeperNotMaintained, exp_alerts: [] }}
      - eval_time: 25h
        alertname: StatekeeperNotMaintained
        exp_alerts:
          - exp_labels: {{ fleet: prod, query: orders, severity: critical, team: payments }}
            exp_annotations:
              summary: "orders: its maintenance is overdue by 3h 0m 0s"
              action: "Look at the log of `statekeeper maintain`: is the process alive?"
""",
    )


@needs_promtool
def test_a_root_that_stays_without_a_batch_and_a_message_that_is_not_accepted_raise_alerts(tmp_path: Path) -> None:
    promtool(
        tmp_path,
        """
  - interval: 1m
    input_series:
      - series: statekeeper_subject_status{fleet="prod", subject="typo", team="crm"}
        values: "1x100"
      - series: statekeeper_subject_status{fleet="prod", subject="orders", team="payments"}
        values: "1x100"
      - series: statekeeper_query_status{fleet="prod", query="orders", team="payments"}
        values: "1x100"
      - series: statekeeper_unsent_notices{fleet="prod", team="crm"}
        values: "1x100"
      - series: statekeeper_unsent_notices{fleet="prod", team="payments"}
        values: "0 1 0x98"
    alert_rule_test:
      - { eval_time: 59m, alertname: StatekeeperSubjectNeedsAttention, exp_alerts: [] }
      - eval_time: 61m
        alertname: StatekeeperSubjectNeedsAttention
        exp_alerts:
          - exp_labels: { fleet: prod, subject: typo, severity: warning, team: crm }
            exp_annotations:
              summary: "typo: it was never maintained, because there is no committed batch"
              action: "Run: statekeeper config check"
      - eval_time: 11m
        alertname: StatekeeperMessagesNotSent
        exp_alerts:
          - exp_labels: { fleet: prod, severity: critical, team: crm }
            exp_annotations:
              summary: "no channel of the team crm accepts messages about its queries, or PagerDuty does not"
              action: "Look for `was not sent` in the log of `statekeeper maintain`. For an environment variable that is not set, run with the environment of that process: statekeeper config check"
""",  # noqa: E501
    )


@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: apt-get install prometheus"
)
def test_a_damaged_root_fires_its_alert_and_fills_the_panels_of_a_prometheus(tmp_path: Path) -> None:
    damaged = Checkpoint(open_storage(str(tmp_path / "orders")), tmp_path / "job")
    damaged.grow(3)
    max((tmp_path / "orders/state/0/0").glob("*.changelog")).unlink()
    (tmp_path / "prod.toml").write_text('[roots.orders]\nurl = "orders"\nmode = "observe"\nteam = "payments"\n')
    own, theirs = free_port(), free_port()
    (tmp_path / "alerts.yaml").write_text(re.sub(r"for: \d+\w", "for: 1s", RULES.read_text()))
    (tmp_path / "prometheus.yaml").write_text(f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: statekeeper
    static_configs: [{{ targets: ["127.0.0.1:{own}"] }}]
""")
    maintain = ["--config", "prod.toml", "maintain", "--all", "--watch", "5s", "--state", "state.json", "--listen"]
    server = ["prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=data"]
    commands = (
        [sys.executable, "-m", "statekeeper", *maintain, f"127.0.0.1:{own}"],
        [*server, f"--web.listen-address=127.0.0.1:{theirs}"],
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    alerts: dict[str, dict[str, str]] = {}
    with ExitStack() as started:
        processes = [
            started.enter_context(
                subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
            for command in commands
            for log in [started.enter_context((tmp_path / f"{len(command)}.log").open("w"))]
        ]
        for process in processes:
            started.callback(process.terminate)
        while "StatekeeperQueryDamaged" not in alerts:
            assert [process.poll() for process in processes] == [None, None], processes
            time.sleep(0.2)
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{theirs}/api/v1/alerts") as answer:
                firing = (one for one in json.load(answer)["data"]["alerts"] if one["state"] == "firing")
                alerts = {one["labels"]["alertname"]: {**one["labels"], **one["annotations"]} for one in firing}
        shown = {expression: _answer_of(theirs, expression) for expression in _expressions_of_panels()}
    assert shown
    assert [expression for expression, series in shown.items() if not series] == [], "panels without data"
    found = alerts["StatekeeperQueryDamaged"]
    assert (found["team"], found["query"], found["severity"]) == ("payments", "orders", "critical")
    assert found["action"] == f"Run: statekeeper --config {tmp_path}/prod.toml audit orders"
    assert "StatekeeperNotMaintained" not in alerts


def _expressions_of_panels() -> list[str]:
    """The expressions of the dashboard, for all fleets and teams."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = (target["expr"] for panel in panels for target in panel.get("targets", ()))
    return [one.replace("$fleet", ".+").replace("$team", ".+") for one in asked]


def _answer_of(port: int, expression: str) -> list[object]:
    """The series that Prometheus returns for an expression. An invalid one is an HTTP error."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}") as answer:
        series: list[object] = json.load(answer)["data"]["result"]
    return series
