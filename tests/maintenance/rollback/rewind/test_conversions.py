"""Rewinds to a batch before a conversion between Spark's state store providers, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import VersionNotLoadable
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.provider import Provider, provider_of
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.repairs import contents
from tests.support.rescales import all_rows
from tests.support.rewinds import planned, rewound, undone
from tests.support.twins import statekeeper
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
CHECKPOINTS = sorted(FIXTURES.glob("spark-*-hdfs-*.zip"))
SESSIONS = FIXTURES / "spark-4.2.0-hdfs-sessions-snappy.zip"
JOIN = FIXTURES / "spark-4.2.0-hdfs-join-2.zip"
OPTIONS = ("--for-spark", "4.2", "--apply", "--confirm-stopped")


def run(verb: str, checkpoint: Path, *options: str) -> str:
    return statekeeper(verb, str(checkpoint), *options, *OPTIONS, "--scratch", str(checkpoint.parent / "scratch"))


def provider_at(storage: Storage) -> Provider | None:
    batch = catalog.newest_batch(storage)
    assert batch is not None
    return provider_of(logs.parse_offsets(storage.read(names.offsets(batch)), names.offsets(batch)).conf)


def newest(storage: Storage) -> int:
    batch = catalog.newest_batch(storage)
    assert batch is not None
    return batch


def convert(checkpoint: Path, to: Provider, *options: str) -> None:
    run("convert", checkpoint, "--to", to.option, *options)


def rows_at(checkpoint: Path, batch: int, folder: Path) -> object:
    """The rows in a clone at a batch."""
    statekeeper("clone", str(checkpoint), str(folder), "--batch", str(batch), "--confirm-stopped")
    return all_rows(folder)


def of(archives: list[Path]) -> list[object]:
    return [
        pytest.param(path, id=path.stem.partition("hdfs-")[2], marks=() if path == SESSIONS else pytest.mark.slow)
        for path in archives
    ]


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("archive", of(CHECKPOINTS))
def test_a_query_is_rewound_to_a_batch_before_its_conversion(archive: Path, back: int, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage = open_storage(str(checkpoint))
    target = newest(storage) - back
    expected = rows_at(checkpoint, target, tmp_path / "clone")
    convert(checkpoint, Provider.ROCKSDB)
    converted = contents(storage)
    undo = rewound(storage, target, tmp_path, keep_query_id=True)
    assert (newest(storage), provider_at(storage)) == (target, Provider.HDFS_BACKED)
    assert all_rows(checkpoint) == expected
    statekeeper("audit", str(checkpoint), "--deep")
    undone(storage, undo)
    assert contents(storage) == converted
    rewound(storage, target, tmp_path, keep_query_id=True)
    convert(checkpoint, Provider.ROCKSDB)
    assert all_rows(checkpoint) == expected
    statekeeper("audit", str(checkpoint), "--deep")


@pytest.mark.slow
def test_a_query_is_rewound_across_a_conversion_a_rescale_and_a_switchover(tmp_path: Path) -> None:
    """The files of the default provider stay where they are, whatever happens to those of RocksDB."""
    checkpoint = unpacked(JOIN, tmp_path)
    storage, before = open_storage(str(checkpoint)), contents(open_storage(str(checkpoint)))
    target, rows = newest(storage), all_rows(checkpoint)
    convert(checkpoint, Provider.ROCKSDB)
    run("rescale", checkpoint, "--partitions", "4")
    run("switch", checkpoint, "--to", "v2")
    converted = contents(storage)
    undo = rewound(storage, target, tmp_path, keep_query_id=True)
    assert all_rows(checkpoint) == rows
    assert {path: body for path, body in contents(storage).items() if path in before} == before
    statekeeper("audit", str(checkpoint), "--deep")
    undone(storage, undo)
    assert contents(storage) == converted
    assert all_rows(checkpoint) == rows


def test_a_query_in_structure_v2_is_rewound_to_a_batch_before_its_conversion(tmp_path: Path) -> None:
    checkpoint = unpacked(SESSIONS, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    target = newest(storage)
    convert(checkpoint, Provider.ROCKSDB, "--structure", "v2")
    rewound(storage, target, tmp_path, keep_query_id=True)
    assert all_rows(checkpoint) == before
    statekeeper("audit", str(checkpoint), "--deep")


def test_a_query_is_rewound_to_rocksdb_after_a_conversion_to_the_default_provider(tmp_path: Path) -> None:
    checkpoint = unpacked(SESSIONS, tmp_path)
    storage, rows = open_storage(str(checkpoint)), all_rows(checkpoint)
    convert(checkpoint, Provider.ROCKSDB)
    target, converted = newest(storage), contents(storage)
    convert(checkpoint, Provider.HDFS_BACKED)
    rewound(storage, target, tmp_path, keep_query_id=True)
    assert provider_at(storage) is Provider.ROCKSDB
    assert {path: body for path, body in contents(storage).items() if path.startswith(("state/", "offsets/"))} == {
        path: body for path, body in converted.items() if path.startswith(("state/", "offsets/"))
    }
    assert all_rows(checkpoint) == rows
    statekeeper("audit", str(checkpoint), "--deep")


def test_a_lost_file_of_the_default_provider_blocks_the_rewind(tmp_path: Path) -> None:
    checkpoint = unpacked(SESSIONS, tmp_path)
    storage = open_storage(str(checkpoint))
    target = newest(storage)
    heads = catalog.heads(storage)
    assert heads is not None
    store, head = min(heads.heads.items())
    convert(checkpoint, Provider.ROCKSDB)
    storage.delete([store.changelog(head), store.snapshot(head)])
    before = contents(storage)
    [refusal] = planned(storage, target, tmp_path).refusals
    assert isinstance(refusal, VersionNotLoadable)
    assert (refusal.path or "").startswith(f"{store.folder}/{head.version}.")
    assert f"statekeeper audit {storage.url}" in (refusal.hint or "")
    with pytest.raises(VersionNotLoadable):
        rewound(storage, target, tmp_path)
    assert contents(storage) == before
