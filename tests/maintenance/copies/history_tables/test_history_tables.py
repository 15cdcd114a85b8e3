"""The tables of history: each run of each root is in them once, whatever happens between two passes."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import DestinationNotEmpty, RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records.history import FailedRun, History
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs import history
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.retention import Retention
from statekeeper.statestore.maintenance.verbs.snapshot import Snapshot
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support import verbs
from tests.support.clocks import SleeplessClock
from tests.support.drills import drilled
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.histories import DAY, TABLES, a_pass, a_run, asked, tables_at
from tests.support.keyed_roots import KeyedRoot
from tests.support.s3_server import S3Server

NOW = SystemClock().now_seconds()
POLICIES = Policies(mode=Mode.FULL, retention=RetentionPolicy(versions=1, grace_seconds=0.0))
DELETED = [{"store": "state/0/0", "outcome": "done", "files": 1, "bytes": 10}]
PLANNED = [{"head": 7}, {"delete": "state/0/0/1.zip", "rule": "superseded"}]


@pytest.fixture(scope="module")
def maintained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose files were deleted by gc, and that was drilled."""
    folder = tmp_path_factory.mktemp("maintained")
    root = KeyedRoot(open_storage(str(folder / "root")), folder / "hosts", partitions=1)
    for _ in range(2):
        root.grow(2, keys=3)
        perform(prepare(Snapshot(take_all=True), verbs.a_run(root.storage, POLICIES, scratch=folder)))
    perform(prepare(Retention(), verbs.a_run(root.storage, POLICIES, scratch=folder)))
    drilled(root.storage, folder)
    return folder / "root"


@pytest.fixture
def root(maintained: Path, tmp_path: Path) -> Storage:
    shutil.copytree(maintained, tmp_path / "root")
    return open_storage(str(tmp_path / "root"))


def names_of_runs(storage: Storage) -> set[str]:
    return {entry.path.removeprefix(f"{names.HISTORY}/").partition(".")[0] for entry in storage.list(names.HISTORY)}


def require_once(to: str, storage: Storage) -> None:
    """Require that each run, each step and each day of a root is in the tables once."""
    runs = Counter(row["run"] for row in asked("select run from runs", to))
    assert dict(runs) == dict.fromkeys(names_of_runs(storage), 1)
    steps = Counter(
        (row["run"], row["part"], row["number"]) for row in asked("select run, part, number from steps", to)
    )
    lines = {
        (entry.path.removeprefix(f"{names.HISTORY}/").partition(".")[0], entry.path.split(".")[-2], number): 1
        for entry in storage.list(names.HISTORY)
        for number, _ in enumerate(storage.read(entry.path).splitlines())
    }
    assert dict(steps) == lines
    assert len(asked("select day from health", to)) == 1


def test_each_run_is_in_the_tables_once_with_its_figures(root: Storage, tmp_path: Path) -> None:
    to = str(tmp_path / "tables")
    first = a_pass({"orders": root}, to, tmp_path)
    assert first.problems == {}
    require_once(to, root)
    runs = {row["verb"]: row for row in asked("select * from runs order by run", to)}
    assert {row["outcome"] for row in runs.values()} == {"done"}
    assert {(row["root"], row["query"], row["team"]) for row in runs.values()} == {(root.url, "orders", "payments")}
    gc, drill, snapshot = runs["gc"], runs["drill"], runs["snapshot"]
    assert gc["files_deleted"] > 0
    assert gc["stored_bytes"] > gc["bytes_deleted"] > 0
    assert drill["stores_drilled"] == 2
    assert drill["drill_findings"] == 0
    assert drill["batch"] == 3
    assert snapshot["snapshots"] == 2
    assert snapshot["bytes_written"] > 0
    for row in runs.values():
        assert row["ended_at"] is not None
        assert row["write_requests"] >= 2
        assert row["dollars"] > 0
    deleted = asked("select path, reason, outcome from steps where verb = 'gc' and path is not null", to)
    assert len(deleted) == gc["files_deleted"]
    assert {row["outcome"] for row in deleted} == {"deleted"}
    assert {row["path"] for row in deleted}.isdisjoint(entry.path for entry in root.list(""))
    [health] = asked("select * from health", to)
    assert (health["outcome"], health["batch"], health["stores"]) == ("OK", 3, 2)
    assert health["bytes"] > 0


