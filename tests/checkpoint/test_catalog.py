"""Heads of a checkpoint from the commit log, and its files by store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import CorruptFile, VersionNotLoadable
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.storage import Storage, at_once
from tests.support.checkpoints import Checkpoint

IDS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(8)]


def test_heads_come_from_the_newest_commit(storage: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(storage, tmp_path, partitions=3)
    assert catalog.heads(storage) is None
    checkpoint.grow(2)
    heads = catalog.heads(storage)
    assert heads is not None
    assert heads.batch == 1
    assert heads.heads == dict(zip(checkpoint.stores, checkpoint.versions[-1], strict=True))


def test_the_four_stores_of_a_join_get_their_ids_by_their_order(storage: Storage) -> None:
    stores = ["left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue"]
    infos = tuple(operators.StoreInfo(name=name, prefix_columns=0, partitions=2) for name in stores)
    storage.create(names.operator_metadata(1), operators.encode_operator(operators.OperatorMetadata(1, "join", infos)))
    ids = {1: (tuple(IDS[:4]), tuple(IDS[4:]))}
    storage.create(names.commits(7), logs.encode_commit(logs.CommitLog(0, ids)))
    heads = catalog.heads(storage)
    assert heads is not None
    assert heads.heads[StorePath(1, 1, "right-keyToNumValues")] == VersionId(8, IDS[6])
    assert len(heads.heads) == 8


def test_the_operator_metadata_of_the_batch_applies(storage: Storage) -> None:
    assert catalog.operator_at(storage, 0, 3) is None
    for batch in (2, 10):
        infos = (operators.StoreInfo(name="default", prefix_columns=0, partitions=batch),)
        body = operators.encode_operator(operators.OperatorMetadata(0, "an operator", infos))
        storage.create(f"{names.operator_metadata_by_batch(0)}/{batch}", body)
    held = {batch: catalog.operator_at(storage, 0, batch) for batch in (-1, 0, 2, 9, 10, 11)}
    assert {batch: found and found.stores[0].partitions for batch, found in held.items()} == {
        **dict.fromkeys((-1, 0, 2, 9), 2),
        **dict.fromkeys((10, 11), 10),
    }


def test_stores_are_known_at_any_committed_batch_and_empty_at_version_0(storage: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(storage, tmp_path, partitions=2)
    checkpoint.grow(3)
    for batch in (-1, 0, 2):
        found = catalog.heads_at(storage, batch)
        assert found == catalog.Heads(batch, dict(zip(checkpoint.stores, checkpoint.versions[batch + 1], strict=True)))
    with pytest.raises(VersionNotLoadable, match=r"commits/3: batch 3 is not .* the commit log has batches 0 to 2"):
        catalog.heads_at(storage, 3)


def test_a_v1_commit_contains_versions_without_ids(storage: Storage, tmp_path: Path) -> None:
    Checkpoint(storage, tmp_path, partitions=1)
    storage.create(names.commits(3), logs.encode_commit(logs.CommitLog(0, None)))
    heads = catalog.heads(storage)
    assert heads is not None
    assert heads.heads == {StorePath(0, 0): VersionId(4)}


def test_a_commit_without_one_of_the_stores_is_corrupt(storage: Storage, tmp_path: Path) -> None:
    Checkpoint(storage, tmp_path, partitions=2)
    storage.create(names.commits(0), logs.encode_commit(logs.CommitLog(0, {0: ((IDS[0],),)})))
    with pytest.raises(
        CorruptFile, match=r"commits/0: names 1 partitions of operator 0, but the metadata .* describes 2"
    ):
        catalog.heads(storage)


def test_a_store_without_metadata_is_reported(storage: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(storage, tmp_path, partitions=2)
    checkpoint.grow(1)
    storage.delete([names.operator_metadata(0)])
    with pytest.raises(
        CorruptFile, match=r"commits/0: names 2 stores, but the metadata of the operators describes 0.* -> restore"
    ):
        catalog.heads(storage)


def test_files_are_grouped_by_store_and_kind(storage: Storage) -> None:
    paths = [
        f"state/0/0/3_{IDS[3]}.changelog",
        f"state/0/0/3_{IDS[3]}.zip",
        "state/0/0/SSTs/000008-6ad1c2f0-0000.sst",
        "state/0/0/logs/000003-6ad1c2f0-0000.log",
        "state/0/0/4.changelog",
        "state/0/0/notes.txt",
        "state/0/0/_metadata/schema",
        "state/0/_metadata/metadata",
        f"state/1/12/left-keyToNumValues/5_{IDS[5]}.zip",
        "state/1/12/left-keyToNumValues/SSTs/000009-6ad1c2f0-0000.sst",
        "state/1/12/left-keyToNumValues/_metadata/schema",
        f"state/00/0/6_{IDS[6]}.zip",
        f"state/0/0/default/6_{IDS[6]}.zip",
    ]
    for path in paths:
        storage.create(path, b"x")
    found = catalog.files(storage)
    assert set(found) == {StorePath(0, 0), StorePath(1, 12, "left-keyToNumValues")}
    of_store = found[StorePath(0, 0)]
    assert set(of_store.changelogs) == {VersionId(3, IDS[3]), VersionId(4)}
    assert set(of_store.snapshots) == {VersionId(3, IDS[3])}
    assert set(of_store.tables) == {"000008-6ad1c2f0-0000.sst", "000003-6ad1c2f0-0000.log"}
    assert [entry.path for entry in of_store.others] == ["state/0/0/notes.txt"]
    assert set(found[StorePath(1, 12, "left-keyToNumValues")].tables) == {"000009-6ad1c2f0-0000.sst"}
    assert catalog.snapshots(storage) == {store: frozenset(files.snapshots) for store, files in found.items()}


@pytest.mark.parametrize(
    ("batches", "since", "newest"),
    [
        (range(45), 41, 44),
        (range(45), 44, 44),
        (range(45), 40, 44),
        (range(45), 12, 44),
        (range(30), 19, 29),
        (range(103), 97, 102),
        (range(101), 99, 100),
        (range(100), 99, 99),
        (range(95, 1002), 998, 1001),
        (range(30), 35, 29),
        ([], 35, None),
        ([*range(20), *range(23, 28)], 20, 27),
        ([*range(24), 26], 22, 26),
    ],
)
def test_the_newest_batch_is_found_after_one_that_was_committed(
    storage: Storage, batches: Sequence[int], since: int, newest: int | None
) -> None:
    """By tens here: a store gives a thousand names at a time."""
    shown = [batch for batch in batches if batch > 900 or batch < 150]
    at_once(lambda batch: storage.create(names.commits(batch), b"v1"), shown)
    assert catalog.newest_batch(storage, since=since, listed=10) == catalog.newest_batch(storage) == newest


def test_a_long_commit_log_is_not_listed_from_its_beginning(storage: Storage) -> None:
    at_once(lambda batch: storage.create(names.commits(batch), b"v1"), range(130))
    assert [entry.path for entry in storage.list_after(names.COMMITS, "126", beginning="12")] == [
        names.commits(batch) for batch in (127, 128, 129)
    ]
    before = storage.requests.snapshot()
    assert catalog.newest_batch(storage, since=125, listed=10) == 129
    assert storage.requests.since(before).list == 2, "the second looks whether the next ten have begun"
