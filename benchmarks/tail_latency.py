"""Latency of a batch's objects on a store with slow requests: hedged and not, one object and 400."""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import perf_counter

from benchmarks.measure import Spread, Table, flat, verdict
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from statekeeper.statestore.storage.hedging import percentile
from tests.support.s3_server import S3Server

_MILLISECONDS = (
    (0.0, 250.0),
    (0.5, 459.0),
    (0.9, 740.0),
    (0.95, 833.0),
    (0.99, 1039.0),
    (0.999, 3202.0),
    (1.0, 4500.0),
)
"""FLIP-158's measured latencies of writes to S3, between which the logarithm is interpolated. The ends are assumed."""
_SCALE = 0.2
_AT_ONCE = 8
_WARM = 200
_SINGLE = 3000
_BATCHES = 3
_OBJECTS = 400
_BODY = bytes(4096)
_SHARES = (0.5, 0.99, 0.999)


@dataclass
class _Mode:
    """One way to send the requests, its storage, and its samples in milliseconds by round."""

    name: str
    storage: Storage
    single: list[list[float]] = field(default_factory=list)
    batches: list[list[float]] = field(default_factory=list)


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    with _server() as new_root:
        modes = [_Mode(name, new_root(hedge)) for name, hedge in (("once", "false"), ("hedged", "true"))]
        names = itertools.count()
        for mode in modes:
            _create(mode.storage, names, _WARM)
        for _ in range(options.rounds):
            for mode in modes:
                mode.single.append(_create(mode.storage, names, _SINGLE))
                batches = [_create(mode.storage, names, _OBJECTS, whole=True) for _ in range(_BATCHES)]
                mode.batches.append([milliseconds for (milliseconds,) in batches])
        return [_table(modes, options.rounds)]


def _table(modes: Sequence[_Mode], rounds: int) -> Table:
    once, hedged = modes
    cuts = [
        1 - percentile(sorted(b), 0.999) / percentile(sorted(a), 0.999)
        for a, b in zip(once.single, hedged.single, strict=True)
    ]
    counts = hedged.storage.requests.snapshot()
    first = counts.create - counts.hedges_sent
    more = counts.hedges_sent / first
    return Table(
        title="Milliseconds until the objects of a batch are created",
        columns=["objects", "requests", "p50", "p99", "p999", "longest"],
        rows=[
            *(_row("1", mode.name, flat(mode.single)) for mode in modes),
            *(_row(f"{_OBJECTS}", mode.name, flat(mode.batches)) for mode in modes),
        ],
        targets=[
            verdict("One object, p999 lower by", Spread.of([100 * cut for cut in cuts]), at_least=47, unit=" %"),
            f"More requests: {100 * more:.1f} %, target at most 5 %: {'reached' if more <= 0.05 else 'missed'}",
        ],
        notes=[
            "An S3 server over HTTP, in another process. Before it executes a request, it waits for a time from FLIP-158's "
            "table of writes to S3 (p50 459, p90 740, p95 833, p99 1,039, p999 3,202 ms), times "
            f"{_SCALE:g}. Server and client add some milliseconds.",
            f"{rounds} rounds in turns, each with {_SINGLE:,} creates of one object and {_BATCHES} batches of {_OBJECTS} "
            f"objects, {_AT_ONCE} requests at a time. A dash: fewer samples than the percentile needs.",
            f"Second requests: {counts.hedges_sent:,} of {first:,}, of which {counts.hedges_won:,} had the first reply.",
        ],
    )


def _row(objects: str, requests: str, samples: Sequence[float]) -> list[str]:
    return [objects, requests, *(_shown(samples, share) for share in _SHARES), f"{max(samples):,.0f}"]


def _shown(samples: Sequence[float], share: float) -> str:
    is_known = len(samples) * (1 - share) >= 0.99
    return f"{percentile(sorted(samples), share):,.0f}" if is_known else "-"


def _create(storage: Storage, names: Iterator[int], objects: int, *, whole: bool = False) -> list[float]:
    """Create objects. Returns the milliseconds of each, or those of all together."""

    def create(name: int) -> float:
        started = perf_counter()
        storage.create(f"objects/{name}", _BODY)
        return 1000 * (perf_counter() - started)

    started = perf_counter()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        each = list(pool.map(create, [next(names) for _ in range(objects)]))
    return [1000 * (perf_counter() - started)] if whole else each


@contextmanager
def _server() -> Iterator[Callable[[str], Storage]]:
    """A slow S3 server in a process of its own, so that it does not share the client's interpreter. Yields a function that
    opens a new root with or without hedging."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        options, buckets = here.recv()
        remaining = iter(buckets)

        def new_root(hedge: str) -> Storage:
            return open_storage(StorageSpec(f"s3://{next(remaining)}/root", (*options.items(), ("hedge", hedge))))

        yield new_root
    finally:
        here.send("stop")
        process.join()


def _serve(connection: Connection) -> None:
    server = S3Server()
    server.start()
    buckets = [server.make_bucket() for _ in range(2)]
    chance = random.Random(158)
    server.latency_seconds = lambda: _SCALE * _drawn(chance.random()) / 1000
    connection.send((server.options, buckets))
    connection.recv()
    server.stop()


def _drawn(share: float) -> float:
    """Return the milliseconds that a share of the requests does not exceed."""
    for (low, least), (high, most) in itertools.pairwise(_MILLISECONDS):
        if share <= high:
            return math.exp(math.log(least) + (math.log(most) - math.log(least)) * (share - low) / (high - low))
    raise ValueError(f"no share: {share}")