def test_a_second_pass_adds_nothing_and_a_third_one_only_the_new_run(root: Storage, tmp_path: Path) -> None:
    to = str(tmp_path / "tables")
    a_pass({"orders": root}, to, tmp_path)
    again = a_pass({"orders": root}, to, tmp_path)
    assert {one.rows for one in again.written.values()} == {0}
    assert not again.plan.has_work
    a_run(root, "gc", NOW + 5, plan=PLANNED, outcome=DELETED)
    third = a_pass({"orders": root}, to, tmp_path)
    assert {name: one.rows for name, one in third.written.items()} == {"steps": 4, "runs": 1, "health": 0}
    require_once(to, root)


def test_a_large_record_is_read_from_the_local_disk_with_the_same_rows(
    root: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for to in ("in memory", "on disk"):
        a_pass({"orders": root}, str(tmp_path / to), tmp_path / "scratch")
        found.append([asked(f"select * from {name} order by run", str(tmp_path / to)) for name in ("runs", "steps")])
        monkeypatch.setattr(history, "_BYTES_AT_ONCE", 1)
    assert found[0] == found[1]
    assert list((tmp_path / "scratch").iterdir()) == []
    require_once(str(tmp_path / "on disk"), root)


def test_a_root_with_two_names_is_read_once_and_the_tables_of_two_roots_are_the_same(
    root: Storage, tmp_path: Path
) -> None:
    to = str(tmp_path / "tables")
    a_pass({"orders": root, "the same": open_storage(root.url)}, to, tmp_path)
    assert len(asked("select run from runs", to)) == len(names_of_runs(root))
    shutil.copytree(tmp_path / "root", tmp_path / "second")
    a_pass({"second": open_storage(str(tmp_path / "second"))}, to, tmp_path)
    assert len(asked("select run from runs", to)) == 2 * len(names_of_runs(root))


def test_a_run_that_dies_is_unfinished_and_its_late_outcome_replaces_it(root: Storage, tmp_path: Path) -> None:
    to, began = str(tmp_path / "tables"), NOW - 3 * DAY
    dead = History.begin(root, "gc", RandomIds().fresh(), SleeplessClock(began))
    dead.plan(PLANNED)
    running = History.begin(root, "gc", RandomIds().fresh(), SleeplessClock(NOW - 60))
    running.plan(PLANNED)
    first = a_pass({"orders": root}, to, tmp_path)
    assert first.plan.waiting == 1
    of_dead = f"where run_id = '{dead.run}'"
    assert [row["outcome"] for row in asked(f"select outcome from runs {of_dead}", to)] == ["unfinished"]
    assert [row["outcome"] for row in asked(f"select outcome from steps {of_dead} and path is not null", to)] == [None]
    assert asked(f"select run from runs where run_id = '{running.run}'", to) == []
    again = a_pass({"orders": root}, to, tmp_path)
    assert not again.plan.has_work
    dead.outcome([*DELETED, FailedRun(failed="the lease is lost", code="lease_lost").encode()])
    running.outcome(DELETED)
    third = a_pass({"orders": root}, to, tmp_path)
    assert third.written["runs"].replaced_runs == third.written["steps"].replaced_runs == 1
    [row] = asked(f"select outcome, error_code, error from runs {of_dead}", to)
    assert row == {"outcome": "failed", "error_code": "lease_lost", "error": "the lease is lost"}
    assert [row["outcome"] for row in asked(f"select outcome from steps {of_dead} and path is not null", to)] == [
        "deleted"
    ]
    require_once(to, root)


def test_a_root_that_cannot_be_read_again_keeps_its_unfinished_run(root: Storage, tmp_path: Path) -> None:
    to = str(tmp_path / "tables")
    dead = History.begin(root, "gc", RandomIds().fresh(), SleeplessClock(NOW - 3 * DAY))
    dead.plan(PLANNED)
    a_pass({"orders": root}, to, tmp_path)
    dead.outcome(DELETED)
    listing = FaultyStorage(root)
    a_pass({"orders": listing}, str(tmp_path / "rehearsal"), tmp_path)
    first_read = next(one.number for one in listing.trace if one.kind is Kind.READ)
    failed = a_pass({"orders": FaultyStorage(root, {first_read: Fault.LOST_REPLY})}, to, tmp_path)
    assert set(failed.problems) == {"orders"}
    of_dead = f"select outcome from runs where run_id = '{dead.run}'"
    assert asked(of_dead, to) == [{"outcome": "unfinished"}]
    a_pass({"orders": root}, to, tmp_path)
    require_once(to, root)


def test_a_damaged_record_is_told_and_the_other_runs_are_added(root: Storage, tmp_path: Path) -> None:
    to = str(tmp_path / "tables")
    path = names.history("20260101T000000Z", "gc", RandomIds().fresh(), "plan")
    root.create(path, b'{"head": 7')
    root.create(names.outcome_of(path), json.dumps(DELETED[0] | {"bytes": "many", "spared": 5}).encode())
    lost = {"orders": root, "lost": open_storage(str(tmp_path / "nothing"))}
    made = a_pass(lost, to, tmp_path)
    assert [path in problem for problem in made.damaged] == [True]
    assert set(made.problems) == {"lost"}
    rows = {row["outcome"]: row["n"] for row in asked("select outcome, count(*) n from runs group by outcome", to)}
    assert rows == {"done": len(names_of_runs(root)) - 1, "damaged": 1}


def test_old_months_leave_the_tables_and_are_not_added_again(root: Storage, tmp_path: Path) -> None:
    to = str(tmp_path / "tables")
    a_run(root, "gc", NOW - 100 * DAY, plan=PLANNED, outcome=DELETED)
    a_pass({"orders": root}, to, tmp_path)
    count = len(names_of_runs(root))
    assert len(asked("select run from runs", to)) == count
    shorter = a_pass({"orders": root}, to, tmp_path, keep_seconds=40 * DAY)
    assert (shorter.written["runs"].expired_rows, shorter.written["steps"].expired_rows) == (1, 4)
    assert len(asked("select run from runs", to)) == count - 1
    again = a_pass({"orders": root}, to, tmp_path, keep_seconds=40 * DAY)
    assert not again.plan.has_work
    # The file is deleted a week later: a reader may still use the former version.
    files = set(tables_at(to)["runs"].file_uris())
    left = {entry.path for entry in open_storage(f"{to}/runs").list("") if entry.path.startswith("part-")}
    assert len(left) == len(files) + 1
    later = SleeplessClock(NOW + 8 * DAY)
    assert a_pass({"orders": root}, to, tmp_path, clock=later, keep_seconds=60 * DAY).written["runs"].deleted_files == 1


def test_small_files_are_merged_and_the_rows_stay(root: Storage, tmp_path: Path) -> None:
    to = str(tmp_path / "tables")
    for number in range(9):
        a_run(root, "gc", NOW - number, plan=PLANNED, outcome=DELETED)
        made = a_pass({"orders": root}, to, tmp_path)
    assert len(tables_at(to)["runs"].file_uris()) < 9
    assert made.written["runs"].version >= 8
    require_once(to, root)


def test_a_location_of_another_program_is_refused(root: Storage, tmp_path: Path) -> None:
    (tmp_path / "files" / "runs").mkdir(parents=True)
    (tmp_path / "files" / "runs" / "notes.txt").write_text("mine")
    with pytest.raises(DestinationNotEmpty, match=r"notes\.txt"):
        a_pass({"orders": root}, str(tmp_path / "files"), tmp_path)
    to = str(tmp_path / "tables")
    a_pass({"orders": root}, to, tmp_path)
    tables_at(to)["runs"].alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(RefusedAsUnsafe, match="features of Delta"):
        a_pass({"orders": root}, to, tmp_path)


def test_of_two_passes_at_the_same_time_one_is_refused_and_its_rerun_adds_nothing_twice(
    root: Storage, tmp_path: Path
) -> None:
    to = str(tmp_path / "tables")
    a_pass({"orders": root}, to, tmp_path)
    a_run(root, "gc", NOW + 5, plan=PLANNED, outcome=DELETED)
    raced = False

    def open_table(url: str) -> Storage:
        nonlocal raced
        found = open_storage(url)
        if url.endswith("/health") and not raced:
            # The other pass commits when this one has read the tables, of which `health` is the last one.
            raced = True
            found.list("")
            a_pass({"orders": root}, to, tmp_path)
        return found

    with pytest.raises(RefusedAsUnsafe, match="another program has committed"):
        a_pass({"orders": root}, to, tmp_path, open_table=open_table)
    a_pass({"orders": root}, to, tmp_path)
    require_once(to, root)


WRITES = (Kind.CREATE, Kind.REPLACE, Kind.DELETE)


@pytest.mark.parametrize("table", TABLES)
def test_after_a_crash_at_any_write_of_a_table_a_second_pass_completes_it(
    table: str, root: Storage, tmp_path: Path
) -> None:
    base = str(tmp_path / "base")
    dead = History.begin(root, "gc", RandomIds().fresh(), SleeplessClock(NOW - 3 * DAY))
    dead.plan(PLANNED)
    a_pass({"orders": root}, base, tmp_path, clock=SleeplessClock(NOW - DAY))
    dead.outcome(DELETED)
    a_run(root, "gc", NOW - 100, plan=PLANNED, outcome=DELETED)

    def play(number: int, fault: Fault | None) -> FaultyStorage:
        to = str(tmp_path / f"{number}-{fault and fault.name}")
        shutil.copytree(base, to)
        faulty: list[FaultyStorage] = []

        def open_table(url: str) -> Storage:
            found = open_storage(url)
            if not url.endswith(f"/{table}"):
                return found
            faulty.append(FaultyStorage(found, {} if fault is None else {number: fault}))
            return faulty[0]

        try:
            a_pass({"orders": root}, to, tmp_path, open_table=open_table)
        except (SimulatedCrash, StatekeeperError):
            assert fault is not None
        # What is in the tables now is right, but perhaps not complete.
        runs = Counter(row["run"] for row in asked("select run from runs", to))
        assert max(runs.values()) == 1
        done = a_pass({"orders": root}, to, tmp_path)
        assert done.problems == {}
        assert len(asked("select day from health", to)) == 2
        runs_of_health = asked("select run from health", to)
        assert len({row["run"] for row in runs_of_health}) == 2
        assert {row["outcome"] for row in asked("select outcome from runs", to)} == {"done"}
        counts = asked("select count(*) n, count(distinct run) m from runs", to)
        assert counts == [{"n": len(names_of_runs(root)), "m": len(names_of_runs(root))}]
        [steps] = asked("select count(*) n, count(distinct concat(run, part, cast(number as string))) m from steps", to)
        assert steps["n"] == steps["m"]
        return faulty[0]

    writes = [one for one in play(-1, None).trace if one.kind in WRITES]
    assert len(writes) >= 2
    for one in writes:
        for fault in (Fault.AFTER, Fault.TORN if one.tears else Fault.BEFORE, Fault.LOST_REPLY):
            play(one.number, fault)


def test_the_tables_in_a_bucket_have_each_run_once(maintained: Path, tmp_path: Path, s3_server: S3Server) -> None:
    to, root = f"s3://{s3_server.make_bucket()}/history", open_storage(str(maintained))

    def open_table(url: str) -> Storage:
        return open_storage(url, options=s3_server.options)

    for _ in range(2):
        a_pass({"orders": root}, to, tmp_path, open_table=open_table)
    # deltalake does not answer while the server of this process must.
    for name in TABLES:
        table, copied = open_table(f"{to}/{name}"), open_storage(str(tmp_path / "copied" / name))
        for entry in table.list(""):
            copied.create(entry.path, table.read(entry.path))
    require_once(str(tmp_path / "copied"), root)
