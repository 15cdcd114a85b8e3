"""Tables that stay on local disk between two snapshots of a root in a bucket: a snapshot fetches none of them again, and no
damaged one is used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.executors import LocalExecutor
from statekeeper.statestore.maintenance.rounds.visit import Visit, visit
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import (
    KEPT_BYTES,
    SnapshotPolicy,
    Taken,
    TakeSnapshot,
    execute_all,
)
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Run
from statekeeper.statestore.storage import Reads, Storage, open_storage
from statekeeper.statestore.store.engine import kept_tables
from tests.support.checkpoints import Checkpoint
from tests.support.maintainers import MAINTAINER
from tests.support.mounts import fill, small_disk
from tests.support.s3_server import S3Server
from tests.support.snapshots import planned

CHANGELOGS = 3


class Maintained:
    """A checkpoint with one store in a bucket, and the scratch folder of its maintenance."""

    def __init__(self, server: S3Server, folder: Path, name: str = "root") -> None:
        self.server, self.bucket, self.scratch = server, server.make_bucket(), folder / "scratch"
        self.storage = open_storage(f"s3://{self.bucket}/{name}", options={**server.options, "hedge": "false"})
        self.checkpoint = Checkpoint(self.storage, folder / f"job {self.bucket}", partitions=1)
        self.store = self.checkpoint.stores[0]

    def snapshot(self, *, kept_bytes: int = KEPT_BYTES) -> Taken:
        self.checkpoint.grow(CHANGELOGS)
        return self.executed(planned(self.storage).take, kept_bytes=kept_bytes)

    def executed(
        self, actions: Sequence[TakeSnapshot], *, storage: Storage | None = None, kept_bytes: int = KEPT_BYTES
    ) -> Taken:
        """Take the only planned snapshot. Raises its error."""
        ended: list[Taken | StatekeeperError] = []
        execute_all(
            storage or self.storage,
            actions,
            lambda _, outcome: ended.append(outcome),
            executor=LocalExecutor(clock=SystemClock(), scratch=self.scratch),
            kept_bytes=kept_bytes,
        )
        [outcome] = ended
        if isinstance(outcome, StatekeeperError):
            raise outcome
        return outcome

    @property
    def kept(self) -> list[Path]:
        return sorted(self.scratch.glob("*/kept-tables/*/*.sst"))

    def assert_right(self, folder: Path) -> None:
        """The newest snapshot alone, read from the bucket, has the rows of the model."""
        self.checkpoint.assert_snapshots_are_right(folder)


@pytest.fixture
def maintained(s3_server: S3Server, tmp_path: Path) -> Maintained:
    """A store with two snapshots, and its tables on local disk."""
    made = Maintained(s3_server, tmp_path)
    made.snapshot()
    made.snapshot()
    return made


def test_the_next_snapshot_fetches_the_zip_of_its_base_and_the_new_changelogs_only(
    maintained: Maintained, tmp_path: Path
) -> None:
    maintained.checkpoint.grow(CHANGELOGS)
    actions = planned(maintained.storage).take
    taken: list[Taken] = []
    fetched = maintained.server.fetched(maintained.bucket, lambda: taken.append(maintained.executed(actions)))
    assert fetched == {"zip": 1, "changelog": CHANGELOGS}
    assert taken[0].kept_tables == 2
    maintained.assert_right(tmp_path / "fresh")


def test_a_new_process_reads_only_what_was_written_since_the_last_one(maintained: Maintained) -> None:
    """A run of Dagster is a new process. It lists the files."""
    maintained.checkpoint.grow(20)
    policies = Policies(retention=RetentionPolicy(versions=10, grace_seconds=0))
    clock = SystemClock()

    def pass_of_new_process(*, kept_bytes: int = KEPT_BYTES) -> int:
        storage = open_storage(maintained.storage.url, options={**maintained.server.options, "hedge": "false"})
        run = Run(storage=storage, policies=policies, by=MAINTAINER, scratch=maintained.scratch, kept_bytes=kept_bytes)
        seen = visit("query", run, reads=Reads(clock))
        assert (seen.errors, seen.taken.taken) == ((), ())
        return seen.requests.read

    without = [pass_of_new_process(kept_bytes=0) for _ in range(3)][-1]
    first = pass_of_new_process()
    second = pass_of_new_process()
    assert first == without > second + 10
    [kept] = maintained.scratch.glob("*/kept-tables/*/*.reads")
    written = kept.stat().st_ino
    assert pass_of_new_process() == second
    [kept] = maintained.scratch.glob("*/kept-tables/*/*.reads")
    assert kept.stat().st_ino == written, "nothing new was read, so nothing was written"
    maintained.checkpoint.grow(1)
    assert second < pass_of_new_process() <= second + 6
    [kept] = maintained.scratch.glob("*/kept-tables/*/*.reads")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert pass_of_new_process() >= without


def test_the_bytes_that_a_snapshot_reads_do_not_grow_with_the_state(s3_server: S3Server, tmp_path: Path) -> None:
    read = {}
    for rows in (100, 20_000):
        made = Maintained(s3_server, tmp_path / str(rows))
        made.checkpoint.batch({b"row %06d" % number: os.urandom(100) for number in range(rows)})
        made.snapshot()
        made.checkpoint.grow(CHANGELOGS)
        actions = planned(made.storage).take
        before = made.storage.requests.snapshot()
        made.executed(actions)
        read[rows] = made.storage.requests.since(before).bytes_read
    assert read[20_000] < read[100] + 4_000, "the rest is of the listing and of the zip"


def test_only_the_tables_of_the_newest_snapshot_are_kept(maintained: Maintained) -> None:
    tables = []
    for _ in range(7):
        taken = maintained.snapshot()
        tables.append(taken.tables)
        assert len(maintained.kept) == taken.tables
    assert min(tables) < max(tables[:-1]), "they were merged meanwhile"


FLIPS = (0.0, 0.3, 0.6, 0.95, 1.0)
LENGTHS = (0, 1, -1)


def flipped(body: bytes, part: float) -> bytes:
    changed = bytearray(body)
    changed[round(part * (len(body) - 1))] ^= 1
    return bytes(changed)


def test_a_damaged_kept_table_is_removed_and_fetched_from_storage(maintained: Maintained, tmp_path: Path) -> None:
    damages: list[Callable[[bytes], bytes]] = [
        *(partial(flipped, part=part) for part in FLIPS),
        *((lambda body, length=length: body[:length]) for length in LENGTHS),
    ]
    for number, damage in enumerate(damages):
        damaged = max(maintained.kept, key=lambda path: path.stat().st_size)
        others = len(maintained.kept) - 1
        body = damage(damaged.read_bytes())
        damaged.write_bytes(body)
        taken = maintained.snapshot()
        assert (taken.kept_tables, taken.skipped_snapshots) == (others, ()), number
        assert body not in [path.read_bytes() for path in maintained.kept], number
        maintained.assert_right(tmp_path / f"fresh {number}")


@pytest.mark.parametrize("is_renamed", [False, True], ids=["its bytes", "the file itself"])
def test_a_table_of_another_store_in_the_place_of_a_kept_one_is_not_used(
    maintained: Maintained, is_renamed: bool, s3_server: S3Server, tmp_path: Path
) -> None:
    other = Maintained(s3_server, tmp_path / "other", "root of another query")
    other.snapshot()
    stranger, victim = other.kept[0], maintained.kept[0]
    if is_renamed:
        shutil.copyfile(stranger, victim.parent / stranger.name)
        victim.unlink()
    else:
        shutil.copyfile(stranger, victim)
    taken = maintained.snapshot()
    assert (taken.kept_tables, taken.skipped_snapshots) == (1, ())
    assert not (victim.parent / stranger.name).exists()
    maintained.assert_right(tmp_path / "fresh")


def test_kept_tables_that_exchanged_their_names_are_not_used(maintained: Maintained, tmp_path: Path) -> None:
    one, other = maintained.kept
    bodies = one.read_bytes(), other.read_bytes()
    other.write_bytes(bodies[0])
    one.write_bytes(bodies[1])
    assert maintained.snapshot().kept_tables == 0
    maintained.assert_right(tmp_path / "fresh")


def test_a_table_that_was_damaged_before_it_was_kept_blames_no_snapshot_in_storage(
    maintained: Maintained, tmp_path: Path
) -> None:
    """Its digest is that of the damaged bytes. The checksums of its blocks do not match."""
    kept = maintained.kept[0]
    body = bytearray(kept.read_bytes())
    body[10] ^= 1
    kept.write_bytes(body)
    key, _, _ = kept.name.partition("-")
    kept.rename(kept.with_name(f"{key}-{kept_tables._digest(kept, key)}.sst"))
    taken = maintained.snapshot()
    assert (taken.kept_tables, taken.skipped_snapshots) == (0, ()), "storage alone decides"
    maintained.assert_right(tmp_path / "fresh")


@pytest.mark.parametrize("is_deleted", [False, True], ids=["replaced", "deleted"])
def test_a_kept_table_does_not_hide_the_damage_of_its_table_in_storage(
    maintained: Maintained, is_deleted: bool, tmp_path: Path
) -> None:
    maintained.checkpoint.grow(CHANGELOGS)
    actions = planned(maintained.storage).take
    files = (entry.path for entry in maintained.storage.list(maintained.store.folder))
    newest = max(path for path in files if path.endswith(".sst"))
    if is_deleted:
        maintained.storage.delete([newest])
    else:
        maintained.storage.replace(newest, flipped(maintained.storage.read(newest), 0.0))
    taken = maintained.executed(actions)
    assert len(taken.skipped_snapshots) == 1
    assert newest in taken.skipped_snapshots[0]
    maintained.assert_right(tmp_path / "fresh")


def test_a_snapshot_that_is_read_back_reads_the_storage_alone(maintained: Maintained) -> None:
    maintained.checkpoint.grow(CHANGELOGS)
    [action] = planned(maintained.storage).take
    taken = maintained.executed([replace(action, name=VersionId(action.version.version))])
    assert (taken.kept_tables, taken.digest is not None) == (0, True)


def test_nothing_is_kept_without_a_bound_and_for_a_root_on_a_file_system(s3_server: S3Server, tmp_path: Path) -> None:
    made = Maintained(s3_server, tmp_path)
    made.snapshot(kept_bytes=0)
    assert made.snapshot(kept_bytes=0).kept_tables == 0
    local = made.checkpoint.copied_to(open_storage(str(tmp_path / "root")), tmp_path / "local job")
    local.grow(1)
    made.executed(planned(local.storage).take, storage=local.storage)
    assert made.kept == []


def test_a_full_scratch_disk_is_freed_of_kept_tables(s3_server: S3Server, tmp_path: Path) -> None:
    made = Maintained(s3_server, tmp_path)
    with small_disk(made.scratch, 64 * 1024**2) as disk:
        made.checkpoint.batch({b"row %06d" % number: os.urandom(1_000) for number in range(15_000)})
        made.snapshot()
        assert sum(path.stat().st_size for path in made.kept) > 14_000_000
        other = Maintained(s3_server, tmp_path, "root of another query")
        other.checkpoint.batch({b"row %06d" % number: os.urandom(1_000) for number in range(5_000)})
        fill(disk, left_bytes=8_000_000)
        taken = other.snapshot()
        assert taken.keys == len(other.checkpoint.states[-1][0])
        assert made.kept == []
    other.assert_right(tmp_path / "fresh")


def test_a_folder_of_another_user_is_not_used(maintained: Maintained, tmp_path: Path) -> None:
    for folder in maintained.scratch.glob("statekeeper-*"):
        folder.chmod(0o777)
    assert maintained.snapshot().kept_tables == 0


def test_the_read_of_a_base_before_a_deletion_reads_each_of_its_tables_from_storage(
    s3_server: S3Server, tmp_path: Path
) -> None:
    made = Maintained(s3_server, tmp_path)
    policies = Policies(
        SnapshotPolicy(changelogs=CHANGELOGS), RetentionPolicy(versions=1, grace_seconds=0.0), mode=Mode.FULL
    )
    tables, fetched = [], []
    for _ in range(3):
        made.checkpoint.grow(CHANGELOGS)
        run = Run(storage=made.storage, policies=policies, by=MAINTAINER, scratch=made.scratch, kept_bytes=KEPT_BYTES)
        visits: list[Visit] = []
        fetched.append(
            made.server.fetched(made.bucket, lambda run=run, visits=visits: visits.append(visit("root", run)))
        )
        [[taken]] = [one.taken.taken for one in visits]
        assert visits[0].deleted
        tables.append(taken.tables)
        assert taken.kept_tables == taken.tables - taken.new_tables
    assert [one["sst"] for one in fetched] == tables
    made.assert_right(tmp_path / "fresh")
