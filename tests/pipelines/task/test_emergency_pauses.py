"""Failed emergency snapshots: the pauses between attempts, and the messages."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path

import pytest

from statekeeper.pipelines.task.emergency import (
    BATCHES_TO_CEILING,
    EMERGENCY_CHANGELOGS,
    LONGEST_PAUSE_BATCHES,
    EmergencySnapshots,
)
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import LineageCeiling, StorageError
from statekeeper.statestore.checkpoint.lineage import LINEAGE_STOP_BYTES, check_ceiling
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.storage import Created, Kind, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import FaultyStorage

LIMIT = 3


class Full(FaultyStorage):
    """Takes no tables."""

    def create(self, path: str, data: bytes | Path) -> Created:
        if path.endswith(".sst"):
            raise StorageError("no space left", path=path)
        return super().create(path, data)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    made.grow(LIMIT + 1)
    return made


def emergency(storage: FaultyStorage, folder: Path, said: list[str]) -> EmergencySnapshots:
    return EmergencySnapshots(
        storage,
        changelogs=LIMIT,
        scratch=folder / "scratch",
        clock=SystemClock(),
        ids=RandomIds(),
        warn=said.append,
    )


def test_failed_snapshots_are_retried_with_growing_pauses_and_reported_once(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage, said = Full(checkpoint.storage), []
    snapshots = emergency(storage, tmp_path, said)
    tries = [batch for batch in range(600, 840) if snapshots.before(batch, batch)]
    assert tries == [600, 601, 603, 607, 615, 631, 663, 727, 791]
    assert max(later - one for one, later in itertools.pairwise(tries)) == LONGEST_PAUSE_BATCHES
    gathers = [request for request in storage.trace if (request.kind, request.path) == (Kind.LIST, names.STATE)]
    assert len(gathers) <= 3 * len(tries)
    failed = [text for text in said if "emergency snapshots of 2 of 2 stores failed, the first: state/0/" in text]
    assert len(failed) == 1
    assert len(said) == 2, said
    assert f"Without snapshots, it stops about {BATCHES_TO_CEILING} batches after the first try" in failed[0]


def stops_at(lineage: list[VersionId]) -> bool:
    try:
        check_ceiling(StorePath(0, 0), lineage[-1], lineage, LINEAGE_STOP_BYTES)
    except LineageCeiling:
        return True
    return False


@pytest.mark.parametrize(("first_version", "left"), [(1, 218), (1_000_000, 175)])
def test_the_warning_states_the_batches_that_are_left_to_the_ceiling(first_version: int, left: int) -> None:
    lineage = [VersionId(first_version + number, str(uuid.uuid4())) for number in range(EMERGENCY_CHANGELOGS)]
    batches = 0
    while not stops_at(lineage):
        batches += 1
        lineage.append(VersionId(lineage[-1].version + 1, str(uuid.uuid4())))
    assert batches == left
    assert abs(batches - BATCHES_TO_CEILING) <= 25


def test_an_unreadable_checkpoint_is_retried_with_the_same_pauses(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.storage.replace(names.commits(LIMIT), b"no commit")
    said: list[str] = []
    snapshots = emergency(FaultyStorage(checkpoint.storage), tmp_path, said)
    assert sum(snapshots.before(batch, LIMIT) for batch in range(100)) == 7
    assert len(said) == 1


def test_after_the_tails_are_short_again_the_next_emergency_has_no_pause(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    said: list[str] = []
    snapshots = emergency(FaultyStorage(checkpoint.storage), tmp_path, said)
    assert snapshots.before(4, LIMIT)
    assert len([text for text in said if "emergency snapshot of batch" in text]) == 2
    assert not snapshots.before(5, 0)
    checkpoint.grow(LIMIT)
    assert snapshots.before(6, LIMIT)
    assert len([text for text in said if "emergency snapshot of batch" in text]) == 4


class Forgetful(FaultyStorage):
    """Takes no records."""

    def create(self, path: str, data: bytes | Path) -> Created:
        if path.startswith(f"{names.HISTORY}/"):
            raise StorageError("permission denied", path=path)
        return super().create(path, data)


def test_snapshots_are_taken_even_if_their_record_cannot_be_written(checkpoint: Checkpoint, tmp_path: Path) -> None:
    said: list[str] = []
    assert emergency(Forgetful(checkpoint.storage), tmp_path, said).before(600, 600)
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")
    assert sum("the job cannot write their record" in text for text in said) == 2
    assert sum("emergency snapshot of batch 3 in" in text for text in said) == len(checkpoint.stores)
    assert not any("failed" in text for text in said)
