"""Memory of `statekeeper maintain --all --watch` over many passes: of a process that stays for months."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.measure import Table
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.maintenance.rounds.memory import Memory
from statekeeper.statestore.maintenance.rounds.rounds import Rounds
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs.config import Configuration, Policies, Root
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Run
from statekeeper.statestore.storage import StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint

_PASSES = (1_000, 2_500, 5_000, 10_000)
_QUERIES = 5
_EVERY = 1_000
"""Passes from the visit of a query with new batches to the next one."""
_BATCHES = 60
_MOST_GROWTH = 1.1


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark, once: the memory of a process has no rounds."""
    del options
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        folder = Path(name)
        queries = [
            Checkpoint(open_storage(str(folder / f"q{number}")), folder / f"job{number}") for number in range(_QUERIES)
        ]
        for query in queries:
            query.grow(_BATCHES)
        clock = SystemClock()
        by = Maintainer("a benchmark", clock, RandomIds())
        policies = Policies(retention=RetentionPolicy(versions=20, grace_seconds=0))
        roots = {
            f"q{number}": Root(f"q{number}", StorageSpec(str(folder / f"q{number}")), policies)
            for number in range(_QUERIES)
        }
        with Memory.opened(folder / "state.json") as memory:
            rounds = Rounds(
                "fleet",
                lambda: Configuration(roots),
                lambda root, workers: Run(
                    storage=open_storage(root.spec), policies=policies, by=by, scratch=folder, workers=workers
                ),
                memory,
                clock=clock,
                sweep_seconds=0,
            )
            visits = snapshots = 0
            measured: dict[int, tuple[float, int, int]] = {}
            for number in range(1, _PASSES[-1] + 1):
                if number % _EVERY == 0:
                    query = queries[number // _EVERY % _QUERIES]
                    query.grow(_BATCHES)
                    # The states of all versions, for tests: not of the product.
                    del query.states[:-1]
                made = rounds.round()
                visits += len(made.visits)
                snapshots += sum(len(one.taken.taken) for one in made.visits)
                if number in _PASSES:
                    measured[number] = _megabytes(), visits, snapshots
    (first, *_), (last, *_) = measured[_PASSES[0]], measured[_PASSES[-1]]
    verdict = "reached" if last <= _MOST_GROWTH * first else "missed"
    return [
        Table(
            title="Memory of one process over many passes",
            columns=["passes", "MB of memory", "visits", "snapshots"],
            rows=[[f"{n:,}", f"{size:.0f}", f"{of:,}", f"{taken:,}"] for n, (size, of, taken) in measured.items()],
            targets=[
                f"memory after {_PASSES[-1]:,} passes to that after {_PASSES[0]:,}: {last / first:.2f}x, target at most "
                f"{_MOST_GROWTH:g}x: {verdict}"
            ],
            notes=[
                f"{_QUERIES} small queries on local disk. Each pass sweeps all; every {_EVERY} passes one of them has "
                f"{_BATCHES} new batches, gets snapshots, and loses its old files. The process also writes these batches.",
                "Resident memory of the process, as Linux shows it in /proc/self/statm.",
            ],
        )
    ]


def _megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
