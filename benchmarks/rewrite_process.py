"""Rewrites of a checkpoint, for benchmarks that run them in a process of their own: see `peak`."""

from __future__ import annotations

from pathlib import Path

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites import engine, switchover, whole_stores
from statekeeper.statestore.maintenance.rewrites.engine import Machine
from statekeeper.statestore.maintenance.rewrites.whole_stores import Convert, Goal, Rescale
from statekeeper.statestore.storage import open_storage
from tests.support import runs


def rescale(checkpoint: str, scratch: str, partitions: str) -> None:
    """Rescale a checkpoint."""
    _rewrite(checkpoint, scratch, Rescale(int(partitions)))


def convert(checkpoint: str, scratch: str) -> None:
    """Convert a checkpoint of Spark's default provider to RocksDB."""
    _rewrite(checkpoint, scratch, Convert(Provider.ROCKSDB, Structure.V1))


def switch(checkpoint: str, scratch: str) -> None:
    """Switch a state root from structure V2 to V1: all snapshots are built. Steps as of the other functions."""
    storage, folder = open_storage(checkpoint), Path(scratch)
    planned = switchover.plan(engine.gather(storage, scratch=folder), Structure.V1)
    assert not planned.refusals, planned.refusals
    machine = Machine(scratch=folder, clock=SystemClock(), ids=RandomIds())
    runs.switch(storage, planned, lambda _: None, run=RandomIds().fresh(), holder="a benchmark", machine=machine)


def _rewrite(checkpoint: str, scratch: str, goal: Goal) -> None:
    """All steps of the verb except the five seconds in which a checkpoint must be idle."""
    storage, folder = open_storage(checkpoint), Path(scratch)
    planned = whole_stores.plan(whole_stores.gather(storage, scratch=folder), goal, Spark.V4_2)
    assert not planned.refusals, planned.refusals
    machine = Machine(scratch=folder, clock=SystemClock(), ids=RandomIds())
    runs.rewrite(storage, planned, lambda _: None, run=RandomIds().fresh(), holder="a benchmark", machine=machine)
