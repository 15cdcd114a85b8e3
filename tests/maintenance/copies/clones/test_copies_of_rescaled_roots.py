"""Clones and mirrors of state roots that were rescaled."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import MirrorDiverged
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.clones import cloned
from tests.support.keyed_roots import KeyedRoot
from tests.support.mirrors import mirrored
from tests.support.rescales import rescale
from tests.support.twins import clean


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Storage, Storage]:
    """A source and a destination."""
    folders = [tmp_path / "source", tmp_path / "destination"]
    for folder in folders:
        folder.mkdir()
    source, destination = (open_storage(str(folder)) for folder in folders)
    return source, destination


def copied(root: KeyedRoot, storage: Storage, folder: Path) -> KeyedRoot:
    """The model of a copy of the newest batch."""
    return KeyedRoot(
        storage,
        folder,
        root.partitions,
        root.key_groups,
        root.in_batch_logs,
        root.structure,
        dict(root.rows),
        root.batches,
    )


@pytest.mark.parametrize("in_batch_logs", [False, True], ids=["stores", "batch"])
def test_a_clone_of_a_rescaled_root_continues(
    disks: tuple[Storage, Storage], in_batch_logs: bool, tmp_path: Path
) -> None:
    source, destination = disks
    root = KeyedRoot(source, tmp_path, partitions=4, in_batch_logs=in_batch_logs)
    root.grow(2, keys=10)
    rescale(source, 6, tmp_path)
    root.grow(1, keys=10)
    cloned(source, destination, tmp_path, stopped=True)
    copy = copied(root, destination, tmp_path / "of clone")
    copy.assert_right(6)
    clean(destination, tmp_path)
    copy.grow(1, keys=10)
    rescale(destination, 3, tmp_path)
    copy.grow(1, keys=10)
    copy.assert_right(3)
    clean(destination, tmp_path)
    root.assert_right(6)


@pytest.mark.parametrize("in_batch_logs", [False, True], ids=["stores", "batch"])
def test_a_mirror_that_has_the_batch_of_a_rescale_stays_as_it_is(
    disks: tuple[Storage, Storage], in_batch_logs: bool, tmp_path: Path
) -> None:
    source, destination = disks
    root = KeyedRoot(source, tmp_path, partitions=4, in_batch_logs=in_batch_logs)
    root.grow(2, keys=10)
    mirrored(source, destination, tmp_path)
    before = copied(root, destination, tmp_path / "of mirror")
    rescale(source, 6, tmp_path)
    root.grow(1, keys=10)
    with pytest.raises(MirrorDiverged, match="a rescale of a state root"):
        mirrored(source, destination, tmp_path)
    before.assert_right(4)
    clean(destination, tmp_path)
    (tmp_path / "new destination").mkdir()
    new = open_storage(str(tmp_path / "new destination"))
    for _ in range(2):
        mirrored(source, new, tmp_path)
        copied(root, new, tmp_path / f"of mirror {root.batches}").assert_right(6)
        clean(new, tmp_path)
        root.grow(1, keys=10)


@pytest.mark.parametrize("in_batch_logs", [False, True], ids=["stores", "batch"])
def test_a_mirror_that_lags_behind_a_rescale_follows_its_source(
    disks: tuple[Storage, Storage], in_batch_logs: bool, tmp_path: Path
) -> None:
    source, destination = disks
    root = KeyedRoot(source, tmp_path, partitions=4, in_batch_logs=in_batch_logs)
    root.grow(2, keys=10)
    mirrored(source, destination, tmp_path)
    for partitions in (6, 3):
        root.grow(1, keys=10)
        rescale(source, partitions, tmp_path)
        root.grow(1, keys=10)
        mirrored(source, destination, tmp_path)
        copied(root, destination, tmp_path / f"of mirror {partitions}").assert_right(partitions)
        assert read_binding(destination)[0].partitions == partitions
        clean(destination, tmp_path)
