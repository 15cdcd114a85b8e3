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
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.copies.history_tables import CHANGES_STATE, About, RunFiles, run_rows, runs_in
from statekeeper.statestore.maintenance.copies.history_tables.rows import Row
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.verbs import history
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.contract import Verb
from statekeeper.statestore.maintenance.verbs.history import Source, read_together
from statekeeper.statestore.storage import Entry, open_storage
from statekeeper.statestore.storage.query_metrics import Prices
from tests.support.clocks import SleeplessClock
from tests.support.histories import asked
from tests.support.keyed_roots import KeyedRoot
from tests.support.sink_tables import FILES, in_days, optimized, written

ABOUT = About(root="s3://prod/orders", query="orders", team="payments", prices=Prices())
MAINTAIN_OR_COPY = {"snapshot", "gc", "drill", "mirror", "optimize", "publish", "savepoint", "clone", "unpack"}


def rows_of(verb: str, plan: list[Json], outcome: list[Json]) -> tuple[Row, list[Row]]:
    name = f"20260101T000000Z-{verb}-{'a' * 36}"
    files = RunFiles(
        name=name, verb=verb, started_seconds=0.0, plan=Entry("plan", 1, 0), outcome=Entry("outcome", 1, 0)
    )
    planned, done = ("\n".join(map(json.dumps, lines)).encode() for lines in (plan, outcome))
    row, steps, problems = run_rows(ABOUT, files, planned.splitlines, done.splitlines)
    assert problems == []
    return row, list(steps)


def test_the_rows_of_optimize_name_each_deleted_file(tmp_path: Path) -> None:
    made, scratch = written(tmp_path, 2), tmp_path / "scratch"
    optimized(made, scratch)
    made.grow(1)
    made.retain(1, scratch)
    before = made.data_files()
    optimized(made, scratch, by=in_days(30), no_compact=True)
    deleted = before - made.data_files()
    assert len(deleted) == 2 * FILES
    storage = made.root.storage
    merging, deleting = (run for run in runs_in(storage.list(names.HISTORY)) if run.verb == "optimize")

    def read(run: RunFiles) -> tuple[Row, list[Row]]:
        assert run.plan is not None
        assert run.outcome is not None
        row, steps, _ = run_rows(
            ABOUT, run, storage.read(run.plan.path).splitlines, storage.read(run.outcome.path).splitlines
        )
        return row, list(steps)

    row, steps = read(merging)
    assert (row["outcome"], row["files_deleted"]) == ("done", 0)
    assert [one["files"] for one in steps if one["outcome"] == "committed"] == [2 * FILES]
    row, steps = read(deleting)
    assert (row["outcome"], row["files_deleted"]) == ("done", len(deleted))
    assert row["bytes_deleted"] > 0
    assert {one["path"]: (one["reason"], one["outcome"]) for one in steps if one["path"]} == dict.fromkeys(
        deleted, ("unneeded", "deleted")
    )


def test_a_spared_file_and_one_of_an_optimize_that_died_are_not_said_to_be_deleted() -> None:
    plan: list[Json] = [{"table": "s3://prod/sales", "merges": 0}]
    plan += [
        {"delete": path, "rule": "unneeded"} for path in ("part-1.parquet", "part-2.parquet", "state/0/0/3.parquet")
    ]
    spared: Json = {"outcome": "done", "files": 2, "bytes": 20, "spared": ["part-2.parquet"]}
    row, steps = rows_of("optimize", plan, [spared])
    assert (row["files_deleted"], row["bytes_deleted"]) == (2, 20)
    assert [one["outcome"] for one in steps if one["path"]] == ["deleted", "spared", "deleted"]
    died: Json = {"failed": "the lease is lost", "code": "lease_lost"}
    row, steps = rows_of("optimize", plan, [{"outcome": "done", "files": 1, "bytes": 10, "spared": []}, died])
    assert (row["outcome"], row["files_deleted"]) == ("failed", 1)
    assert [one["outcome"] for one in steps if one["path"]] == ["unknown"] * 3


def test_the_first_batch_of_a_query_is_in_its_row() -> None:
    assert rows_of("publish", [{"batch": 0}], [])[0]["batch"] == 0
    assert rows_of("publish", [{"batch": 0}], [{"batch": 4}])[0]["batch"] == 4
    assert rows_of("publish", [], [])[0]["batch"] is None


def test_the_lines_of_a_plan_with_many_files_are_not_in_memory_together() -> None:
    def lines() -> Iterator[bytes]:
        return (b'{"delete": "state/0/0/%d.zip", "rule": "superseded"}' % number for number in range(10_000))

    files = RunFiles(
        name=f"20260101T000000Z-gc-{'a' * 36}",
        verb="gc",
        started_seconds=0.0,
        plan=Entry("plan", 1, 0),
        outcome=Entry("outcome", 1, 0),
    )
    tracemalloc.start()
    try:
        done = b'{"store": "state/0/0", "files": 10000, "bytes": 1, "outcome": "done"}'
        row, steps, problems = run_rows(ABOUT, files, lines, lambda: [done])
        assert (row["planned_steps"], row["files_deleted"], problems) == (10_000, 10_000, [])
        assert sum(step["outcome"] == "deleted" for step in steps) == 10_000
        # All lines need some 5 MB, and all rows some 25 MB.
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_record_with_a_damaged_line_counts_as_empty() -> None:
    files = RunFiles(name=f"20260101T000000Z-gc-{'a' * 36}", verb="gc", started_seconds=0.0, plan=Entry("plan", 1, 0))
    row, steps, problems = run_rows(ABOUT, files, lambda: [b'{"delete": "state/0/0/1.zip"}', b"{"], None)
    assert (row["outcome"], row["planned_steps"], list(steps), len(problems)) == ("damaged", 0, [], 1)


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
