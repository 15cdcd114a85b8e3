"""A base with a damaged table: an older one is used and the damage is reported, or the error names the file in storage."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import VersionNotLoadable
from statekeeper.statestore.cli import main
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import EngineLimits
from statekeeper.statestore.store.loading.loaded import Restored
from statekeeper.statestore.store.loading.loader import Loader
from tests.support.checkpoints import Checkpoint
from tests.support.switching import abort, contents, is_right, structure_of, switch, take_snapshots

STORE = StorePath(0, 0)


@pytest.fixture(params=[Structure.V1, Structure.V2], ids=lambda structure: structure.name)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    """Two snapshots, and changelogs behind them."""
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path, structure=request.param)
    made.grow(3)
    take_snapshots(made.storage, tmp_path / "scratch")
    made.grow(2)
    take_snapshots(made.storage, tmp_path / "scratch")
    made.grow(1)
    return made


def flip_a_table(checkpoint: Checkpoint, root: Path) -> str:
    """One bit in a block of the newest table of a store, which only its newest snapshot names; returns its path."""
    tables = checkpoint.storage.list(f"{STORE.folder}/SSTs")
    path = max(tables, key=lambda entry: entry.modified_at_seconds or 0).path
    body = bytearray((root / path).read_bytes())
    body[10] ^= 1
    (root / path).write_bytes(bytes(body))
    return path


def lose_other_bases(checkpoint: Checkpoint, root: Path) -> None:
    """The older snapshot of the store, and the changelogs below the newest one."""
    for version in (1, 2, 3, 4, 5):
        (root / STORE.changelog(checkpoint.versions[version][0])).unlink()
    (root / STORE.snapshot(checkpoint.versions[3][0])).unlink()


def restore(checkpoint: Checkpoint, scratch: Path) -> Restored:
    limits = EngineLimits()
    folder = LocalCopyFolder(scratch / "cache", limits, RandomIds())
    loader = Loader(STORE, checkpoint.storage, folder, limits, clock=SystemClock(), lock_timeout_seconds=0)
    return loader.restore(checkpoint.versions[-1][0], scratch / "database")


def test_an_older_base_replaces_a_damaged_one_and_the_damaged_file_is_named(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    table = flip_a_table(checkpoint, tmp_path / "root")
    restored = restore(checkpoint, tmp_path)
    with restored.database as database:
        held = {key: value for keys, values in database.scan() for key, value in zip(keys, values, strict=True)}
    assert held == checkpoint.states[-1][0]
    (skipped,) = restored.report.skipped_snapshots
    assert table in skipped
    assert "a block at byte" in skipped
    assert "does not match its checksum" in skipped
    assert str(tmp_path) not in skipped


def test_the_snapshot_verb_reports_the_base_that_it_skipped(checkpoint: Checkpoint, tmp_path: Path) -> None:
    table = flip_a_table(checkpoint, tmp_path / "root")
    scratch = tmp_path / "scratch"
    done = CliRunner().invoke(main, ["snapshot", str(tmp_path / "root"), "--all", "--scratch", str(scratch)])
    assert done.exit_code == 0, done.output
    assert "an older base was used" in done.output
    assert table in done.output
    assert is_right(checkpoint, checkpoint.storage, tmp_path / "read")


def test_without_another_base_the_error_names_the_store_and_the_file_in_storage(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    table = flip_a_table(checkpoint, tmp_path / "root")
    lose_other_bases(checkpoint, tmp_path / "root")
    with pytest.raises(VersionNotLoadable) as caught:
        restore(checkpoint, tmp_path / "scratch")
    assert str(STORE) in str(caught.value)
    assert table in str(caught.value)
    assert "scratch" not in str(caught.value)


def test_a_switchover_of_damaged_state_reports_its_progress_and_is_rolled_back(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    table = flip_a_table(checkpoint, tmp_path / "root")
    lose_other_bases(checkpoint, tmp_path / "root")
    before = contents(checkpoint.storage)
    to = structure_of(checkpoint.storage).other
    with pytest.raises(VersionNotLoadable) as caught:
        switch(checkpoint.storage, to, tmp_path / "scratch")
    said = str(caught.value)
    assert table in said
    assert f"the switchover to structure {to.value} is half done: 1 of 2 stores have their new snapshot" in said
    assert "the checkpoint still has its old structure" in said
    assert "statekeeper switch ROOT --abort" in said
    abort(checkpoint.storage)
    assert structure_of(checkpoint.storage) is to.other
    assert contents(checkpoint.storage).items() >= before.items()


def test_a_switchover_rebuilds_a_damaged_snapshot_at_the_head_from_an_older_base(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    take_snapshots(checkpoint.storage, tmp_path / "scratch")
    table = flip_a_table(checkpoint, tmp_path / "root")
    to = structure_of(checkpoint.storage).other
    told = switch(checkpoint.storage, to, tmp_path / "scratch")
    assert any(table in reason for progress in told for reason in progress.skipped_snapshots)
    assert structure_of(checkpoint.storage) is to
    assert is_right(checkpoint, checkpoint.storage, tmp_path / "read")
