"""A native query starts while gc, which was planned when the query was stopped, has not deleted yet, or deletes just then.

The query and its twin get the same batches. gc may delete less than planned, and never what a start needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.storage import open_storage
from tests.support import verbs
from tests.support.maintainers import MAINTAINER
from tests.support.native import OPERATORS, STATE_STORE, NativeQuery, state
from tests.support.twins import clean, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RETAINED = 2
TRIES = 50
SNAPSHOT_PER_BATCH = {f"{STATE_STORE}minDeltasForSnapshot": "1", f"{STATE_STORE}maintenanceInterval": "200ms"}
"""Spark uploads snapshots, too, so that it writes and reuses SST files beside gc."""


@dataclass
class Planned:
    """A query that was stopped when gc was planned, and the results of a twin."""

    query: NativeQuery
    plan: verbs.Seen
    scratch: Path

    def execute(self) -> None:
        verbs.retention.execute(open_storage(self.query.root), self.plan, MAINTAINER, scratch=self.scratch)


def stopped_with_a_plan(spark: SparkSession, folder: Path, structure: Structure) -> tuple[Planned, NativeQuery]:
    """Run a query, and plan to delete all that is older than its newest batches, and all files that nothing references."""
    confs = {**structure.conf, **SNAPSHOT_PER_BATCH}
    query, twin = (NativeQuery(spark, folder / name, OPERATORS["aggregation"], confs) for name in ("query", "twin"))
    for one in (query, twin):
        one.run(3)
    scratch = folder / "scratch"
    statekeeper(
        *("snapshot", query.root, "--at-head", "--confirm-stopped", "--mode", "snapshots", "--scratch", str(scratch))
    )
    policies = replace(Policies(), retention=RetentionPolicy(versions=RETAINED, grace_seconds=0))
    # Files of a batch that failed: gc may delete them as long as the query is stopped.
    plan = verbs.retention.plan(
        open_storage(query.root), policies, clock=SystemClock(), mode=Mode.FULL, everything=True, stopped=True
    )
    assert plan.plan.deletions
    return Planned(query, plan, scratch), twin


def before_the_start(planned: Planned) -> None:
    planned.execute()
    planned.query.run(2)


def after_two_batches(planned: Planned) -> None:
    planned.query.run(2)
    for _ in range(TRIES):
        with suppress(RefusedAsUnsafe):  # Spark's maintenance still uploads a snapshot
            planned.execute()
            return
    raise AssertionError("the checkpoint never came to rest")


def during_the_batches(planned: Planned) -> None:
    failed: list[BaseException] = []

    def delete() -> None:
        try:
            planned.execute()
        except RefusedAsUnsafe:
            pass  # gc has noticed the query
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=delete)
    thread.start()
    planned.query.run(2)
    thread.join()
    assert failed == []


@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
@pytest.mark.parametrize(
    "when", [before_the_start, after_two_batches, during_the_batches], ids=lambda one: one.__name__
)
def test_a_query_that_starts_while_gc_has_a_plan_continues_like_its_twin(
    spark: SparkSession, tmp_path: Path, structure: Structure, when: Callable[[Planned], None]
) -> None:
    planned, twin = stopped_with_a_plan(spark, tmp_path, structure)
    when(planned)
    query = planned.query
    clean(open_storage(query.root), tmp_path / "audit")
    query.run(2)
    twin.run(4)
    assert query.outputs == twin.outputs
    assert state(query) == state(twin)
    clean(open_storage(query.root), tmp_path / "audit")
