"""Peak memory and requests of audit and retention, by partitions and batches. Each measurement has its own process."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import growing_roots
from benchmarks.growing_roots import Shape
from benchmarks.measure import Table
from benchmarks.peak import Peak, peak_of
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.maintenance.upkeep import audit, retention
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.storage import open_storage

PARTITIONS = (10, 200, 1_000)
BATCHES = (10, 1_000, 100_000)
UNMAINTAINED = (Shape(10, 100_000, 100_000), Shape(200, 10_000, 10_000))
MOST_GROWTH = 1.3
_RETAINED = 5
_LOGGED = 20
_IN_MEMORY = Path("/dev/shm")


def collect(root: str) -> list[int]:
    """Plan like `statekeeper gc`. Return the number of requests and of files to delete."""
    storage, policy = open_storage(root), RetentionPolicy(versions=_RETAINED, grace_seconds=0)
    planned = retention.plan(retention.gather(storage, policy, clock=SystemClock()), policy)
    assert not planned.findings
    return [storage.requests.snapshot().total, len(planned.deletions)]


def look(root: str) -> list[int]:
    """Audit like `statekeeper audit`. Return the number of requests and of findings."""
    storage = open_storage(root)
    found = audit.judge(audit.gather(storage))
    return [storage.requests.snapshot().total, len(found.findings)]


def tables(options: argparse.Namespace) -> list[Table]:
    """Measure maintenance, and return its table."""
    del options
    shapes = [Shape(wide, long, min(long, _LOGGED)) for wide in PARTITIONS for long in BATCHES]
    found: list[tuple[Shape, Peak, Peak]] = []
    for shape in (*shapes, *UNMAINTAINED):
        with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
            growing_roots.make(Path(folder), shape)
            gc, audited = (peak_of(__name__, name, folder) for name in ("collect", "look"))
        found.append((shape, gc, audited))
    kept, unmaintained = found[: len(shapes)], found[len(shapes) :]
    growth = max(_growth(kept, which) for which in (1, 2))
    columns = ["partitions, batches", "batches in the log", "gc MiB", "requests", "s", "audit MiB", "requests", "s"]
    return [
        Table(
            title="Peak memory of maintenance by partitions and batches",
            columns=columns,
            rows=[_row(*one) for one in found],
            targets=[
                f"largest ratio of 100,000 batches to 10, gc or audit: {growth:.2f}x, target at most {MOST_GROWTH}x: "
                f"{'reached' if growth <= MOST_GROWTH else 'missed'}",
            ],
            notes=[
                "Peak of the whole process; the interpreter and the library alone take "
                f"{found[0][1].imported_mib:.0f} MiB. gc: the plan. audit: gather and judge.",
                f"Native checkpoints in structure V2 with files of {growing_roots.VERSIONS} versions, {_RETAINED} of "
                f"them retained. The first rows: maintained checkpoints with {_LOGGED} batches in their logs. The last "
                f"{len(unmaintained)} rows: the logs were never purged.",
            ],
        )
    ]


def _row(shape: Shape, gc: Peak, audited: Peak) -> Sequence[str]:
    figures = [[f"{p.peak_mib:.0f}", f"{p.result[0]:,}", f"{p.cpu_seconds:.1f}"] for p in (gc, audited)]
    return [f"{shape.partitions:,}, {shape.batches:,}", f"{shape.logged:,}", *figures[0], *figures[1]]


def _growth(kept: Sequence[tuple[Shape, Peak, Peak]], which: int) -> float:
    """Return the largest ratio of the most batches to the fewest, over all partitions."""
    peaks = {(one[0].partitions, one[0].batches): one[which].peak_mib for one in kept}  # type: ignore[union-attr]
    return max(peaks[wide, BATCHES[-1]] / peaks[wide, BATCHES[0]] for wide in PARTITIONS)
