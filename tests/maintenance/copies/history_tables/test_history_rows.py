"""The rows of a run say what it did."""

from __future__ import annotations

import importlib
import json
import pkgutil
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.copies.history_tables import CHANGES_STATE, About, RunFiles, run_rows
from statekeeper.statestore.maintenance.copies.history_tables.rows import Row
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.upkeep.sink_tables import (
    FileRule,
    Merged,
    Outcome,
    Removed,
    SinkFacts,
    SinkPlan,
)
from statekeeper.statestore.maintenance.upkeep.sink_tables.model import FileVerdict
from statekeeper.statestore.maintenance.verbs import history
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Verb
from statekeeper.statestore.maintenance.verbs.history import Source, read_together
from statekeeper.statestore.maintenance.verbs.optimize import Optimize, PlannedSink
from statekeeper.statestore.storage import Entry, open_storage
from statekeeper.statestore.storage.query_metrics import Prices
from tests.support.clocks import SleeplessClock
from tests.support.histories import asked
from tests.support.keyed_roots import KeyedRoot

ABOUT = About(root="s3://prod/orders", query="orders", team="payments", prices=Prices())
MAINTAIN_OR_COPY = {"snapshot", "gc", "drill", "mirror", "optimize", "publish", "savepoint", "clone", "unpack"}


def rows_of(verb: str, plan: list[Json], outcome: list[Json]) -> tuple[Row, list[Row]]:
    name = f"20260101T000000Z-{verb}-{'a' * 36}"
    files = RunFiles(
        name=name, verb=verb, started_seconds=0.0, plan=Entry("plan", 1, 0), outcome=Entry("outcome", 1, 0)
    )
    planned, done = ("\n".join(map(json.dumps, lines)).encode() for lines in (plan, outcome))
    row, steps, problems = run_rows(ABOUT, files, planned, done)
    assert problems == []
    return row, list(steps)


def of_optimize(folder: Path, *paths: str) -> tuple[Optimize, list[Json]]:
    """The verb, and its record of a plan that deletes these files."""
    facts = SinkFacts(
        root=ABOUT.root,
        table="s3://prod/sales",
        query_ids=frozenset(),
        oldest=1,
        newest=9,
        version=5,
        oldest_readable=0,
        metadata={},
        protocol={},
        held=9,
        others=frozenset(),
        unmergeable=None,
        restored=3,
        restored_age_seconds=0.0,
        for_readers=3,
        live=(),
        last_versions={},
        interrupted=frozenset(),
        listed=(),
        keep_seconds=0.0,
        now_seconds=0.0,
    )
    verdicts = tuple(FileVerdict(path, 10, FileRule.UNNEEDED) for path in paths)
    plan = SinkPlan(bins=(), verdicts=verdicts, kept_from=3, small_files=0)
    verb = Optimize(destination=facts.table)
    return verb, verb.record(
        PlannedSink(mode=Mode.FULL, destination=open_storage(str(folder)), gathered=facts, plan=plan)
    )


def test_the_rows_of_optimize_name_each_deleted_and_each_spared_file(tmp_path: Path) -> None:
    verb, plan = of_optimize(tmp_path, "part-1.parquet", "part-2.parquet", "state/0/0/part-3.parquet")
    merged = Merged(outcome=Outcome.COMMITTED, bins=1, files=4, size_bytes=40, made=1, made_bytes=30, version=6)
    steps = (merged, Removed(files=2, size_bytes=20, spared=("part-2.parquet",)))
    row, rows = rows_of("optimize", plan, [line for step in steps if (line := verb.record_step(step)) is not None])
    assert (row["outcome"], row["files_deleted"], row["bytes_deleted"]) == ("done", 2, 20)
    assert [(one["path"], one["reason"], one["outcome"]) for one in rows if one["path"]] == [
        ("part-1.parquet", "unneeded", "deleted"),
        ("part-2.parquet", "unneeded", "spared"),
        ("state/0/0/part-3.parquet", "unneeded", "deleted"),
    ]
    assert [(one["outcome"], one["files"], one["bytes"]) for one in rows if one["part"] == "outcome"] == [
        ("committed", 4, 40),
        ("done", 2, 20),
    ]


