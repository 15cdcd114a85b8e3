"""`statekeeper config check`: each value with its source, each mistake with its correction, and no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import run

PAYMENTS = """
[defaults]
team = "payments"
[policies."jobs.o*"]
schedule = { window = "22:00-06:00" }
[parents.jobs]
url = "../jobs/*/state"
mode = "snapshots"
[teams.payments]
slack = "https://hooks.example.com/confidential"
pagerduty = "env:PAYMENTS_KEY"
"""


@pytest.fixture
def teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAYMENTS_KEY", "confidential")
    for name in ("orders", "clicks"):
        Checkpoint(open_storage(str(tmp_path / f"jobs/{name}/state")), tmp_path / name, partitions=1).grow(2)
    folder = tmp_path / "teams"
    folder.mkdir()
    (folder / "payments.toml").write_text(PAYMENTS)
    return folder


def checked(config: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = run("--config", config, "config", "check", *arguments, "--output", "json")
    return result.exit_code, json.loads(result.stdout)


def test_each_value_has_its_file_and_table(teams: Path) -> None:
    code, found = checked(teams)
    assert (code, found["findings"]) == (0, [])
    roots = {one["root"]: one for one in found["roots"]}
    assert set(roots) == {"jobs.orders", "jobs.clicks"}
    orders, file = roots["jobs.orders"], str(teams / "payments.toml")
    assert (orders["state"], orders["table"], orders["file"]) == ("batch 1", "parents.jobs", file)
    policies = orders["policies"]
    assert policies["mode"] == {"value": "snapshots", "file": file, "table": "parents.jobs"}
    assert policies["team"] == {"value": "payments", "file": file, "table": "defaults"}
    assert policies["schedule.window"] == {"value": "22:00-06:00", "file": file, "table": 'policies."jobs.o*"'}
    assert policies["retention.versions"] == {"value": "100", "file": None, "table": None}
    assert roots["jobs.clicks"]["policies"]["schedule.window"]["value"] == "none"


def test_the_output_for_people_has_no_secret_and_a_named_root_shows_the_defaults(teams: Path) -> None:
    shown = run("--config", str(teams / "*.toml"), "config", "check")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("1 file, 2 roots: no finding\n")
    assert "team payments: slack ***, pagerduty env:PAYMENTS_KEY (not tested)" in shown.stdout
    assert "retention.grace" not in shown.stdout
    one = run("--config", teams, "config", "check", "jobs.orders").stdout
    assert "retention.grace" in one
    assert "jobs.clicks:" not in one
    as_json = run("--config", teams, "config", "check", "--output", "json").stdout
    assert not any("confidential" in text for text in (shown.output, one, as_json))


def test_what_must_be_corrected_is_a_finding(teams: Path) -> None:
    (teams / "crm.toml").write_text(
        '[roots.leads]\nurl = "leads"\nteam = "paymants"\n'
        '[roots.typo]\nurl = "x"\nretension = 1\n'
        '[roots.also]\nurl = "../jobs/orders/state"\nmode = "observe"\n'
    )
    (teams / "one.toml").write_text('[policies."leeds"]\nmode = "full"\n[roots.leads]\nurl = "other"\n')
    (teams / "other.toml").write_text(
        '[policies."paym*"]\nmode = "full"\n[roots.payers]\nurl = "../jobs/clicks/state"\nteam="paymants"\n'
    )
    code, found = checked(teams)
    assert code == 3
    findings = {one["subject"].split(" in ")[0]: one["problem"] for one in found["findings"]}
    assert "roots.typo.retension is unknown -> did you mean retention?" in findings["roots.typo"]
    assert "neither is maintained" in findings["roots.leads"]
    assert "did you mean payments?" in findings["teams.paymants"]
    assert "it matches no query of this file -> correct it, for example to match payers" in findings['policies."paym*"']
    assert not any(one["is_unreadable"] for one in found["findings"])
    for name in ("also", "jobs.orders", "payers", "jobs.clicks"):
        assert "neither is maintained" in findings[name], (
            "a root of another file does not replace the policies of a parent"
        )
    assert {one["root"]: one["state"] for one in found["roots"]} == {"also": "ambiguous", "payers": "ambiguous"}


def test_a_channel_whose_environment_variable_is_not_set_is_a_finding(
    teams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (None, ""):
        monkeypatch.delenv("PAYMENTS_KEY") if value is None else monkeypatch.setenv("PAYMENTS_KEY", value)
        code, found = checked(teams)
        (finding,) = found["findings"]
        assert (code, finding["subject"], finding["is_unreadable"]) == (3, "teams.payments.pagerduty", False)
        assert finding["problem"].startswith("the environment variable 'PAYMENTS_KEY' is not set")
    assert checked(teams, "--offline")[0] == 0, "the environment of a review is not that of the process"


def test_a_file_or_checkpoint_that_cannot_be_read_has_its_own_exit_code(teams: Path) -> None:
    (teams / "later.toml").write_text('[roots.later]\nurl = "later"\nteam = "payments"\n')
    code, found = checked(teams)
    assert (code, [one["subject"] for one in found["findings"]]) == (3, ["later"])
    (teams / "later.toml").write_text('[roots.later]\nurl = "ftp://nowhere/x"\nteam = "payments"\n')
    code, found = checked(teams)
    assert (code, [one["subject"] for one in found["findings"]]) == (1, ["later"])
    assert checked(teams, "--offline")[0] == 0
    (teams / "later.toml").write_text("[roots")
    code, found = checked(teams, "--offline")
    assert code == 1
    assert [one["root"] for one in found["roots"]] == ["jobs.*"]
    assert found["files"][0] == {"file": str(teams / "later.toml"), "is_used": False}
    nowhere = run("--config", teams / "x*.toml", "config", "check")
    assert (nowhere.exit_code, "matches no file" in nowhere.stderr) == (2, True)


def test_a_check_of_one_root_does_not_fail_because_of_another_one(teams: Path) -> None:
    (teams.parent / "loop").symlink_to("loop")
    (teams / "crm.toml").write_text('[roots.leads]\nurl = "../loop"\nteam = "payments"\n')
    assert checked(teams)[0] == checked(teams, "leads")[0] == 1
    code, found = checked(teams, "jobs.orders")
    assert (code, found["findings"]) == (0, [])
    (teams / "broken.toml").write_text("[roots")
    code, found = checked(teams, "jobs.orders")
    assert (code, [one["subject"] for one in found["findings"]]) == (1, [f"file {teams / 'broken.toml'}"])


def test_other_verbs_use_the_folder_and_a_broken_file_stops_only_its_queries(teams: Path) -> None:
    (teams / "crm.toml").write_text("[roots")
    assert run("--config", teams, "inspect", "jobs.orders").exit_code == 0
    refused = run("--config", teams, "inspect", "leads")
    assert refused.exit_code == 2
    assert "crm.toml" in refused.stderr
    everything = run("--config", teams, "maintain", "--all", "--dry-run", "--output", "json")
    assert everything.exit_code == 1
    made = json.loads(everything.stdout)
    assert sorted(one["root"] for one in made["visits"]) == ["jobs.clicks", "jobs.orders"]
    assert list(made["absent"]) == [f"file {teams / 'crm.toml'}"]


def test_the_environment_can_name_a_pattern_and_a_pattern_of_policies_that_matches_nothing_is_found(
    teams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEKEEPER_CONFIG", str(teams / "*.toml"))
    assert run("config", "check", "jobs.orders").exit_code == 0
    (teams / "payments.toml").write_text(PAYMENTS.replace('"jobs.o*"', '"job.o*"'))
    (teams / "crm.toml").write_text("[roots")
    found = json.loads(run("config", "check", "--output", "json").stdout)
    assert [one["subject"].split(" in ")[0] for one in found["findings"][1:]] == ['policies."job.o*"'], (
        "although another file is broken"
    )
