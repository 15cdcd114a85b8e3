"""Clones and mirrors of a checkpoint on local disk and in S3, compared with a copy that passes through the client."""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import s3fs

from benchmarks.measure import Spread, Table, flat, ratio
from benchmarks.s3_process import s3_process
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import RequestCounts, Storage, StorageSpec, open_storage
from tests.support import verbs

STORES = 200
_VALUE_BYTES = 50_000
_SMALL_ROWS = 500
"""Of each store; 25 MB with --large."""
_AT_ONCE = 8
_POLICIES = Policies(mode=Mode.FULL)
_LATENCY_SECONDS = 0.02


@dataclass(kw_only=True)
class _Way:
    """One way to copy, with the samples by round. `moved_bytes`: those that pass through the client."""

    name: str
    seconds: list[list[float]] = field(default_factory=list)
    moved_bytes: int = 0
    requests: int = 0

    def sample(self, seconds: float, counts: RequestCounts) -> None:
        """Keep the seconds of a round. Bytes and requests are the same in each."""
        self.seconds.append([seconds])
        self.moved_bytes, self.requests = counts.bytes_read + counts.bytes_written, counts.total


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark: 0.5 GB in total, and 5 GB with --large."""
    rows = _SMALL_ROWS if options.large else _SMALL_ROWS // 10
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        local = StorageSpec(f"{name}/disk")
        tables = [_compare("local disk", local, rows, options.rounds, _copy_folder)]
    with s3_process(_LATENCY_SECONDS) as spec:
        tables.append(_compare("S3", spec, rows, options.rounds, _copy_through_client))
    return tables


def _compare(
    where: str, spec: StorageSpec, rows: int, rounds: int, copy: Callable[[StorageSpec, str, str], RequestCounts]
) -> Table:
    root = _Root(spec, "root", rows)
    total = sum(entry.size_bytes for entry in root.storage.list(""))
    clone, peer, mirror = _Way(name="clone"), _Way(name="copy through the client"), _Way(name="mirror of one batch")
    _mirror(root, "mirror")
    for number in range(rounds):
        started = perf_counter()
        peer_counts = copy(spec, "root", f"copy {number}")
        peer.sample(perf_counter() - started, peer_counts)
        _delete(spec, f"copy {number}")
        clone.sample(*_clone(root, f"clone {number}"))
        _delete(spec, f"clone {number}")
        root.commit(1)
        mirror.sample(*_mirror(root, "mirror"))
    faster = ratio(peer.seconds, clone.seconds)
    new_bytes = root.newest_bytes()
    return Table(
        title=f"Copies of {STORES} stores with {total / 1e9:.1f} GB on {where}",
        columns=["copy", "seconds", "MB through the client", "requests"],
        rows=[
            [way.name, Spread.of(flat(way.seconds)).shown(1), f"{way.moved_bytes / 1e6:,.1f}", f"{way.requests:,}"]
            for way in (clone, peer, mirror)
        ],
        targets=[
            f"clone to the copy through the client: {faster.shown(1, 'x')} as fast",
            f"A mirror of one new batch moves {mirror.moved_bytes / 1e6:,.2f} MB through the client; the new batch has "
            f"{new_bytes / 1e6:,.2f} MB of state, and the checkpoint {total / 1e6:,.0f} MB",
        ],
        notes=[
            f"Each store has one large changelog. Files are copied {_AT_ONCE} at a time in each way. Requests include "
            "listings, leases and the reads of the plan.",
            "The copy through the client: Python's copytree on a local disk; s3fs in S3, as `aws s3 sync` copies between "
            "machines. It verifies nothing and can contain commits without their state.",
            "S3: a server over HTTP in another process of the same machine, which waits "
            f"{_LATENCY_SECONDS * 1000:g} ms before each request. Its server-side copies also take time of this machine.",
            f"{rounds} alternating rounds.",
        ],
    )


class _Root:
    """A native checkpoint in structure V2 with one large changelog in each store. `rows` of 50 KB in each."""

    def __init__(self, spec: StorageSpec, name: str, rows: int) -> None:
        self.spec = spec
        self.storage = open_storage(_below(spec, name))
        self._lineages: list[list[VersionId]] = [[] for _ in range(STORES)]
        self._random = np.random.default_rng(7)
        self._batches = 0
        self.storage.create(names.QUERY_METADATA, logs.encode_metadata(RandomIds().fresh()))
        info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=0, partitions=STORES)
        metadata = operators.OperatorMetadata(0, "stateStoreSave", (info,))
        self.storage.create(names.operator_metadata(0), operators.encode_operator(metadata))
        self.commit(rows)
        self.commit(1)

    def commit(self, rows: int) -> None:
        """Commit a batch with this number of rows in each store."""
        number = self._batches
        conf = {**logs.STATE_CONF, logs.SHUFFLE_PARTITIONS: str(STORES)}
        offsets = logs.OffsetLog(watermark_ms=0, timestamp_ms=number, conf=conf, sources=('{"a":1}',))
        self.storage.create(names.offsets(number), logs.encode_offsets(offsets))
        ids = RandomIds()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            bodies = ((partition, self._changelog(partition, rows), ids.fresh()) for partition in range(STORES))
            for partition, body, fresh in bodies:
                version = VersionId(number + 1, fresh)
                self._lineages[partition].append(version)
                pool.submit(self.storage.create, StorePath(0, partition).changelog(version), body).result()
        marks: logs.ByStore = {0: tuple((str(lineage[-1].id),) for lineage in self._lineages)}
        self.storage.create(names.commits(number), logs.encode_commit(logs.CommitLog(0, marks)))
        self._batches += 1

    def newest_bytes(self) -> int:
        """The bytes of the changelogs of the newest batch."""
        newest = {StorePath(0, number).changelog(lineage[-1]) for number, lineage in enumerate(self._lineages)}
        return sum(entry.size_bytes for entry in self.storage.list(names.STATE) if entry.path in newest)

    def _changelog(self, partition: int, rows: int) -> bytes:
        sink = io.BytesIO()
        writer = ChangelogWriter(sink, Header(tuple(self._lineages[partition])))
        keys = [f"{self._batches}-{row:08}".encode() for row in range(rows)]
        values = [self._random.bytes(_VALUE_BYTES if rows > 1 else 500) for _ in keys]
        writer.append(pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary()))
        writer.finish()
        return sink.getvalue()


def _below(spec: StorageSpec, name: str) -> StorageSpec:
    return StorageSpec(f"{spec.url}/{name}", spec.options)


def _clone(root: _Root, name: str) -> tuple[float, RequestCounts]:
    def make(source: Storage, destination: Storage, by: Maintainer, scratch: Path) -> None:
        prepared = verbs.clone.plan(source, destination, _POLICIES, by)
        verbs.clone.execute(source, destination, prepared, by, scratch=scratch)

    return _measured(root, name, make)


def _mirror(root: _Root, name: str) -> tuple[float, RequestCounts]:
    def make(source: Storage, destination: Storage, by: Maintainer, scratch: Path) -> None:
        prepared = verbs.mirror.plan(source, destination, _POLICIES, by)
        verbs.mirror.execute(source, destination, prepared, by, scratch=scratch)

    return _measured(root, name, make)


def _measured(
    root: _Root, name: str, make: Callable[[Storage, Storage, Maintainer, Path], None]
) -> tuple[float, RequestCounts]:
    """Make a copy; return the seconds and the requests of both roots."""
    source, destination = open_storage(_below(root.spec, "root")), open_storage(_below(root.spec, name))
    with tempfile.TemporaryDirectory() as scratch:
        started = perf_counter()
        make(source, destination, Maintainer("a benchmark", SystemClock(), RandomIds()), Path(scratch))
        seconds = perf_counter() - started
    return seconds, _sum([source.requests.snapshot(), destination.requests.snapshot()])


def _sum(counts: Sequence[RequestCounts]) -> RequestCounts:
    fields = ("read", "create", "replace", "list", "stat", "delete", "bytes_read", "bytes_written")
    return RequestCounts(**{name: sum(getattr(one, name) for one in counts) for name in fields})


def _copy_folder(spec: StorageSpec, source: str, destination: str) -> RequestCounts:
    shutil.copytree(f"{spec.url}/{source}", f"{spec.url}/{destination}")
    files = [path for path in Path(spec.url, destination).rglob("*") if path.is_file()]
    moved = sum(path.stat().st_size for path in files)
    return RequestCounts(read=len(files), create=len(files), bytes_read=moved, bytes_written=moved)


def _copy_through_client(spec: StorageSpec, source: str, destination: str) -> RequestCounts:
    options: dict[str, str] = {name: str(value) for name, value in spec.options}
    fs = s3fs.S3FileSystem(
        key=options["key"],
        secret=options["secret"],
        client_kwargs={"endpoint_url": options["endpoint_url"]},
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    prefix = f"{spec.url.removeprefix('s3://')}/{source}"
    found: dict[str, dict[str, int]] = fs.find(prefix, detail=True)

    def copy(path: str) -> None:
        fs.pipe(path.replace(prefix, prefix.removesuffix(source) + destination, 1), fs.cat_file(path))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(copy, found))
    moved = sum(about["size"] for about in found.values())
    return RequestCounts(read=len(found), create=len(found), list=1, bytes_read=moved, bytes_written=moved)


def _delete(spec: StorageSpec, name: str) -> None:
    storage: Storage = open_storage(_below(spec, name))
    storage.delete([entry.path for entry in storage.list("", hidden=True)])
