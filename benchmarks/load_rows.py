"""Load of a savepoint with rows into a checkpoint: seconds and peak memory."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks import savepoint_rows
from benchmarks.measure import Table
from benchmarks.peak import Peak, peak_of
from benchmarks.state_roots import job_root
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.maintenance.copies.savepoints.saved import read_saved
from statekeeper.statestore.maintenance.rewrites import whole_stores
from statekeeper.statestore.maintenance.rewrites.engine import Machine, Progress
from statekeeper.statestore.storage import open_storage
from tests.support import runs

SIZES = (1_000_000, 10_000_000)
STORES = savepoint_rows.STORES
_MOST_GROWTH = 1.1


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark once for each size."""
    del options  # a round of the largest size takes minutes
    lines, peaks = [], []
    for rows in SIZES:
        with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
            folder = Path(name)
            job_root(folder / "root", rows, STORES)
            peak_of(savepoint_rows.__name__, "save", name)
            job_root(folder / "target", STORES, STORES)
            peak = peak_of(__name__, "load", name)
        peaks.append(peak)
        lines.append(_line(rows, peak))
    growth = peaks[-1].peak_mib / peaks[0].peak_mib
    return [
        Table(
            title=f"Load of a savepoint with rows, {STORES} stores, local disk",
            columns=["rows", "seconds", "rows per second", "peak MiB"],
            rows=lines,
            targets=[
                f"peak memory of {SIZES[-1]:,} rows to {SIZES[0]:,}: {growth:.2f}x, target at most {_MOST_GROWTH}x: "
                f"{'reached' if growth <= _MOST_GROWTH else 'missed'}"
            ],
            notes=[
                "Peak memory is that of the whole process with its imports, at one worker per core.",
                "All steps of the verb except the five seconds in which a checkpoint must be idle: the verification of the "
                "savepoint, the encoding of its rows, the snapshots, their read-back, and both audits.",
            ],
        )
    ]


def load(folder: str) -> dict[str, object]:
    """Load the savepoint in a process of its own; show the progress on stderr."""
    saved, target = open_storage(f"{folder}/savepoint"), open_storage(f"{folder}/target")
    scratch, started = Path(folder) / "scratch", perf_counter()

    def progress(reached: Progress) -> None:
        seconds = perf_counter() - started
        print(f"{reached.phase.value}: {reached.done:,} of {reached.of:,} after {seconds:.0f} s", file=sys.stderr)

    goal = whole_stores.Load(read_saved(saved), saved, True)
    planned = whole_stores.plan(whole_stores.gather(target, scratch=scratch, of_load=True), goal)
    assert not planned.refusals, planned.refusals
    machine = Machine(scratch=scratch, clock=SystemClock(), ids=RandomIds())
    runs.rewrite(target, planned, progress, run=RandomIds().fresh(), holder="a benchmark", machine=machine)
    return {"rows": goal.saved.rows}


def _line(rows: int, peak: Peak) -> list[str]:
    if peak.result["rows"] != rows:
        raise AssertionError(f"the load has {peak.result['rows']:,} of {rows:,} rows")
    return [f"{rows:,}", f"{peak.seconds:.1f}", f"{rows / peak.seconds:,.0f}", f"{peak.peak_mib:.0f}"]
