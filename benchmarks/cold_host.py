"""Load of all stores by a host without local state: an object per store and batch, and batch logs."""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.measure import Spread, Table, flat, ratio
from benchmarks.s3_process import s3_process
from benchmarks.state_roots import Changes, changes
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.storage import BatchLogCache, RequestCounts, StorageSpec, at_once, open_storage
from statekeeper.statestore.store.state_store import StateStore, StoreAddress

PARTITIONS = 200
TAILS = (10, 50)
_ROWS = 20
_KEYS = 1000
_LATENCY_SECONDS = 0.02
_SLOTS = os.cpu_count() or 1
_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class _Root:
    """A root, and the newest version of each of its stores."""

    spec: StorageSpec
    heads: Sequence[VersionId]


@dataclass(kw_only=True)
class _Mode:
    """One way to keep the changelogs, with the samples by round."""

    name: str
    root: _Root
    is_cached: bool
    reads: int = 0
    megabytes: float = 0.0
    seconds: list[list[float]] = field(default_factory=list)


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    with s3_process(_LATENCY_SECONDS) as spec, contextlib.ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        slots = [stack.enter_context(ProcessPoolExecutor(1, mp_context=context)) for _ in range(_SLOTS)]
        return [_table(tail, _measured(spec, tail, slots, options.rounds), options.rounds) for tail in TAILS]


def _measured(spec: StorageSpec, tail: int, slots: Sequence[ProcessPoolExecutor], rounds: int) -> list[_Mode]:
    in_stores, in_logs = (_write_root(spec, tail, in_batch_logs=one) for one in (False, True))
    modes = [
        _Mode(name='log="stores"', root=in_stores, is_cached=True),
        _Mode(name='log="batch", in the memory of each process', root=in_logs, is_cached=False),
        _Mode(name='log="batch", on the disk of the host', root=in_logs, is_cached=True),
    ]
    for mode in modes:
        _load_all(mode, slots, range(_SLOTS))  # imports, connections
    for _ in range(rounds):
        for mode in modes:
            seconds, counts = _load_all(mode, slots, range(PARTITIONS))
            mode.seconds.append([seconds])
            mode.reads = sum(one.read for one in counts)
            mode.megabytes = sum(one.bytes_read for one in counts) / 1e6
    return modes


def _load_all(
    mode: _Mode, slots: Sequence[ProcessPoolExecutor], partitions: Sequence[int]
) -> tuple[float, list[RequestCounts]]:
    """Load the stores of these partitions in all processes of a new host. Returns seconds and the requests of each."""
    with tempfile.TemporaryDirectory(prefix="statekeeper-host-") as host:
        started = perf_counter()
        shares = np.array_split(np.asarray(partitions), len(slots))
        runs = [
            slot.submit(_load, mode.root, share.tolist(), Path(host), mode.is_cached)
            for slot, share in zip(slots, shares, strict=True)
        ]
        counts = [run.result() for run in runs]
        return perf_counter() - started, counts


def _load(root: _Root, partitions: Sequence[int], host: Path, is_cached: bool) -> RequestCounts:
    """Load stores one after another, as a task does. Returns the requests."""
    cache = BatchLogCache(host / names.CACHED_BATCH_LOGS, _CACHE_BYTES) if is_cached else None
    storage = open_storage(root.spec, cache=cache)
    for partition in partitions:
        address = StoreAddress(StorePath(0, partition), host / f"0-{partition}")
        head = root.heads[partition]
        StateStore.load(address, head, storage=storage, clock=SystemClock(), ids=RandomIds()).abort()
    return storage.requests.snapshot()


def _write_root(spec: StorageSpec, tail: int, *, in_batch_logs: bool) -> _Root:
    """Write the changelogs of all stores, without snapshots."""
    spec = StorageSpec(f"{spec.url}/{tail}-{in_batch_logs}", spec.options)
    storage, ids = open_storage(spec), RandomIds()
    random = np.random.default_rng(tail)
    lineages: list[list[VersionId]] = [[] for _ in range(PARTITIONS)]
    for version in range(1, tail + 1):
        tag = batch_log.tag_of(ids.fresh())
        written = {}
        for partition, lineage in enumerate(lineages):
            fresh = ids.fresh()
            new = VersionId(version, batch_log.id_with(tag, fresh) if in_batch_logs else fresh)
            rows = changes(random, random.choice(_KEYS, _ROWS, replace=False))
            written[StorePath(0, partition), new] = _changelog(lineage, list(rows))
            lineage.append(new)
        objects: Mapping[str, bytes] = (
            {names.batch_log(version, tag): batch_log.encode(version, tag, {}, written)}
            if in_batch_logs
            else {store.changelog(of): body for (store, of), body in written.items()}
        )

        def create(path: str, objects: Mapping[str, bytes] = objects) -> None:
            storage.create(path, objects[path])

        at_once(create, list(objects))
    return _Root(spec, [lineage[-1] for lineage in lineages])


def _changelog(lineage: Sequence[VersionId], rows: Sequence[Changes]) -> bytes:
    sink = io.BytesIO()
    writer = ChangelogWriter(sink, Header(tuple(lineage)))
    for keys, values in rows:
        writer.append(keys, values)
    writer.finish()
    return sink.getvalue()


def _table(tail: int, modes: Sequence[_Mode], rounds: int) -> Table:
    stores, memory, disk = modes
    return Table(
        title=f"Load of {PARTITIONS} stores with a tail of {tail} changelogs on a host without local state",
        columns=["changelogs", "GET requests", "MB read", "seconds", "times as fast as the first"],
        rows=[
            [
                mode.name,
                f"{mode.reads:,}",
                f"{mode.megabytes:.1f}",
                Spread.of(flat(mode.seconds)).shown(1),
                ratio(stores.seconds, mode.seconds).shown(1, "x"),
            ]
            for mode in modes
        ],
        targets=[
            f"GET requests for each batch and host: {disk.reads / tail:g}, target 1: "
            f"{'reached' if disk.reads == tail else 'missed'}",
            f"Seconds, on the disk to in the memory: {ratio(disk.seconds, memory.seconds).shown(2, 'x')}",
        ],
        notes=[
            f"{_SLOTS} processes, one per slot, load an equal share of adjacent partitions each. Each batch changes "
            f"{_ROWS} of {_KEYS:,} keys in each store; the stores have no snapshot.",
            "An S3 server over HTTP, in another process on the same machine. It waits "
            f"{_LATENCY_SECONDS * 1000:g} ms before each request and executes one request at a time. No hedging.",
            f"{rounds} alternating rounds, each on a new host. Without the start of the processes.",
        ],
    )
