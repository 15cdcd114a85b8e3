"""Rescales of the checkpoints that Spark wrote: the same rows, each in the partition of its key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import HalfSwitched, RefusedAsUnsafe, StorageError
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.state_conf import shuffle_partitions
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rewrites import whole_stores
from statekeeper.statestore.maintenance.rewrites.whole_stores import Rescale
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.storage.base import Created
from tests.support.clocks import SleeplessClock
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.placed_rows import placed_rows
from tests.support.rescales import FOR_SPARK, abort, all_rows, planned, rescale
from tests.support.switching import WRITES, after_the_dead, contents
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
CHECKPOINTS = sorted(path for path in FIXTURES.glob("spark-*.zip") if "-hdfs-" not in path.stem)
V1, V2 = (next(one for one in CHECKPOINTS if one.stem.endswith(f"{v}-aggregation")) for v in ("v1", "v2"))
ONE_OF = 8
"""CI rescales one of this number of checkpoints to each number of partitions; the slow tests rescale all."""


def _cases() -> list[object]:
    cases = [(path, partitions) for path in CHECKPOINTS for partitions in (1, 3, 7)]
    slow = pytest.mark.slow
    return [
        pytest.param(*case, id=f"{case[0].stem}-{case[1]}", marks=() if number % ONE_OF == 0 else slow)
        for number, case in enumerate(cases)
    ]


def opened(archive: Path, folder: Path) -> Storage:
    return open_storage(str(unpacked(archive, folder)))


@pytest.mark.parametrize(("archive", "partitions"), _cases())
def test_a_rescaled_checkpoint_has_the_same_rows_each_in_the_partition_of_its_key(
    archive: Path, partitions: int, tmp_path: Path
) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage = open_storage(str(checkpoint))
    before, batch = all_rows(checkpoint), catalog.newest_batch(storage)
    assert batch is not None
    already = planned(storage, partitions, tmp_path).is_there
    if already:
        partitions += 1
    rescale(storage, partitions, tmp_path)
    assert all_rows(checkpoint) == before
    placed = placed_rows(checkpoint, tmp_path / "placed")
    assert +placed.elsewhere == {}
    assert len(placed.rows) >= 1
    path = names.offsets(batch + 1)
    assert shuffle_partitions(logs.parse_offsets(storage.read(path), path), path) == partitions
    clean(storage, tmp_path)


def test_the_execution_of_a_plan_with_nothing_to_do_is_rejected(tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)
    before = {entry.path for entry in storage.list("state")}, storage.list(names.COMMITS)
    assert planned(storage, 2, tmp_path).is_there
    with pytest.raises(RefusedAsUnsafe, match="has nothing to do"):
        rescale(storage, 2, tmp_path)
    assert ({entry.path for entry in storage.list("state")}, storage.list(names.COMMITS)) == before


def test_each_operator_has_the_new_number_of_partitions_except_those_over_all_rows(tmp_path: Path) -> None:
    counts = {}
    for operator in ("aggregation-of-all-rows", "aggregation"):
        archive = FIXTURES / f"spark-4.2.0-v1-{operator}.zip"
        storage = opened(archive, tmp_path / archive.stem)
        rescale(storage, 5, tmp_path)
        heads = catalog.heads(storage)
        assert heads is not None
        counts[operator] = len(heads.heads)
    assert counts == {"aggregation-of-all-rows": 1, "aggregation": 5}


@pytest.mark.parametrize("archive", [V1, V2], ids=["V1", "V2"])
def test_rescales_can_be_repeated_up_and_down(archive: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    for partitions in (8, 20, 3, 2):
        rescale(storage, partitions, tmp_path)
        assert all_rows(checkpoint) == before
        clean(storage, tmp_path)


@pytest.mark.parametrize("archive", [V1, V2], ids=["V1", "V2"])
def test_no_file_of_the_query_is_changed(archive: Path, tmp_path: Path) -> None:
    storage = opened(archive, tmp_path)
    before = {entry.path: storage.read(entry.path) for entry in storage.list("")}
    rescale(storage, 5, tmp_path)
    assert {path: storage.read(path) for path in before} == before
    assert (_with_ids(storage) == set()) is (archive is V1)


def test_the_appended_batch_has_the_watermarks_of_the_newest_one(tmp_path: Path) -> None:
    """That in the offsets decides which rows of the next batch are late, and from where Spark evicts rows of a join."""
    storage = opened(FIXTURES / "spark-4.2.0-v1-windows-lzf.zip", tmp_path)
    batch = catalog.newest_batch(storage)
    assert batch is not None
    commit, path = names.commits(batch), names.offsets(batch)
    next_ms = logs.parse_commit(storage.read(commit), commit).next_watermark_ms
    late_ms = next_ms - 60_000
    storage.replace(path, logs.with_confs(storage.read(path).decode(), path, {}, watermark_ms=late_ms, lowers=True))
    rescale(storage, 3, tmp_path / "scratch")
    commit, path = names.commits(batch + 1), names.offsets(batch + 1)
    assert logs.parse_commit(storage.read(commit), commit).next_watermark_ms == next_ms
    assert logs.parse_offsets(storage.read(path), path).watermark_ms == late_ms


def test_maintenance_and_a_switch_follow_a_rescale_and_its_rewind(tmp_path: Path) -> None:
    checkpoint = unpacked(V1, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    batch = catalog.newest_batch(storage)
    root, scratch = str(checkpoint), ("--scratch", str(tmp_path / "scratch"))
    apply = ("--apply", "--confirm-stopped", *scratch)
    statekeeper("rescale", root, "--partitions", "4", *apply)
    statekeeper("snapshot", root, "--at-head", "--confirm-stopped", "--mode", "snapshots", *scratch)
    statekeeper("gc", root, "--mode", "full", "--apply", "--grace", "0s")
    clean(storage, tmp_path)
    statekeeper("switch", root, "--to", "v2", "--for-spark", "4.2", *apply)
    statekeeper("rescale", root, "--partitions", "2", "--for-spark", "4.2", *apply)
    assert all_rows(checkpoint) == before
    statekeeper("rewind", root, "--to-batch", str((batch or 0) + 1), "--keep-query-id", *apply)
    assert all_rows(checkpoint) == before
    statekeeper("audit", root, "--deep")


@pytest.mark.parametrize("archive", [V1, V2], ids=["V1", "V2"])
def test_a_rewind_to_the_batch_before_returns_to_the_old_partitions(archive: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    heads = catalog.heads(storage)
    assert heads is not None
    rescale(storage, 1, tmp_path)
    options = ("--apply", "--confirm-stopped", "--scratch", str(tmp_path))
    statekeeper("rewind", str(checkpoint), "--to-batch", str(heads.batch), "--keep-query-id", *options)
    assert catalog.heads(storage) == heads
    assert all_rows(checkpoint) == before
    clean(storage, tmp_path)
    rescale(storage, 3, tmp_path)
    assert all_rows(checkpoint) == before


def test_the_plan_of_the_present_number_has_nothing_to_do(tmp_path: Path) -> None:
    plan = planned(opened(V2, tmp_path), 2, tmp_path)
    assert plan.is_there
    assert plan.refusals == ()
    assert plan.groups == ()


def test_a_started_batch_blocks_the_rescale(tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)
    batch = catalog.newest_batch(storage) or 0
    storage.create(names.offsets(batch + 1), storage.read(names.offsets(batch)))
    with pytest.raises(RefusedAsUnsafe, match=rf"batch {batch + 1} is started but not committed"):
        rescale(storage, 5, tmp_path)


def test_a_damaged_store_blocks_the_rescale(tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)
    heads = catalog.heads(storage)
    assert heads is not None
    store, head = next(iter(heads.heads.items()))
    storage.replace(store.changelog(head), b"damaged")
    with pytest.raises(RefusedAsUnsafe, match="the audit reports"):
        rescale(storage, 5, tmp_path)
    assert rewrite_journal.open_journal(storage) is None


def test_too_little_local_disk_blocks_the_rescale(tmp_path: Path) -> None:
    facts = whole_stores.gather(opened(V2, tmp_path), scratch=tmp_path)
    full = replace(facts, stopped=replace(facts.stopped, free_bytes=10))
    [refusal] = whole_stores.plan(full, Rescale(5), FOR_SPARK).refusals
    assert "10 are free" in refusal


def test_the_release_must_be_given_if_the_checkpoint_does_not_show_it(tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)
    storage.delete([entry.path for entry in storage.list(names.STATE) if entry.path.endswith(names.SIDECAR)])
    refusals = planned(storage, 5, tmp_path, spark=None).refusals
    assert all("--for-spark" in refusal for refusal in refusals)


@pytest.mark.parametrize("processes", [0, 2], ids=["one process", "processes"])
def test_a_row_in_another_partition_than_its_key_says_stops_the_rescale(processes: int, tmp_path: Path) -> None:
    """Such rows have a query that partitions by something that its state does not show."""
    checkpoint = unpacked(V1, tmp_path)
    zero, one = checkpoint / "state/0/0", checkpoint / "state/0/1"
    for path in [path for path in zero.iterdir() if path.suffix in (".changelog", ".zip")]:
        other = one / path.name
        body = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(body)
        for hidden in (zero / f".{path.name}.crc", one / f".{path.name}.crc"):
            hidden.unlink(missing_ok=True)
    storage = open_storage(str(checkpoint))
    with pytest.raises(Exception, match="cannot be moved to other partitions") as raised:
        rescale(storage, 5, tmp_path, processes=processes)
    assert getattr(raised.value, "code", None) == "unknown_partitioning"
    assert "state/0/" in str(raised.value)
    abort(storage, clock=after_the_dead())
    assert rewrite_journal.open_journal(storage) is None


def test_a_half_done_rescale_blocks_other_verbs_and_other_goals(tmp_path: Path) -> None:
    storage = opened(V1, tmp_path)
    _die_before(storage, "made-", tmp_path)
    found = audit.judge(audit.gather(storage))
    assert audit.FindingKind.HALF_SWITCHED in {finding.kind for finding in found.findings}
    root = str(storage.url.removeprefix("file://"))
    refused = statekeeper("snapshot", root, "--all", "--mode", "snapshots", exit_code=13)
    assert f"statekeeper rescale {root} --partitions 5 --apply --confirm-stopped" in " ".join(refused.split())
    assert "is half done" in planned(storage, 6, tmp_path).refusals[0]
    assert "half done" in statekeeper("switch", root, "--to", "v2", exit_code=3)
    statekeeper("switch", root, "--abort", "--confirm-stopped", exit_code=13)
    with pytest.raises(HalfSwitched):
        rewrite_journal.require_none(storage)


def test_a_rescale_that_a_former_release_left_before_its_end_is_reversed(tmp_path: Path) -> None:
    """It wrote the next watermark into the offsets of the appended batch."""
    storage = opened(FIXTURES / "spark-4.2.0-v1-windows-lzf.zip", tmp_path)
    batch = catalog.newest_batch(storage)
    assert batch is not None
    next_ms = logs.parse_commit(storage.read(names.commits(batch)), names.commits(batch)).next_watermark_ms
    path, appended = names.offsets(batch), names.offsets(batch + 1)
    _set_watermark(storage, path, next_ms - 60_000)
    rows = all_rows(storage.url.removeprefix("file://"))
    _die_before(storage, "ended", tmp_path)
    _set_watermark(storage, appended, next_ms)
    abort(storage, clock=after_the_dead())
    assert catalog.newest_batch(storage) == batch
    assert not storage.stat(appended)
    assert all_rows(storage.url.removeprefix("file://")) == rows


def _set_watermark(storage: Storage, path: str, watermark_ms: int) -> None:
    text = storage.read(path).decode()
    storage.replace(path, logs.with_confs(text, path, {}, watermark_ms=watermark_ms, lowers=True))


def test_in_structure_v1_no_query_can_start_before_the_rescale_ends(tmp_path: Path) -> None:
    """Spark parses the name of each zip in a store, and fails at a name with an id in structure V1."""
    storage = opened(V1, tmp_path)
    _die_before(storage, "ended", tmp_path)
    assert _with_ids(storage) == set()  # the audit was clean: the guards are gone
    other = opened(V1, tmp_path / "other")
    _die_before(other, "commits/", tmp_path)
    assert _with_ids(other) == {f"state/0/{number}" for number in range(5)}


def _with_ids(storage: Storage) -> set[str]:
    """Return the stores that have a zip with an id in its name."""
    found = catalog.files(storage)
    return {store.folder for store, of_store in found.items() if any(one.id for one in of_store.snapshots)}


def _die_before(storage: Storage, part: str, scratch: Path) -> None:
    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.BEFORE if request.kind in WRITES and part in request.path else None

    with pytest.raises(SimulatedCrash):
        rescale(Dying(storage), 5, scratch)


class DiesAtTheEnd(FaultyStorage):
    """Dies when the journal is closed."""

    def _fault_of(self, request: Request) -> Fault | None:
        return Fault.BEFORE if request.kind in WRITES and request.path.endswith("ended.json") else None


def test_audit_findings_do_not_block_a_rescale_that_can_no_longer_be_reversed(tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)
    with pytest.raises(SimulatedCrash):
        rescale(DiesAtTheEnd(storage), 3, tmp_path)
    heads = catalog.heads(storage)
    assert heads is not None
    for store, head in heads.heads.items():
        later = names.VersionId(head.version + 1, head.id)
        storage.create(store.snapshot(later), storage.read(store.snapshot(head)))
    for log in (names.offsets, names.commits):
        storage.create(log(heads.batch + 1), storage.read(log(heads.batch)))
    storage.delete([names.state_schema(0)])
    with pytest.raises(RefusedAsUnsafe, match=f"committed batch {heads.batch + 1}; the rescale cannot be reversed"):
        abort(storage, clock=after_the_dead())
    with pytest.raises(RefusedAsUnsafe, match="the query has continued, but the checkpoint is damaged"):
        rescale(storage, 3, tmp_path, clock=SleeplessClock(SystemClock().now_seconds() + 2 * lease.LIFE_SECONDS))
    assert rewrite_journal.open_journal(storage) is None


def test_a_failed_rescale_names_the_stores_that_are_done_and_the_ways_on(tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)

    class Failing(FaultyStorage):
        """Rejects the snapshot of the last partition."""

        def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
            if path.startswith("state/0/2/") and path.endswith(".zip"):
                raise StorageError("the storage is full", path=path, hint="free some space")
            return super().create(path, data, like=like)

    with pytest.raises(
        StorageError, match="rescale to 3 partitions is half done: 2 of 3 stores have their new"
    ) as told:
        rescale(Failing(storage), 3, tmp_path)
    assert "statekeeper rescale ROOT --abort --confirm-stopped" in str(told.value)
    rescale(storage, 3, tmp_path)
    clean(storage, tmp_path)


def test_a_rescale_that_was_rolled_back_during_its_execution_writes_nothing_more(tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)
    before = contents(storage)

    class Slow(FaultyStorage):
        """Takes so long for a snapshot that another maintainer breaks its lease and rolls the rescale back."""

        def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
            if path.startswith("state/0/1/") and path.endswith(".zip"):
                abort(storage, clock=after_the_dead())
            return super().create(path, data, like=like)

    with pytest.raises(RefusedAsUnsafe, match="was rolled back"):
        rescale(Slow(storage), 3, tmp_path)
    left = contents(storage)
    assert before.items() <= left.items()
    assert [path for path in left.keys() - before.keys() if not path.endswith(".sst")] == []
