"""A savepoint with rows beside retention, other runs and a full disk: holds, leases, stale plans, scratch space."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import (
    LeaseLost,
    LocalDiskFull,
    RefusedAsUnsafe,
    RootHeld,
    StorageError,
    VersionNotLoadable,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names, savepoint_names
from statekeeper.statestore.format.savepoint_names import BEGUN, MANIFEST
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.savepoints.write import FILE_BYTES
from statekeeper.statestore.maintenance.records import holds, lease
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.clones import FULL, Roots, made, own
from tests.support.commands import statekeeper
from tests.support.maintained_query import Query
from tests.support.maintainers import MAINTAINER
from tests.support.savepoints import kept, manifest, recomputed, saved

HOLD = Hold(batch=7, holder="a test", verb="savepoint")


def held(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list(savepoint_names.HOLDS)]


def outgrow(query: Query) -> None:
    """Batches and snapshots after batch 7, so that retention would delete that batch."""
    for _ in range(2):
        query.grow(5)
        query.snapshot()


def commits(storage: Storage) -> list[int]:
    return sorted(int(entry.path.rpartition("/")[2]) for entry in storage.list(names.COMMITS))


# -- holds -------------------------------------------------------------------------------------------------------------


def test_retention_keeps_the_batch_that_a_savepoint_reads(disks: Roots, tmp_path: Path) -> None:
    """The query continues and retention runs after the first piece of rows."""
    source, destination = disks
    query = own(source, tmp_path)
    prepared = verbs.savepoint.plan_rows(source, destination, MAINTAINER)
    began: list[list[str]] = []

    def wrote(_: int) -> None:
        if not began:
            began.append(held(source))
            outgrow(query)
            query.gc()
            query.gc()

    verbs.savepoint.execute_rows(
        source, destination, prepared, MAINTAINER, FULL, scratch=tmp_path, wrote=wrote, workers=1
    )
    assert len(began[0]) == 1
    assert commits(source)[0] <= 7
    assert manifest(tmp_path / "clone")["digest"] == recomputed(tmp_path / "clone")
    assert held(source) == []
    query.gc()
    assert commits(source)[0] > 7
    assert query.is_right()


def test_a_plan_of_retention_shows_the_batch_that_is_held(disks: Roots, tmp_path: Path) -> None:
    source, _ = disks
    query = own(source, tmp_path)
    outgrow(query)
    gc = ("gc", tmp_path / "root", "--retain", "3", "--grace", "0s")
    with holds.held(source, HOLD, run=MAINTAINER.ids.fresh(), clock=MAINTAINER.clock):
        shown = statekeeper(*gc, "--output", "json")
        assert json.loads(shown.output)["holds"] == [{"batch": 7, "holder": "a test", "verb": "savepoint"}]
        assert json.loads(shown.output)["floor"] <= 8
        assert "are kept, because a test reads the batch (savepoint)" in statekeeper(*gc).output
    assert json.loads(statekeeper(*gc, "--output", "json").output)["floor"] > 8


def test_retention_stops_if_a_batch_of_its_plan_is_held_since(disks: Roots, tmp_path: Path) -> None:
    source, _ = disks
    query = own(source, tmp_path)
    outgrow(query)
    policies = Policies(mode=Mode.FULL, retention=RetentionPolicy(versions=3, grace_seconds=0.0))
    prepared = verbs.retention.plan(source, policies, clock=MAINTAINER.clock)
    before = commits(source)
    with holds.held(source, HOLD, run=MAINTAINER.ids.fresh(), clock=MAINTAINER.clock):
        with pytest.raises(RefusedAsUnsafe, match="batch 7 is held since the plan was made"):
            verbs.retention.execute(source, prepared, MAINTAINER)
        assert commits(source) == before


def test_a_savepoint_waits_for_a_retention_run_that_may_not_see_its_hold(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    with (
        lease.held(source, "gc", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock),
        pytest.raises(RootHeld, match="for the command gc"),
    ):
        saved(source, destination, tmp_path)
    assert held(source) == []
    saved(source, destination, tmp_path)


def test_a_stalled_retention_run_deletes_nothing_after_a_hold(disks: Roots, tmp_path: Path) -> None:
    source, _ = disks
    own(source, tmp_path)
    stalled = lease.acquire(source, "gc", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock)
    [of_lease] = source.list(names.LEASES)
    then = time.time() - lease.LIFE_SECONDS - 1
    os.utime(tmp_path / "root" / of_lease.path, (then, then))
    with holds.held(source, HOLD, run=MAINTAINER.ids.fresh(), clock=MAINTAINER.clock), pytest.raises(LeaseLost):
        stalled.require()


@pytest.mark.parametrize("age_seconds", [3600.0, holds.LIFE_SECONDS + 60])
def test_the_hold_of_a_dead_run_expires_by_the_clock_of_the_storage(
    disks: Roots, tmp_path: Path, age_seconds: float
) -> None:
    source, _ = disks
    query = own(source, tmp_path)
    run = MAINTAINER.ids.fresh()
    source.create(savepoint_names.hold(run), HOLD.encoded(0))
    then = time.time() - age_seconds
    os.utime(tmp_path / "root" / savepoint_names.hold(run), (then, then))
    outgrow(query)
    query.gc()
    is_expired = age_seconds > holds.LIFE_SECONDS
    assert (commits(source)[0] > 7, held(source) == []) == (is_expired, is_expired)


def test_a_hold_that_cannot_be_read_stops_retention(disks: Roots, tmp_path: Path) -> None:
    source, _ = disks
    query = own(source, tmp_path)
    source.create(savepoint_names.hold(MAINTAINER.ids.fresh()), b'{"batch": -1}')
    with pytest.raises(Exception, match="is not a valid hold of a batch"):
        query.gc()


def test_a_deleted_batch_is_detected_after_the_hold(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    prepared = verbs.savepoint.plan_rows(source, destination, MAINTAINER)
    outgrow(query)
    query.gc()
    query.gc()
    with pytest.raises(VersionNotLoadable) as raised:
        verbs.savepoint.execute_rows(source, destination, prepared, MAINTAINER, FULL, scratch=tmp_path)
    assert "--label" not in (raised.value.hint or "")
    assert held(source) == []


def test_an_observed_source_gets_no_hold_and_advice(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    prepared = verbs.savepoint.plan_rows(source, destination, MAINTAINER)
    seen: list[list[str]] = []
    observed = Policies(mode=Mode.OBSERVE)
    source.delete([entry.path for entry in source.list("state/0/1") if "/8_" in entry.path])
    with pytest.raises(VersionNotLoadable, match="mode observe allows no hold") as raised:
        verbs.savepoint.execute_rows(
            source,
            destination,
            prepared,
            MAINTAINER,
            observed,
            scratch=tmp_path,
            wrote=lambda _: seen.append(held(source)),
        )
    assert f"first save the files: statekeeper savepoint {source.url} FILES --label" in (raised.value.hint or "")
    assert [paths for paths in seen if paths] == []
    del query


# -- timers ------------------------------------------------------------------------------------------------------------


def test_an_action_is_repeated_during_the_work_and_survives_an_error() -> None:
    calls: list[float] = []

    def action() -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise StorageError("is down")

    with SystemClock().every(0.01, action):
        time.sleep(0.3)
    number = len(calls)
    assert number > 2
    time.sleep(0.05)
    assert len(calls) == number


def test_lease_and_hold_are_renewed_during_one_piece_of_work(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    by = replace(MAINTAINER, beat_seconds=0.02)
    renewed: list[tuple[int, int]] = []

    def wrote(_: int) -> None:
        time.sleep(0.3)
        [of_lease] = [json.loads(destination.read(entry.path)) for entry in destination.list(names.LEASES)]
        [of_hold] = [json.loads(source.read(path)) for path in held(source)]
        renewed.append((of_lease["beat"], of_hold["renewals"]))

    prepared = verbs.savepoint.plan_rows(source, destination, by)
    verbs.savepoint.execute_rows(source, destination, prepared, by, FULL, scratch=tmp_path, wrote=wrote, workers=1)
    assert renewed[0][0] > 0
    assert renewed[0][1] > 0


# -- stale plans -------------------------------------------------------------------------------------------------------


class Disturbed:
    """A destination whose records of stores cannot be written, or that dies after the deletion of files of tables."""

    def __init__(self, inner: Storage, *, without_records: bool) -> None:
        self._inner = inner
        self._without_records = without_records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes | Path, **whose: str | None) -> object:
        if self._without_records and path.startswith(f"{names.CONTROL}/rows/0-"):
            raise StorageError("is down", path=path)
        return self._inner.create(path, data, **whose)


def test_a_stale_plan_deletes_no_file_of_a_savepoint_that_another_run_has_completed(
    disks: Roots, tmp_path: Path
) -> None:
    source, destination = disks
    own(source, tmp_path)
    with pytest.raises(StorageError, match="is down"):
        saved(source, Disturbed(destination, without_records=True), tmp_path)
    stale = verbs.savepoint.plan_rows(source, destination, MAINTAINER)
    assert len(stale.plan.leftovers) == 2
    saved(source, destination, tmp_path)
    before = {entry.path: entry for entry in destination.list("") if not entry.path.startswith(names.LEASES)}
    verbs.savepoint.execute_rows(source, destination, stale, MAINTAINER, FULL, scratch=tmp_path)
    after = {entry.path: entry for entry in destination.list("") if not entry.path.startswith(names.LEASES)}
    assert after == before


def damaged(destination: Storage, damage: str) -> str:
    path = next(entry.path for entry in destination.list("rows") if entry.path.endswith(".parquet"))
    data = destination.read(path)
    destination.delete([path])
    if damage == "shorter":
        destination.create(path, data[:-1])
    return path


@pytest.mark.parametrize("damage", ["missing", "shorter"])
@pytest.mark.parametrize("has_manifest", [False, True])
def test_a_finished_store_counts_only_with_all_its_files(
    disks: Roots, tmp_path: Path, damage: str, has_manifest: bool
) -> None:
    source, destination = disks
    own(source, tmp_path)
    saved(source, destination, tmp_path)
    whole = destination.read(MANIFEST)
    path = damaged(destination, damage)
    if not has_manifest:
        destination.delete([MANIFEST])
    plan = verbs.savepoint.plan_rows(source, destination, MAINTAINER).plan
    assert (plan.is_complete, len(plan.to_read())) == (False, 1)
    assert (path in plan.leftovers) == (damage == "shorter" and not has_manifest)
    assert bool(plan.leftovers) != has_manifest
    if has_manifest and damage == "shorter":
        with pytest.raises(StorageError, match="other bytes"):
            saved(source, destination, tmp_path)
        return
    saved(source, destination, tmp_path)
    assert destination.read(MANIFEST) == whole
    assert manifest(tmp_path / "clone")["digest"] == recomputed(tmp_path / "clone")


# -- scratch space -----------------------------------------------------------------------------------------------------


def test_a_scratch_disk_that_is_too_small_is_refused_before_anything_is_written(
    disks: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = disks
    own(source, tmp_path)
    plan = verbs.savepoint.plan_rows(source, destination, MAINTAINER).plan
    sizes = sorted(plan.store_bytes.values())
    assert len(sizes) == 2
    assert sizes[0] > 1000
    assert (plan.scratch_bytes(1), plan.scratch_bytes(8)) == (sizes[1] + FILE_BYTES, sum(sizes) + 2 * FILE_BYTES)
    assert plan.table_bytes == sum(sizes)
    verb = ("savepoint", tmp_path / "root", tmp_path / "clone", "--rows", "--scratch", tmp_path, "--workers", 1)
    shown = json.loads(statekeeper(*verb, "--dry-run", "--output", "json").output)
    assert shown["scratch_bytes"] == plan.scratch_bytes(1)
    assert "of local disk in" in statekeeper(*verb, "--dry-run").output
    # The destination is on the same disk.
    needed = plan.scratch_bytes(1) + plan.table_bytes
    monkeypatch.setattr("statekeeper.statestore.maintenance.verbs.savepoint.free_bytes", lambda _: needed - 1)

    def save() -> None:
        prepared = verbs.savepoint.plan_rows(source, destination, MAINTAINER)
        verbs.savepoint.execute_rows(source, destination, prepared, MAINTAINER, FULL, scratch=tmp_path, workers=1)

    with pytest.raises(LocalDiskFull, match=r"workers and the tables on the same disk need .*nothing was written"):
        save()
    assert destination.list("", hidden=True) == []
    assert held(source) == []
    monkeypatch.setattr("statekeeper.statestore.maintenance.verbs.savepoint.free_bytes", lambda _: needed)
    save()


def test_a_disk_of_the_destination_that_is_too_small_is_refused_before_anything_is_written(
    disks: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = disks
    own(source, tmp_path)
    needed = verbs.savepoint.plan_rows(source, destination, MAINTAINER).plan.table_bytes
    free = shutil.disk_usage(tmp_path)
    verb = ("savepoint", tmp_path / "root", tmp_path / "clone", "--rows", "--scratch", tmp_path, "--output", "json")
    monkeypatch.setattr("shutil.disk_usage", lambda _: free._replace(free=needed - 1))
    failed = statekeeper(*verb)
    assert json.loads(failed.stdout)["error"]["code"] == "local_disk_full", failed.output
    assert f"{needed - 1:,} bytes of free space, but the tables need about {needed:,}" in failed.output
    assert statekeeper(*verb, "--dry-run").exit_code == 3
    assert destination.list("", hidden=True) == []
    assert held(source) == []
    # Stores that an earlier run has finished need no space.
    monkeypatch.undo()
    with pytest.raises(StorageError, match="is down"):
        saved(source, Disturbed(destination, without_records=True), tmp_path)
    left = verbs.savepoint.plan_rows(source, destination, MAINTAINER).plan.table_bytes
    assert 0 < left <= needed
    saved(source, destination, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free._replace(free=0))
    assert verbs.savepoint.plan_rows(source, destination, MAINTAINER).refusals == ()


# -- hostile records ---------------------------------------------------------------------------------------------------


def _replaced(destination: Storage, path: str, field: str, value: object) -> None:
    body = json.loads(destination.read(path))
    place = body if field in body else body["parts"][0]
    place[field] = value
    destination.replace(path, json.dumps(body).encode())
    destination.delete([MANIFEST])


BAD_BEGUN = [
    ("begun_at_ms", 10**18),
    ("begun_at_ms", 10**400),
    ("batch", 10**30),
    ("batch", -3),
    ("run", "no uuid"),
    ("state", "x"),
    ("source", None),
]
BAD_FINISHED = [
    ("digest", "xyz"),
    ("rows", 10**400),
    ("rows", -1),
    ("table", "rows/9/zz"),
    ("files", [{"path": "../../x", "rows": 1, "bytes": 1}]),
    ("files", [{"path": "rows/0/default/part-00007-000.parquet", "rows": 1, "bytes": 1}]),
]
BAD = [(BEGUN, *bad) for bad in BAD_BEGUN] + [(f"{names.CONTROL}/rows/0-0-default.json", *bad) for bad in BAD_FINISHED]


@pytest.mark.parametrize(("path", "field", "value"), BAD, ids=[f"{one[1]} {str(one[2])[:30]}" for one in BAD])
def test_a_record_with_a_bad_value_is_a_typed_error(
    disks: Roots, tmp_path: Path, path: str, field: str, value: object
) -> None:
    source, destination = disks
    own(source, tmp_path)
    saved(source, destination, tmp_path)
    _replaced(destination, path, field, value)
    before = destination.list("", hidden=True)
    failed = statekeeper("savepoint", tmp_path / "root", tmp_path / "clone", "--rows", "--output", "json")
    assert (failed.exit_code, json.loads(failed.stdout)["error"]["code"]) == (1, "corrupt_file"), failed.output
    assert destination.list("", hidden=True) == before


@pytest.mark.parametrize("spoilt", [{"rows": -1}, {"digest": "x"}, {"tables": [{}]}, {"bytes": 2**63}])
def test_a_manifest_with_a_bad_value_is_a_typed_error(disks: Roots, tmp_path: Path, spoilt: dict[str, object]) -> None:
    source, destination = disks
    own(source, tmp_path)
    saved(source, destination, tmp_path)
    destination.replace(MANIFEST, json.dumps({**json.loads(destination.read(MANIFEST)), **spoilt}).encode())
    failed = statekeeper("savepoint", tmp_path / "root", tmp_path / "clone", "--rows", "--output", "json")
    assert (failed.exit_code, json.loads(failed.stdout)["error"]["code"]) == (1, "corrupt_file"), failed.output


def test_rows_of_a_savepoint_with_files_are_saved_from_there(disks: Roots, tmp_path: Path) -> None:
    """The advice for an observed source."""
    source, destination = disks
    made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    kept(source, destination, tmp_path)
    saved(destination, open_storage(str(tmp_path / "rows of it")), tmp_path)
    assert catalog.newest_batch(destination) == manifest(tmp_path / "rows of it")["batch"] == 7
