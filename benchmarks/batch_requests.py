"""Requests of a batch by the number of stores: an object for each store, and a batch log."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pyarrow as pa

from benchmarks.measure import Table
from benchmarks.native_query import DOLLARS_PER_READ, DOLLARS_PER_WRITE
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import batch_log, logs
from statekeeper.statestore.format.batch_log import Place
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_rows import key_schema
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.root.state_root import Pending, Ready, StateRoot
from statekeeper.statestore.storage import RequestCounts, Storage, StorageSpec, open_storage
from statekeeper.statestore.store.state_store import BatchLogPart, StateStore, StoreAddress
from tests.support.s3_server import S3Server

_QUERY = "00000000-0000-4000-8000-000000000000"
_BATCHES_A_DAY = 24 * 3600
_WARM_BATCHES = 3
_SIZES = ((8, 1), (8, 3), (64, 1), (64, 3), (200, 1))
_LARGE = ((200, 3), (1000, 1), (1000, 3))


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. The counts do not vary, so there is one round."""
    server = S3Server()
    server.start()
    rows = []
    try:
        for partitions, stores in (*_SIZES, *(_LARGE if options.large else ())):
            counts = [_counted(server, partitions, stores, in_batch_log=one) for one in (False, True)]
            prices = [_dollars(one) * _BATCHES_A_DAY for one in counts]
            rows.append(
                [f"{partitions:,}", str(stores)]
                + [f"{one.total:,}" for one in counts]
                + [f"{price:,.2f}" for price in prices]
                + [f"{prices[0] / prices[1]:.1f}x"]
            )
    finally:
        server.stop()
    return [
        Table(
            title="Requests of the state in a batch, and their price",
            columns=[
                "partitions",
                "stores each",
                'requests, log="stores"',
                'requests, log="batch"',
                "dollars a day, stores",
                "dollars a day, batch",
                "price",
            ],
            rows=rows,
            targets=[],
            notes=[
                "Driver and tasks of one batch on warm hosts, without Spark and without a sink, on an S3 server over HTTP. "
                "Each store changes one key.",
                f"A batch every second. Prices: {DOLLARS_PER_WRITE * 1000:g} dollars per 1,000 PUT and LIST requests, "
                f"{DOLLARS_PER_READ * 1000:g} per 1,000 GET and HEAD requests.",
            ],
        )
    ]


def _dollars(counts: RequestCounts) -> float:
    writes = counts.create + counts.replace + counts.list
    return writes * DOLLARS_PER_WRITE + (counts.read + counts.stat) * DOLLARS_PER_READ


def _counted(server: S3Server, partitions: int, stores: int, *, in_batch_log: bool) -> RequestCounts:
    """Count the requests of one batch after the first ones."""
    storage = open_storage(StorageSpec(f"s3://{server.make_bucket()}/root", tuple(server.options.items())))
    schema = spark_schema_json(key_schema(pa.schema([("key", pa.string())])))
    described = tuple(StoreSchema(f"store {number}", schema, schema) for number in range(stores))
    root = StateRoot.open(
        storage,
        Binding(root_id="", query_id=_QUERY, partitions=partitions, key_groups=max(128, partitions), stores=described),
        batch=0,
        ids=RandomIds(),
    )
    with tempfile.TemporaryDirectory(prefix="statekeeper-requests-") as folder:
        for batch in range(_WARM_BATCHES):
            before = storage.requests.snapshot()
            _batch(root, storage, batch, Path(folder), in_batch_log=in_batch_log)
    return storage.requests.since(before)


def _batch(root: StateRoot, storage: Storage, batch: int, folder: Path, *, in_batch_log: bool) -> None:
    sources = (f'"{batch}"',)
    ready = root.begin(batch, logs.OffsetLog(watermark_ms=0, timestamp_ms=batch, conf={}, sources=sources))
    assert isinstance(ready, Ready)
    attempt = RandomIds().fresh()
    part = BatchLogPart(batch_log.tag_of(attempt), 1 << 18) if in_batch_log else None
    ids: dict[int, tuple[str, ...]] = {}
    members: dict[Place, bytes] = {}
    for operator, bases in ready.bases.items():
        versions = []
        for partition, base in enumerate(bases):
            store = StorePath(operator, partition)
            version, member = _commit(store, base, storage, folder, part)
            versions.append(str(version.id))
            if member is not None:
                members[store, version] = member
        ids[operator] = tuple(versions)
    pending = Pending(
        batch=batch,
        attempt=attempt,
        root_id=root.binding.root_id,
        query_id=_QUERY,
        sources=sources,
        schema=root.schema(),
        ids=ids,
    )
    root.write_pending(pending, members if in_batch_log else None)
    root.commit(batch, ids)


def _commit(
    store: StorePath, base: VersionId, storage: Storage, folder: Path, part: BatchLogPart | None
) -> tuple[VersionId, bytes | None]:
    address = StoreAddress(store, folder / f"{store.operator}-{store.partition}")
    clock = SystemClock()
    with StateStore.load(address, base, storage=storage, clock=clock, ids=RandomIds(), batch_log=part) as opened:
        opened.put(pa.array([b"key"], pa.large_binary()), pa.array([b"%d" % base.version], pa.large_binary()))
        return opened.commit(), opened.member
