"""The state as a Delta table: the first load, and a run with few changed keys, compared with a merge by `deltalake`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.measure import Spread, Table
from benchmarks.peak import Peak, peak_of
from benchmarks.state_roots import GROUPS, StateRoot, changes, job_root
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format.key_groups import KeyGroups
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.publish import Publish
from statekeeper.statestore.storage import open_storage

SIZES = (100_000, 1_000_000, 10_000_000)
STORES = 8
CHANGED = 10_000
RUNS = 5
_MOST_GROWTH = 2.0
_MOST_SECONDS = 2.0


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark once for each size."""
    del options  # a round of the largest size takes minutes
    lines, loads, runs = [], [], []
    for rows in SIZES:
        with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
            folder = Path(name)
            root = job_root(folder / "root", rows, STORES)
            load = peak_of(__name__, "publish", name)
            _require(load.result["rows"], rows)
            seconds, peaks = [], []
            for number in range(RUNS):
                _change(root, rows, number)
                made = peak_of(__name__, "publish", name)
                _require(made.result["inserted"] + made.result["updated"], CHANGED)
                seconds.append(made.result["seconds"])
                peaks.append(made)
            merge = peak_of(__name__, "merge", name, str(rows))
            lines.append(_line(rows, load, Spread.of(seconds), peaks, merge))
            loads.append(load)
            runs.append(Spread.of(seconds).median)
    growth = loads[-1].peak_mib / loads[-2].peak_mib
    slower = runs[-1] - runs[0]
    return [
        Table(
            title=f"State of {STORES} stores as a Delta table on local disk; later runs with {CHANGED:,} changed keys",
            columns=[
                "rows",
                "first load, s",
                "peak MiB",
                "later run, s",
                "peak MiB",
                "merge by deltalake, s",
                "peak MiB",
            ],
            rows=lines,
            targets=[
                f"peak memory of the first load of {SIZES[-1]:,} rows to {SIZES[-2]:,}: {growth:.2f}x, target at most "
                f"{_MOST_GROWTH}x: {'reached' if growth <= _MOST_GROWTH else 'missed'}",
                f"a later run of {SIZES[-1]:,} rows takes {slower:.2f} s more than one of {SIZES[0]:,}, target at most "
                f"{_MOST_SECONDS} s: {'reached' if slower <= _MOST_SECONDS else 'missed'}",
            ],
            notes=[
                "Seconds of a run are those in the process, without its start. Peak memory is that of the whole process.",
                f"The {CHANGED:,} keys of a run are random, so that each data file of the table has some of them. A run "
                "reads 24 bytes of each row of the table, the hashes of its key and value, and writes only changed rows.",
                "Peer: deltalake merges as many random rows into the rows of the first load. It rewrites all data files.",
            ],
        )
    ]


def publish(folder: str) -> dict[str, object]:
    """Publish in a process of its own."""
    started = perf_counter()
    by = Maintainer("a benchmark", SystemClock(), RandomIds())
    run = Run(storage=open_storage(f"{folder}/root"), by=by, scratch=Path(folder) / "scratch")
    made = perform(prepare(Publish(destination=f"{folder}/table"), run)).made
    assert made is not None
    seconds = perf_counter() - started
    print(f"{made.way.value}: {made.rows:,} rows after {seconds:.1f} s", file=sys.stderr)
    return {"rows": made.rows, "inserted": made.inserted, "updated": made.updated, "seconds": seconds}


def merge(folder: str, rows: str) -> dict[str, object]:
    """Merge rows with `deltalake` into a copy of the first version of the table, without its deletion vectors."""
    from deltalake import write_deltalake

    table = f"{folder}/peer"
    random = np.random.default_rng(1)
    numbers = np.arange(int(rows))
    for some in np.array_split(numbers, max(1, len(numbers) // 1_000_000)):
        write_deltalake(table, _rows(random, some), mode="append")
    changed = _rows(random, random.choice(numbers, CHANGED, replace=False))
    started = perf_counter()
    (
        DeltaTable(table)
        .merge(changed, "t.key = s.key", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    return {"seconds": perf_counter() - started}


def _rows(random: np.random.Generator, numbers: np.ndarray) -> pa.Table:
    count = len(numbers)
    return pa.table({"key": numbers, "count": random.integers(0, 1_000_000, count), "mean": random.random(count)})


def _change(root: StateRoot, rows: int, number: int) -> None:
    random = np.random.default_rng(100 + number)
    numbers = np.sort(random.choice(rows, CHANGED, replace=False))
    groups = partitions_of(row_hashes(pa.table({"key": numbers})), GROUPS).astype(np.int64)
    places = KeyGroups(GROUPS).partitions_of(groups, STORES)
    root.commit([changes(random, numbers[places == store]) for store in range(STORES)])


def _require(found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"{found:,} rows instead of {expected:,}")


def _line(rows: int, load: Peak, run_seconds: Spread, runs: list[Peak], peer: Peak) -> list[str]:
    return [
        f"{rows:,}",
        f"{load.result['seconds']:.1f}",
        f"{load.peak_mib:.0f}",
        run_seconds.shown(2),
        f"{max(one.peak_mib for one in runs):.0f}",
        f"{peer.result['seconds']:.1f}",
        f"{peer.peak_mib:.0f}",
    ]
