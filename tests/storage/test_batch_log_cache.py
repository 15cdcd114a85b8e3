"""Batch logs that the processes of a host share on its local disk, on real S3 requests and real stores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.storage import BatchLogCache, Storage, StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.s3_server import S3Server

PARTITIONS = 6
BATCHES = 5
ROOMY = 1 << 30
LARGE = 600_000
"""Bytes of a member of a large object: the first request for the object gets one member."""


@pytest.fixture
def spec(s3_server: S3Server) -> StorageSpec:
    # The tests count requests.
    options = {**s3_server.options, "hedge": "false"}
    return StorageSpec(f"s3://{s3_server.make_bucket()}/root", tuple(options.items()))


@pytest.fixture
def checkpoint(spec: StorageSpec, tmp_path: Path) -> Checkpoint:
    made = Checkpoint(open_storage(spec), tmp_path / "job", partitions=PARTITIONS, in_batch_logs=True)
    made.grow(BATCHES)
    return made


def cached(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def objects(storage: Storage) -> dict[str, bytes]:
    return {e.path.rpartition("/")[2]: storage.read(e.path) for e in storage.list(names.BATCH_LOGS)}


def on_a_host(checkpoint: Checkpoint, spec: StorageSpec, host: Path, cache: BatchLogCache) -> int:
    """Load each store in a process without local copies, but with this cache. Return the number of reads."""
    checkpoint.storage = open_storage(spec, cache=cache)
    checkpoint.assert_right(host)
    return checkpoint.storage.requests.snapshot().read


def load_some(checkpoint: Checkpoint, spec: StorageSpec, host: Path, share: int, start: Any, answers: Any) -> None:
    checkpoint.storage = open_storage(spec, cache=BatchLogCache(host / "cache", ROOMY))
    found = {}
    start.wait(60)
    for partition in range(share, PARTITIONS, 2):
        version = checkpoint.versions[-1][partition]
        with checkpoint.load(checkpoint.stores[partition], version, host) as opened:
            found[partition] = dict(opened.scan())
    answers.put((found, checkpoint.storage.requests.snapshot()))


def test_two_processes_of_a_host_read_each_object_once(
    checkpoint: Checkpoint, spec: StorageSpec, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Slow enough that both processes ask for an object before one of them has it.
    monkeypatch.setattr(s3_server, "latency_seconds", lambda: 0.1)
    bucket = spec.url.split("/")[2]
    before = len(s3_server.answered("GET", f"/{bucket}/root/_statekeeper/log/"))
    del checkpoint.storage
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(2), context.Queue()
    shares = [
        context.Process(target=load_some, args=(checkpoint, spec, tmp_path / "host", share, start, answers))
        for share in range(2)
    ]
    for share in shares:
        share.start()
    found = [answers.get(timeout=120) for _ in shares]
    for share in shares:
        share.join(60)
    assert {**found[0][0], **found[1][0]} == dict(enumerate(checkpoint.states[-1]))
    assert len(s3_server.answered("GET", f"/{bucket}/root/_statekeeper/log/")) - before == BATCHES
    assert sum(counts.read for _, counts in found) == BATCHES


def test_a_later_process_reads_no_object(checkpoint: Checkpoint, spec: StorageSpec, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert on_a_host(checkpoint, spec, tmp_path / "first", BatchLogCache(cache, ROOMY)) == BATCHES
    assert on_a_host(checkpoint, spec, tmp_path / "second", BatchLogCache(cache, ROOMY)) == 0
    assert {path.name: path.read_bytes() for path in cached(cache)} == objects(open_storage(spec))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped byte in the index": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "a flipped byte in the last member": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "a flipped byte in the magic": lambda data: b"?" + data[1:],
    "a later format": lambda data: b"SKLOG009" + data[8:],
    "a process that died in a write": lambda data: data[:-100],
    "a process that died in the index": lambda data: data[:30],
    "a process that died before its write": lambda data: b"",
    "blocks lost in a power cut": lambda data: bytes(len(data)),
    "bytes after the end": lambda data: data + b"more",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cached_object_is_replaced(
    checkpoint: Checkpoint, spec: StorageSpec, tmp_path: Path, damage: str
) -> None:
    cache = tmp_path / "cache"
    on_a_host(checkpoint, spec, tmp_path / "first", BatchLogCache(cache, ROOMY))
    for path in cached(cache):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    is_harmless = damage == "bytes after the end"
    reads = 0 if is_harmless else BATCHES
    assert on_a_host(checkpoint, spec, tmp_path / "second", BatchLogCache(cache, ROOMY)) == reads
    if not is_harmless:
        assert {path.name: path.read_bytes() for path in cached(cache)} == objects(open_storage(spec))
    assert on_a_host(checkpoint, spec, tmp_path / "third", BatchLogCache(cache, ROOMY)) == 0


def test_damage_after_the_index_was_read_is_found(checkpoint: Checkpoint, spec: StorageSpec, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    on_a_host(checkpoint, spec, tmp_path / "first", BatchLogCache(cache, ROOMY))
    for path in cached(cache):
        path.write_bytes(DAMAGES["a flipped byte in the last member"](path.read_bytes()))
    before = checkpoint.storage.requests.snapshot().read
    checkpoint.assert_right(tmp_path / "second")
    assert checkpoint.storage.requests.snapshot().read - before == BATCHES
    for path in cached(cache):
        path.unlink()
    checkpoint.assert_right(tmp_path / "third")


def test_an_object_that_is_damaged_in_storage_is_reported(
    checkpoint: Checkpoint, spec: StorageSpec, tmp_path: Path
) -> None:
    storage = open_storage(spec)
    path = next(e.path for e in storage.list(names.BATCH_LOGS) if names.parse_batch_log(e.path)[0] == 3)  # type: ignore[index]
    data = storage.read(path)
    storage.replace(path, DAMAGES["a flipped byte in the last member"](data))
    last = max(batch_log.parse_head(data, path).members)
    reader = open_storage(spec, cache=BatchLogCache(tmp_path / "cache", ROOMY))
    for _ in range(2):
        with pytest.raises(CorruptFile, match="checksum"):
            reader.read(last[0].changelog(last[1]))
    storage.replace(path, data)
    assert data.endswith(reader.read(last[0].changelog(last[1])))


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small disk"
    place.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m none '{place}' 2>/dev/null"):
        pytest.skip("only root can mount")
    with contextlib.suppress(OSError), (place / "other data").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    yield place
    os.system(f"umount -l '{place}'")


def test_a_full_disk_is_no_error(checkpoint: Checkpoint, spec: StorageSpec, full_disk: Path, tmp_path: Path) -> None:
    cache = BatchLogCache(full_disk / "cache", ROOMY)
    assert on_a_host(checkpoint, spec, tmp_path / "host", cache) == BATCHES
    assert [path.stat().st_size for path in cached(cache.folder)] == []


def test_a_disk_that_becomes_full_is_no_error(checkpoint: Checkpoint, spec: StorageSpec, tmp_path: Path) -> None:
    cache = BatchLogCache(tmp_path / "cache", ROOMY)
    for name in objects(open_storage(spec)):
        (cache.folder / name).mkdir(parents=True)  # a write to it fails
    assert on_a_host(checkpoint, spec, tmp_path / "host", cache) == BATCHES


@pytest.mark.parametrize("place", ["a file", "not writable"])
def test_an_unusable_folder_is_no_error(checkpoint: Checkpoint, spec: StorageSpec, tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    if place == "a file":
        folder.write_bytes(b"")
    else:
        folder = Path("/proc/sys/no such folder")
    assert on_a_host(checkpoint, spec, tmp_path / "host", BatchLogCache(folder, ROOMY)) == BATCHES


def test_the_least_recently_used_objects_are_removed_above_the_limit(
    checkpoint: Checkpoint, spec: StorageSpec, tmp_path: Path
) -> None:
    sizes = [len(data) for _, data in sorted(objects(open_storage(spec)).items())]
    cache = BatchLogCache(tmp_path / "cache", sum(sizes) - 1)
    reads = on_a_host(checkpoint, spec, tmp_path / "host", cache)
    assert BATCHES <= reads <= 2 * BATCHES * PARTITIONS
    assert sum(path.stat().st_size for path in cached(cache.folder)) < sum(sizes)
    kept = cached(cache.folder)
    assert len(kept) == BATCHES - 1
    for age, path in enumerate(kept):
        os.utime(path, (age, age))
    version = names.parse_batch_log(f"{names.BATCH_LOGS}/{kept[0].name}")[0]  # type: ignore[index]
    reader = open_storage(spec, cache=cache)
    reader.read(checkpoint.stores[0].changelog(checkpoint.versions[version][0]))
    (absent,) = {1, 2, 3, 4, 5} - {names.parse_batch_log(f"{names.BATCH_LOGS}/{p.name}")[0] for p in kept}  # type: ignore[index]
    reader.read(checkpoint.stores[0].changelog(checkpoint.versions[absent][0]))
    # The object that was just used is not the oldest any more. Removals stop when the new object fits.
    assert [path.exists() for path in kept] == [True, False, *[True] * (BATCHES - 3)]


def test_concurrent_writers_stay_below_the_limit(tmp_path: Path) -> None:
    cache = BatchLogCache(tmp_path / "cache", 5_500)
    start = threading.Barrier(8)

    def write(share: int) -> None:
        start.wait(10)
        for number in range(share, 160, 8):
            path = names.batch_log(number, batch_log.tag_of(RandomIds().fresh()))
            with cache.locked(path):
                assert cache.append(path, 0, bytes(1000))
                sizes.append(sum(cache.size_bytes(file.name) for file in cached(cache.folder)))

    sizes: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert max(sizes) <= 5_500


@pytest.fixture
def members(spec: StorageSpec) -> dict[str, bytes]:
    """The changelogs of one large object, by their paths; the object is in storage."""
    tag = batch_log.tag_of(RandomIds().fresh())
    places = [(StorePath(0, n), VersionId(1, batch_log.id_with(tag, RandomIds().fresh()))) for n in range(8)]
    bodies = {place: os.urandom(LARGE) for place in places}
    open_storage(spec).create(names.batch_log(1, tag), batch_log.encode(1, tag, {}, bodies))
    return {store.changelog(version): body for (store, version), body in bodies.items()}


def reads_of(spec: StorageSpec, cache: BatchLogCache | None, members: dict[str, bytes]) -> list[int]:
    """Read members in order, each in a process of its own. Return the number of reads of each."""
    found = []
    for path, body in members.items():
        storage = open_storage(spec, cache=cache)
        assert storage.read(path) == body
        found.append(storage.requests.snapshot().read)
    return found


def test_a_host_reads_two_members_of_a_large_object_by_range_and_then_the_whole_object(
    spec: StorageSpec, tmp_path: Path, members: dict[str, bytes]
) -> None:
    cache = BatchLogCache(tmp_path / "cache", ROOMY)
    assert reads_of(spec, cache, members) == [1, 1, 1, 1, 0, 0, 0, 0]
    (file,) = cached(cache.folder)
    assert {file.name: file.read_bytes()} == objects(open_storage(spec))


def test_a_single_process_fetches_a_large_object_once(
    spec: StorageSpec, tmp_path: Path, members: dict[str, bytes]
) -> None:
    storage = open_storage(spec, cache=BatchLogCache(tmp_path / "cache", ROOMY))
    assert {path: storage.read(path) for path in members} == members
    counts = storage.requests.snapshot()
    assert counts.read == 4
    assert counts.bytes_read < 2 * LARGE + sum(map(len, members.values())) + 10_000


def test_a_damaged_large_object_is_replaced(spec: StorageSpec, tmp_path: Path, members: dict[str, bytes]) -> None:
    cache = BatchLogCache(tmp_path / "cache", ROOMY)
    reads_of(spec, cache, members)
    (file,) = cached(cache.folder)
    data = bytearray(file.read_bytes())
    for place in range(100_000, len(data), 50_000):
        data[place] ^= 1
    file.write_bytes(data)
    assert sum(reads_of(spec, cache, members)) <= 5
    assert {file.name: file.read_bytes()} == objects(open_storage(spec))


def assert_read_by_ranges(spec: StorageSpec, cache: BatchLogCache | None, members: dict[str, bytes]) -> None:
    assert max(reads_of(spec, cache, members)) <= 2
    storage = open_storage(spec, cache=cache)
    assert {path: storage.read(path) for path in members} == members
    assert storage.requests.snapshot().bytes_read < 2 * LARGE + sum(map(len, members.values()))


@pytest.mark.parametrize("cache_bytes", [None, 0, 2 * LARGE])
def test_a_large_object_that_does_not_fit_is_read_by_ranges(
    spec: StorageSpec, tmp_path: Path, members: dict[str, bytes], cache_bytes: int | None
) -> None:
    cache = None if cache_bytes is None else BatchLogCache(tmp_path / "cache", cache_bytes)
    assert_read_by_ranges(spec, cache, members)
    assert sum(path.stat().st_size for path in cached(tmp_path / "cache")) <= (cache_bytes or 0)


def test_a_large_object_is_read_by_ranges_if_the_disk_is_full(
    spec: StorageSpec, full_disk: Path, members: dict[str, bytes]
) -> None:
    assert_read_by_ranges(spec, BatchLogCache(full_disk / "cache", ROOMY), members)


def test_bytes_are_only_added_at_the_end_of_a_file(tmp_path: Path) -> None:
    cache = BatchLogCache(tmp_path / "cache", ROOMY)
    path = names.batch_log(1, batch_log.tag_of(RandomIds().fresh()))
    with cache.locked(path):
        assert cache.append(path, 0, b"front")
        cache.drop(path)
        assert not cache.append(path, 5, b"rest")
    assert cached(cache.folder) == []
