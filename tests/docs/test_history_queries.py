"""The ten queries of the page about the tables of history, each with its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.maintenance.copies.history_tables import CHANGES_STATE, HEALTH, RUNS, STEPS
from statekeeper.statestore.maintenance.records.history import DrilledStore, FailedRun
from statekeeper.statestore.storage import open_storage
from tests.support.clocks import SleeplessClock
from tests.support.histories import DAY, TABLES, a_pass, a_run, asked, tables_at
from tests.support.keyed_roots import KeyedRoot
from tests.support.running import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-to" / "history-as-tables.md").read_text()
QUERIES = dict(re.findall(r"^\*\*(\d+)\. .*?^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
NOW = SystemClock().now_seconds()
INCIDENT = datetime(2026, 3, 14, 12, tzinfo=UTC).timestamp()
DRILLED = {"store": "state/0/0", "version": "2_0198c0de-0000-4000-8000-000000000001", "rows": 7}
Rows = list[dict[str, Any]]
Ask = Callable[[str], Rows]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tables of two queries. `orders` is drilled and was damaged once; `clicks` has no successful drill."""
    folder = tmp_path_factory.mktemp("history")
    to = str(folder / "tables")
    orders, clicks = (
        KeyedRoot(open_storage(str(folder / name)), folder / "hosts" / name, partitions=1)
        for name in ("orders", "clicks")
    )
    roots = {"orders": orders.storage, "clicks": clicks.storage}
    for root in (orders, clicks):
        root.grow(1, keys=2)
    a_run(
        orders.storage,
        "gc",
        INCIDENT,
        plan=[
            {"head": 2},
            {"delete": "state/0/0/1.zip", "rule": "superseded"},
            {"delete": "commits/0", "rule": "old_log"},
        ],
        outcome=[{"store": "state/0/0", "outcome": "done", "files": 1, "bytes": 500}, {"outcome": "changed"}],
    )
    a_run(
        orders.storage,
        "optimize",
        INCIDENT + 30,
        plan=[
            {"table": "s3://prod/sales", "table_version": 5, "kept_from": 3, "oldest_batch": 1, "merges": 4},
            {"delete": "part-1.parquet", "bytes": 10, "rule": "unneeded"},
            {"delete": "part-2.parquet", "bytes": 10, "rule": "unneeded"},
        ],
        outcome=[
            {"outcome": "committed", "merged": 4, "bytes": 40, "made": 1, "made_bytes": 30, "version": 6},
            {"outcome": "done", "files": 1, "bytes": 10, "spared": ["part-2.parquet"]},
        ],
    )
    a_run(clicks.storage, "publish", INCIDENT, plan=[{"batch": 3}], outcome=[])
    a_run(orders.storage, "switch", INCIDENT + 60, plan=[{"to": "v2", "batch": 8}], outcome=[])
    good = {**DRILLED, "verdict": "same", "seconds": 4.0, "predicted_seconds": 2.0}
    bad = {**DRILLED, "verdict": "differs", "seconds": 1.0, "predicted_seconds": 1.0}
    assert DrilledStore.decode(good).seconds == 4.0
    a_run(orders.storage, "drill", NOW - 2 * DAY, plan=[], outcome=[good])
    a_run(clicks.storage, "drill", NOW - 20 * DAY, plan=[], outcome=[good])
    a_run(clicks.storage, "drill", NOW - 3 * DAY, plan=[], outcome=[bad])
    failed = FailedRun(failed="the lease is lost", code="lease_lost").encode()
    for hours in (1, 2):
        a_run(clicks.storage, "gc", NOW - hours * 3600, plan=[{"head": 1}], outcome=[failed])
    keeping = {"keep_seconds": NOW - INCIDENT + 40 * DAY}
    a_pass(roots, to, folder / "scratch", clock=SleeplessClock(NOW - 2 * DAY), **keeping)
    orders.grow(2, keys=50)
    a_pass(roots, to, folder / "scratch", clock=SleeplessClock(NOW), restore_target_seconds=1e-9, **keeping)
    return to


@pytest.fixture(params=["deltalake", "duckdb", pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.spark])])
def ask(request: pytest.FixtureRequest, place: str) -> Iterator[Ask]:
    """Asks the tables with an engine."""
    if request.param == "deltalake":
        yield lambda query: asked(query, place)
        return
    if request.param == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for name, table in tables_at(place).items():
                connection.register(name, table.to_pyarrow_table())
            yield lambda query: connection.sql(query).to_arrow_table().to_pylist()
        return
    session = request.getfixturevalue("delta_session")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for name in TABLES:
        session.read.format("delta").load(f"{place}/{name}").createOrReplaceTempView(name)
    yield lambda query: [row.asDict() for row in session.sql(query).collect()]


def test_each_query_of_the_page_has_its_answer(ask: Ask) -> None:
    answers = {number: ask(query) for number, query in QUERIES.items()}
    assert list(answers) == [str(number) for number in range(1, 11)]

    assert [(row["query"], row["team"]) for row in answers["1"]] == [("clicks", "payments")]
    assert answers["1"][0]["last_drill"].timestamp() == pytest.approx(NOW - 20 * DAY, abs=1)

    assert [(row["query"], row["path"], row["reason"]) for row in answers["2"]] == [
        ("orders", "state/0/0/1.zip", "superseded"),
        ("orders", "part-1.parquet", "unneeded"),
    ]

    months = {row["month"]: row for row in answers["3"]}
    assert {row["team"] for row in answers["3"]} == {"payments"}
    assert months["2026-03"]["runs"] > 0
    assert months[datetime.fromtimestamp(NOW, UTC).strftime("%Y-%m")]["examinations"] > 0

    assert [(row["query"], row["verb"], row["error_code"], row["times"]) for row in answers["4"]] == [
        ("clicks", "gc", "lease_lost", 2)
    ]

    assert [(row["verb"], row["outcome"], row["batch"], row["files_deleted"]) for row in answers["5"]] == [
        ("gc", "done", 1, 1),
        ("optimize", "done", None, 1),
        ("switch", "done", 8, None),
    ]

    assert [row["query"] for row in answers["6"]] == ["orders", "clicks"]
    assert answers["6"][0]["grown"] > 0
    assert answers["6"][1]["grown"] == 0

    assert [(row["month"], row["query"], row["files"], row["bytes"]) for row in answers["7"]] == [
        ("2026-03", "orders", 1, 500)
    ]

    assert [(row["query"], row["days"]) for row in answers["8"]] == [("clicks", 1), ("orders", 1)]

    assert [(row["query"], row["verb"]) for row in answers["9"]] == [("orders", "switch")]

    assert [(row["query"], row["stores_drilled"], row["ratio"]) for row in answers["10"]] == [
        ("clicks", 1, 2.0),
        ("clicks", 1, 1.0),
        ("orders", 1, 2.0),
    ]
    assert all(isinstance(row["day"], date) for row in answers["10"])


def test_the_query_of_changes_has_the_verbs_that_the_report_has() -> None:
    assert re.findall(r"'([a-z]+)'", QUERIES["9"]) == list(CHANGES_STATE)


@pytest.mark.parametrize(("table", "schema"), [("runs", RUNS), ("steps", STEPS), ("health", HEALTH)])
def test_the_page_names_each_column(table: str, schema: Any) -> None:
    [section] = re.findall(rf"^### {table}\n(.*?)^##", PAGE, re.MULTILINE | re.DOTALL)
    [shared] = re.findall(r"^## The tables .*?$(.*?)^###", PAGE, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(\w+)`", section)) | set(re.findall(r"`(\w+)`", shared))
    assert set(schema.names) - named == set()
