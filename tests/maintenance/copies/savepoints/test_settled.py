"""The default batch of a copy whose source no query writes, or that has no stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names, savepoint_names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.clones import FULL, Roots, cloned, made, outer_checkpoint, own
from tests.support.commands import statekeeper
from tests.support.maintained_query import maintained_query
from tests.support.maintainers import MAINTAINER
from tests.support.savepoints import manifest

QUERY = "0badc0de-0000-4000-8000-00000000000a"


def of_spark_in_v1(source: Storage, folder: Path) -> None:
    """A Spark query in structure V1 at batch 7, and a savepoint of it in `sp`."""
    made(source, folder, "native", Structure.V1, in_batch_logs=False)
    done = statekeeper("savepoint", folder / "root", folder / "sp", "--label", "before", "--confirm-stopped")
    assert done.exit_code == 0, done.output


def test_a_clone_of_a_savepoint_in_v1_has_the_batch_of_the_savepoint(disks: Roots, tmp_path: Path) -> None:
    of_spark_in_v1(disks[0], tmp_path)
    assert statekeeper("clone", tmp_path / "sp", tmp_path / "restored").exit_code == 0
    assert catalog.newest_batch(open_storage(str(tmp_path / "restored"))) == 7
    assert statekeeper("savepoint", tmp_path / "sp", tmp_path / "rows", "--rows").exit_code == 0
    assert manifest(tmp_path / "rows")["batch"] == 7


@pytest.mark.parametrize("record", [names.CLONED, savepoint_names.LABEL])
def test_one_of_both_records_shows_that_no_query_writes_a_savepoint(disks: Roots, tmp_path: Path, record: str) -> None:
    of_spark_in_v1(disks[0], tmp_path)
    savepoint = open_storage(str(tmp_path / "sp"))
    savepoint.delete([record])
    assert cloned(savepoint, disks[1], tmp_path).plan.record.batch == 7


def test_a_query_that_continued_from_a_savepoint_in_v1_may_replace_its_newest_batches(
    disks: Roots, tmp_path: Path
) -> None:
    of_spark_in_v1(disks[0], tmp_path)
    savepoint = open_storage(str(tmp_path / "sp"))
    savepoint.create(names.offsets(8), b"v1\n{}")
    with pytest.raises(RefusedAsUnsafe, match="may still replace"):
        cloned(savepoint, disks[1], tmp_path, batch=7)
    assert verbs.clone.plan(savepoint, disks[1], FULL, MAINTAINER).plan.record.batch == 5


def test_the_first_two_batches_of_a_running_query_in_v1_are_not_copied(disks: Roots, tmp_path: Path) -> None:
    maintained_query(disks[0], tmp_path, Structure.V1, Origin.NATIVE, batches=2)
    with pytest.raises(RefusedAsUnsafe, match="may still replace"):
        cloned(*disks, tmp_path)
    cloned(*disks, tmp_path, stopped=True)


def test_copies_of_both_folders_of_a_job_have_the_same_batch(disks: Roots, tmp_path: Path) -> None:
    own(disks[0], tmp_path)
    outer_checkpoint(open_storage(str(tmp_path / "checkpoint")), 8, QUERY)
    for name in ("checkpoint", "root"):
        assert statekeeper("clone", tmp_path / name, tmp_path / "cloned" / name).exit_code == 0
        assert statekeeper("savepoint", tmp_path / name, tmp_path / "kept" / name, "--label", "x").exit_code == 0
        for way in ("cloned", "kept"):
            assert catalog.newest_batch(open_storage(str(tmp_path / way / name))) == 7, (way, name)
