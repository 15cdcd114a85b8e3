"""Switchover of 200 stores between the structures V1 and V2: seconds and bytes, compared with a plain copy."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.measure import Spread, Table, ratio
from benchmarks.state_roots import StateRoot, changes
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites import engine, switchover
from statekeeper.statestore.maintenance.rewrites.engine import Machine, RewritePhase
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchPlan
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.root import binding
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.storage import Storage, at_once, open_storage
from tests.support import runs

STORES = 200
KEYS = 5_000
TAIL = 20
CHANGED = 500
_SCHEMA = StoreSchema("counts", '{"type":"struct","fields":[]}', '{"type":"struct","fields":[]}')


@dataclass(frozen=True, kw_only=True)
class _Move:
    """One switchover. `expected_bytes`: size of the bases and tails. `copy_seconds`: duration of a plain copy of them."""

    seconds: float
    expected_bytes: int
    read_bytes: int
    written_bytes: int
    requests: int
    copy_seconds: float


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark: each round switches to V1, which builds every snapshot, and back to V2, which reuses each."""
    moves: dict[str, list[_Move]] = {"to V1, snapshots built": [], "to V2, snapshots reused": []}
    with tempfile.TemporaryDirectory() as folder:
        root = StateRoot(Path(folder) / "root", STORES)
        _describe(root)
        random = np.random.default_rng(11)
        _grow(root, random, np.arange(KEYS))
        _take_snapshots(root, Path(folder))
        for _ in range(options.rounds):
            for _ in range(TAIL):
                _grow(root, random, random.choice(KEYS, CHANGED, replace=False))
            for name, to in zip(moves, (Structure.V1, Structure.V2), strict=True):
                moves[name].append(_move(root.storage, to, Path(folder)))
            _adopt_heads(root)
    return [
        Table(
            title=f"{STORES} stores of {KEYS:,} keys, {TAIL} changelogs of {CHANGED} since the newest snapshot",
            columns=[
                "switchover",
                "s",
                "bytes read, ratio to base and tail",
                "MiB written",
                "requests",
                "time, ratio to a copy",
            ],
            rows=[_row(name, of_name) for name, of_name in moves.items()],
            targets=[
                f"bytes read to bytes of base and tail, {name}: "
                f"{Spread.of([m.read_bytes / m.expected_bytes for m in of_name]).shown(2, 'x')}"
                for name, of_name in moves.items()
            ],
            notes=[
                "All steps except the five seconds in which a checkpoint must be idle: audits before and after, building "
                "the snapshots, reading them back, comparing digests of all keys and values, and the commit.",
                "A copy reads the same bases and tails and writes them under other names, with the same number of workers.",
                "If a snapshot is reused, only its zip is written.",
                "Root and scratch folder are on the local disk.",
            ],
        )
    ]


def _row(name: str, moves: list[_Move]) -> list[str]:
    copies = ratio([[move.seconds] for move in moves], [[move.copy_seconds] for move in moves])
    return [
        name,
        Spread.of([move.seconds for move in moves]).shown(1),
        Spread.of([move.read_bytes / move.expected_bytes for move in moves]).shown(2, "x"),
        Spread.of([move.written_bytes / 2**20 for move in moves]).shown(1),
        Spread.of([float(move.requests) for move in moves]).shown(),
        copies.shown(1, "x"),
    ]


def _move(storage: Storage, to: Structure, folder: Path) -> _Move:
    copy_seconds = _copied(storage, switchover.plan(engine.gather(storage, scratch=folder), to), folder)
    before, started = storage.requests.snapshot(), perf_counter()
    planned = switchover.plan(engine.gather(storage, scratch=folder), to)
    assert not planned.refusals, planned.refusals
    reached = set()
    runs.switch(
        storage,
        planned,
        lambda progress: reached.add(progress.phase),
        run=RandomIds().fresh(),
        holder="a benchmark",
        machine=Machine(scratch=folder, clock=SystemClock(), ids=RandomIds()),
    )
    seconds, spent = perf_counter() - started, storage.requests.since(before)
    assert RewritePhase.ENDED in reached
    return _Move(
        seconds=seconds,
        expected_bytes=planned.read_bytes,
        read_bytes=spent.bytes_read,
        written_bytes=spent.bytes_written,
        requests=spent.total,
        copy_seconds=copy_seconds,
    )


def _copied(storage: Storage, planned: SwitchPlan, folder: Path) -> float:
    """Copy the bases and tails of the switchover, and return the seconds."""
    paths = []
    for step in planned.stores:
        paths += [step.store.changelog(version) for version in step.load.replay]
        paths += [entry.path for entry in storage.list(f"{step.store.folder}/SSTs")]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        copies = open_storage(name)

        def copy(path: str) -> None:
            copies.create(path, storage.read(path))

        started = perf_counter()
        at_once(copy, paths)
        return perf_counter() - started


def _describe(root: StateRoot) -> None:
    """Write the metadata that an audit requires."""
    storage = root.storage
    storage.delete([names.QUERY_METADATA])
    bound = binding.Binding(
        root_id="the root", query_id="a query", partitions=len(root.stores), key_groups=64, stores=(_SCHEMA,)
    )
    storage.replace(names.BINDING, binding.encode_binding(bound))
    storage.create(names.QUERY_METADATA, logs.encode_metadata(bound.root_id))
    storage.create(names.state_schema(0), operators.encode_schema(_SCHEMA.key_json, _SCHEMA.value_json))


def _grow(root: StateRoot, random: np.random.Generator, numbers: np.ndarray) -> None:
    pieces = list(changes(random, numbers))
    root.commit([pieces] * len(root.stores))
    batch = root.heads[0].version - 1
    offsets = logs.OffsetLog(watermark_ms=0, timestamp_ms=batch, conf=logs.STATE_CONF, sources=('"a source"',))
    root.storage.create(names.offsets(batch), logs.encode_offsets(offsets))


def _take_snapshots(root: StateRoot, folder: Path) -> None:
    for action in snapshot.plan(snapshot.gather(root.storage), snapshot.SnapshotPolicy(), take_all=True).take:
        snapshot.execute(root.storage, action, scratch=folder, clock=SystemClock(), ids=RandomIds())
    root.snapshots_are_known()


def _adopt_heads(root: StateRoot) -> None:
    """Continue the lineages from the ids of the switchover."""
    gathered = snapshot.gather(root.storage)
    heads = {fact.store: fact.head for fact in gathered.stores}
    root.lineages = [[heads[store]] for store in root.stores]
