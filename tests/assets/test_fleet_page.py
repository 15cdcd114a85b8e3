"""The page of `fleet_health`: one sentence says who must act, and the table has units, teams, targets and costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets import fleet_page
from statekeeper.assets.fleet_health import all_queries_healthy, gather, of_fleet, unhealthy
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.storage.base import RequestCounts
from statekeeper.statestore.storage.query_metrics import QueryMetrics
from tests.support.checkpoints import Checkpoint

TEAMS = {
    "payments": """
        [defaults]
        team = "payments"
        [policies."orders*"]
        snapshot = { restore_target = "0.001s" }
        [roots.orders]
        url = "../orders"
        [roots.refunds]
        url = "../refunds"
        [prices]
        per_1000_writes = 1000
        per_1000_reads = 10
    """,
    "crm": """
        [roots.leads]
        url = "../leads"
        [roots.later]
        url = "../later"
        [roots.typo]
        url = "x"
        retension = 1
        [roots.nowhere]
        url = "ftp://nowhere/x"
        team = "crm"
    """,
}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    first = Checkpoint(open_storage(str(tmp_path / "orders")), tmp_path / "host", partitions=1)
    first.grow(3)
    for name in ("refunds", "leads"):
        first.copied_to(open_storage(str(tmp_path / name)), tmp_path / f"host {name}")
    teams = tmp_path / "teams"
    teams.mkdir()
    for name, text in TEAMS.items():
        (teams / f"{name}.toml").write_text(text)
    return Fleet(config_file=str(teams), scratch=str(tmp_path), worker=Worker())


def rows_of(figures: dict[str, object]) -> dict[str, dict[str, object]]:
    table = figures["health"]
    assert isinstance(table, dg.TableMetadataValue)
    return {str(one.data["query"]): dict(one.data) for one in table.records}


def text_of(figures: dict[str, object], name: str) -> str:
    """The text of Markdown in one line, with short lines and without escapes."""
    shown = figures[name]
    assert isinstance(shown, dg.MarkdownMetadataValue)
    lines = (shown.md_str or "").splitlines()
    assert name == "problems" or all(
        len(one) < 60 or " " not in one.strip() or one.startswith("Next: ") for one in lines
    )
    return " ".join(one.strip() for one in lines).replace("\\", "")


def test_the_page_names_the_worst_query_its_team_and_the_next_command(fleet: Fleet, tmp_path: Path) -> None:
    lost = max((tmp_path / "orders/state/0/0").glob("*.changelog"))
    lost.unlink()
    facts = gather(fleet)
    problems = unhealthy(facts, fleet)
    figures = of_fleet(facts, {}, 0.0, problems)
    summary = text_of(figures, "summary")
    assert summary.startswith("4 queries: 2 need a person. The worst is nowhere (team crm): cannot be examined: ")
    assert summary.endswith(f" Next: `statekeeper --config {fleet.config_file} audit nowhere`")
    rows = rows_of(figures)
    assert list(rows) == ["nowhere", "orders", "leads", "refunds"]
    assert [one["status"] for one in rows.values()] == ["ERROR", "ERROR", "OK", "OK"]
    assert (rows["orders"]["team"], rows["leads"]["team"]) == ("payments", None)
    assert lost.name in text_of(figures, "problems")
    notes = text_of(figures, "notes")
    assert "1 query without a committed batch: not examined." in notes
    typo = f"roots.typo in {fleet.config_file}/crm.toml: roots.typo.retension is unknown"
    assert f"1 part of the configuration is not used. The first is {typo}" in notes
    assert notes.endswith(f" Next: `statekeeper --config {fleet.config_file} config check`")
    assert (figures["queries_that_need_a_person"], figures["unreachable_queries"]) == (2, 2)
    check = all_queries_healthy(facts, fleet)
    assert not check.passed
    description = check.description or ""
    assert description.startswith("The worst of 3 problems is nowhere: cannot be examined: ")
    assert description.endswith(f" Next: statekeeper --config {fleet.config_file} audit nowhere")
    listed = text_of(check.metadata, "problems")
    assert all(name in listed for name in ("nowhere", "orders", "roots.typo"))


def test_a_healthy_page_shows_the_restore_time_against_its_target_and_the_cost_of_a_day(fleet: Fleet) -> None:
    facts = gather(fleet)
    job = QueryMetrics(batches=10, seconds=86_400.0, writes=10, reads=100)
    orders = replace(
        facts.rows["orders"], restore_seconds=2.0, counts=RequestCounts(list=2, read=3), runs_of_last_day=6
    )
    facts = replace(facts, rows={**facts.rows, "orders": replace(orders, job=job)}, problems={})
    figures = of_fleet(facts, {}, 0.0, {}, examinations_a_day=24)
    assert text_of(figures, "summary") == "3 queries: none needs a person."
    row = rows_of(figures)["orders"]
    assert (row["restore_seconds"], row["target_seconds"]) == (2.0, 0.001)
    assert row["query_dollars_per_day"] == 11.0, "10 writes for 1 dollar each, 100 reads for 1 cent each"
    assert row["maintenance_dollars_per_day"] == pytest.approx((24 + 6) * 2.03)
    assert rows_of(figures)["leads"]["query_dollars_per_day"] is None
    assert (figures["query_dollars_per_day"], figures["queries_of_unknown_cost"]) == (11.0, 2)
    assert figures["queries_over_restore_target"] == 1
    notes = text_of(figures, "notes")
    assert "The predicted restore of 1 query takes longer than the target." in notes
    assert "The cost of the requests of 2 queries is not known" in notes


@pytest.mark.parametrize(("names", "counted"), [(["orders"], "1 query"), (["orders", "leads"], "2 queries")])
def test_the_check_of_a_healthy_fleet_says_how_many_queries_were_audited(
    fleet: Fleet, names: list[str], counted: str
) -> None:
    facts = gather(fleet)
    rows = {name: replace(facts.rows[name], worst=None) for name in names}
    check = all_queries_healthy(replace(facts, rows=rows, problems={}), fleet)
    told = f"The audit of {counted} has no finding. Not examined, because they have no committed batch: later."
    assert (check.passed, check.description) == (True, told)


def test_each_number_of_the_table_has_a_unit_or_is_a_count() -> None:
    units = ("_seconds", "_changelogs", "_mib", "_per_day", "_files")
    counts = {"errors", "warnings", "stores", "version", "commits_left", "requests", "hours_since_clean_audit"}
    numbers = {name for name, kind in fleet_page._COLUMNS.items() if kind != "string"}
    assert {name for name in numbers if not name.endswith(units)} == counts