def test_a_file_of_an_optimize_that_died_is_not_said_to_be_deleted(tmp_path: Path) -> None:
    verb, plan = of_optimize(tmp_path, "part-1.parquet", "part-2.parquet")
    done = verb.record_step(Removed(files=1, size_bytes=10))
    row, rows = rows_of("optimize", plan, [done or {}, {"failed": "the lease is lost", "code": "lease_lost"}])
    assert (row["outcome"], row["files_deleted"]) == ("failed", 1)
    assert [one["outcome"] for one in rows if one["path"]] == ["unknown", "unknown"]


def test_the_first_batch_of_a_query_is_in_its_row() -> None:
    assert rows_of("publish", [{"batch": 0}], [])[0]["batch"] == 0
    assert rows_of("publish", [{"batch": 0}], [{"batch": 4}])[0]["batch"] == 4
    assert rows_of("publish", [], [])[0]["batch"] is None


def test_the_rows_of_a_plan_with_many_files_are_not_in_memory_together() -> None:
    plan = b"".join(b'{"delete": "state/0/0/%d.zip", "rule": "superseded"}\n' % number for number in range(20_000))
    files = RunFiles(
        name=f"20260101T000000Z-gc-{'a' * 36}", verb="gc", started_seconds=0.0, plan=Entry("plan", len(plan), 0)
    )
    _, steps, _ = run_rows(ABOUT, files, plan, None)
    tracemalloc.start()
    try:
        assert sum(step["reason"] == "superseded" for step in steps) == 20_000
        # All rows need some 50 MB.
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_records_are_read_together_up_to_a_number_of_runs_and_of_bytes() -> None:
    def of(*sizes: int) -> list[RunFiles]:
        return [
            RunFiles(name=str(number), verb="gc", started_seconds=0.0, plan=Entry("plan", size, 0))
            for number, size in enumerate(sizes)
        ]

    mib = 1024 * 1024
    runs = of(*[6 * mib] * 5, 100 * mib, 1, *[1] * 300)
    blocks = list(read_together(runs))
    assert [one for block in blocks for one in block] == runs
    assert list(map(len, blocks)) == [2, 2, 1, 1, 200, 101]


def test_a_pass_across_midnight_adds_the_health_of_the_day_on_which_it_began(tmp_path: Path) -> None:
    root = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "hosts", partitions=1)
    root.grow(1, keys=2)
    midnight, to = datetime(2026, 3, 15, tzinfo=UTC).timestamp(), str(tmp_path / "tables")
    sources = [Source(name="orders", storage=root.storage, policies=Policies())]
    facts = history.gather(to, sources, open_storage, clock=SleeplessClock(midnight - 5))
    made = history.execute(history.plan(facts), scratch=tmp_path, clock=SleeplessClock(midnight + 5), ids=RandomIds())
    assert made.written["health"].rows == 1
    [row] = asked("select run, day, month, examined_at from health", to)
    assert (row["run"], row["day"], row["month"]) == ("2026-03-14", date(2026, 3, 14), "2026-03")
    assert row["examined_at"].timestamp() == midnight + 5


def test_each_verb_changes_the_state_or_is_known_not_to() -> None:
    for module in pkgutil.iter_modules(verbs.__path__, f"{verbs.__name__}."):
        importlib.import_module(module.name)
    # The name of a reversal is that of what it reverses.
    found = {one.name for one in below(Verb) if isinstance(one.name, str) and one.name}
    found |= {kind.value for kind in RewriteKind}
    assert found == {*CHANGES_STATE, *MAINTAIN_OR_COPY}
    assert MAINTAIN_OR_COPY.isdisjoint(CHANGES_STATE)


def below(one: type) -> Iterator[type]:
    for sub in one.__subclasses__():
        yield sub
        yield from below(sub)
