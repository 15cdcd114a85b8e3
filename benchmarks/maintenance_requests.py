"""Requests of audit and retention for 1,000 stores."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.measure import Table
from benchmarks.state_roots import StateRoot, changes
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.upkeep import audit, retention, snapshot
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from tests.support import runs

STORES = 1_000
VERSIONS = 100
CHANGED = 10
RETAINED = 40
_KEYS = 5
_IN_MEMORY = Path("/dev/shm")
_AUDIT_REQUESTS_A_STORE = 3
_AUDIT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """One pass over the root. `stores`: number of examined stores. `read`: number and bytes of base files read in full."""

    name: str
    stores: int
    requests: int
    deleted: int
    seconds: float
    read: tuple[int, int] = (0, 0)

    def row(self) -> list[str]:
        files, size_bytes = self.read
        read = f"{files:,} ({size_bytes / 2**20:,.1f} MiB)" if files else "0"
        return [self.name, f"{self.stores:,}", f"{self.requests:,}", read, f"{self.deleted:,}", f"{self.seconds:.1f}"]


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. Each pass runs once: the number of requests is deterministic."""
    del options
    # Use a memory disk if there is one: on other disks, writing the root takes minutes.
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
        root = StateRoot(Path(folder) / "root", STORES)
        _grow(root, VERSIONS // 2)
        _take_snapshots(root, Path(folder), STORES)
        root.snapshots_are_known()
        _grow(root, VERSIONS // 2)
        audited = _audit(root)
        passes = [_collect(root, "retention, the first pass: all stores")]
        _take_snapshots(root, Path(folder), CHANGED)
        _grow(root, RETAINED - 1)
        passes.append(_collect(root, f"retention, {CHANGED} stores changed"))
        passes.append(_collect(root, "retention, nothing changed"))
    in_bounds = audited.requests <= (_AUDIT_REQUESTS_A_STORE + 1) * STORES + 2 * VERSIONS
    is_quick = audited.seconds < _AUDIT_SECONDS
    return [
        Table(
            title=f"{STORES:,} stores of {VERSIONS} versions and one snapshot each",
            columns=["pass", "stores examined", "requests", "files read in full", "files deleted", "s"],
            rows=[audited.row(), *(one.row() for one in passes)],
            targets=[
                f"audit: {audited.requests / STORES:.2f} requests per store, target at most {_AUDIT_REQUESTS_A_STORE} "
                f"and one per snapshot: {'reached' if in_bounds else 'missed'}",
                f"audit: {audited.seconds:.1f} s, target below {_AUDIT_SECONDS:.0f} s: "
                f"{'reached' if is_quick else 'missed'}",
                f"retention: {passes[1].requests / CHANGED:.1f} requests per changed store, including "
                f"{passes[2].requests / CHANGED:.1f} that are also sent without a change",
                f"reads before deletion: {passes[0].read[0] / STORES:.1f} files per store in the first pass, then "
                f"{passes[1].read[0] / CHANGED:.1f} per changed store, {passes[2].read[0]} without a change",
            ],
            notes=[
                f"Spark's own maintenance lists each of the {STORES:,} stores once a minute.",
                "A listing of any length counts as one request; S3 returns at most 1,000 names per request.",
            ],
        )
    ]


def _grow(root: StateRoot, batches: int) -> None:
    random = np.random.default_rng(7)
    for _ in range(batches):
        # All stores get the same changes: the number of requests does not depend on them.
        pieces = list(changes(random, random.integers(0, 10_000, _KEYS)))
        root.commit([pieces] * len(root.stores))


def _take_snapshots(root: StateRoot, scratch: Path, stores: int) -> None:
    clock, ids = SystemClock(), RandomIds()
    planned = snapshot.plan(snapshot.gather(root.storage), snapshot.SnapshotPolicy(), take_all=True)
    planned = replace(planned, take=planned.take[:stores])

    def ended(action: snapshot.TakeSnapshot, outcome: snapshot.Taken | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            raise outcome

    runs.take_snapshots(
        root.storage, planned, ended, scratch=scratch / "scratch", holder="a benchmark", clock=clock, ids=ids
    )


def _audit(root: StateRoot) -> _Pass:
    started, before = perf_counter(), root.storage.requests.snapshot()
    result = audit.judge(audit.gather(root.storage))
    spent = root.storage.requests.since(before).total
    return _Pass(name="audit", stores=len(result.stores), requests=spent, deleted=0, seconds=perf_counter() - started)


def _collect(root: StateRoot, name: str) -> _Pass:
    """Run retention like `statekeeper gc --apply`."""
    clock, policy = SystemClock(), RetentionPolicy(versions=RETAINED, grace_seconds=0)
    started, before = perf_counter(), root.storage.requests.snapshot()
    gathered = retention.gather(root.storage, policy, clock=clock)
    planned = retention.plan(gathered, policy)
    steps = runs.delete(root.storage, gathered, planned, holder="a benchmark", clock=clock, ids=RandomIds())
    done = list(steps)
    spent = root.storage.requests.since(before).total
    deleted = sum(step.files for step in done)
    read = (sum(step.read_files for step in done), sum(step.read_bytes for step in done))
    return _Pass(
        name=name,
        stores=len(gathered.chains),
        requests=spent,
        deleted=deleted,
        seconds=perf_counter() - started,
        read=read,
    )
