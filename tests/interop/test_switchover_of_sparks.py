"""Native checkpoints, switched to the other structure: Spark continues as in a twin that was not switched.

The outputs of all later batches are compared, and the states as Spark's reader shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rewrites import engine, switchover
from statekeeper.statestore.maintenance.rewrites.engine import Machine
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support import runs
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.native import FORMAT, HERE, NAMED_SINKS, OPERATORS, NativeQuery, state
from tests.support.native_queries import switched
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark

PLAIN: Mapping[str, str] = {}
_NAMED_SINKS: Mapping[str, str] = {NAMED_SINKS: "true"}
MATRIX = [
    *((name, structure, PLAIN) for structure in Structure for name in HERE),
    *(("aggregation", structure, _NAMED_SINKS) for structure in Structure),
]
IN_CI = [("aggregation", Structure.V2, PLAIN)]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


def native_query(
    spark: SparkSession, folder: Path, name: str, structure: Structure, confs: Mapping[str, str] = PLAIN
) -> NativeQuery:
    return NativeQuery(spark, folder / "query", OPERATORS[name], {**structure.conf, **confs})


def _told(value: object) -> str:
    if isinstance(value, Structure):
        return value.value
    return value.replace(" ", "-") if isinstance(value, str) else "named sinks" if value else "plain"


@pytest.mark.parametrize(("name", "structure", "confs"), CASES, ids=_told)
def test_spark_continues_in_the_other_structure_like_a_twin_that_never_switched(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    structure: Structure,
    confs: Mapping[str, str],
) -> None:
    folder = tmp_path_factory.mktemp("switched")
    query = native_query(spark, folder, name, structure, confs)
    query.run(3)
    query.saved("middle")
    middle = state(query)
    storage = open_storage(str(query.checkpoint))
    switched(query, structure.other, folder)
    clean(storage, folder)
    assert state(query) == middle
    query.run(2)
    clean(storage, folder)
    switched(query, structure, folder)
    clean(storage, folder)
    query.run(1)
    switched(query, structure.other, folder)
    query.run(1)
    clean(storage, folder)
    outputs, end = query.outputs, state(query)

    query.restored("middle")
    query.confs |= structure.conf
    query.run(2)
    query.run(1)
    query.run(1)
    assert query.outputs == outputs
    assert state(query) == end


def test_a_checkpoint_whose_conf_was_changed_first_is_switched(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    query = native_query(spark, folder, "aggregation", Structure.V1)
    query.run(3)
    query.saved("middle")
    query.confs |= {FORMAT: "2"}
    with pytest.raises(StreamingQueryException, match="CANNOT_COMMIT"):
        query.run(1)
    assert (query.checkpoint / "offsets" / "3").exists()
    assert (query.checkpoint / "state" / "0" / "0" / "4.changelog").exists()
    switched(query, Structure.V2, folder)
    query.run(1)
    outputs, end = query.outputs, state(query)

    query.restored("middle")
    query.confs |= {FORMAT: "1"}
    query.run(2)
    assert query.outputs == outputs
    assert state(query) == end


@pytest.mark.parametrize("structure", [Structure.V1, pytest.param(Structure.V2, marks=pytest.mark.slow)])
def test_spark_rejects_an_incomplete_switchover_and_continues_after_its_completion_or_abort(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    structure: Structure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("half")
    query = native_query(spark, folder, "aggregation", structure)
    query.run(3)
    query.saved("middle")
    query.run(2)
    outputs, end = query.outputs, state(query)

    # To V2 it dies when all snapshots stand; to V1 when the commit is written and one of the snapshots with ids is away.
    last_write = names.switchover(1, "made-0-1-default") if structure is Structure.V1 else "aside"
    for way_out in ("--apply", "--abort"):
        query.restored("middle")
        query.confs |= structure.conf
        storage = open_storage(str(query.checkpoint))
        snapshots_of(query, folder)
        plan = switchover.plan(engine.gather(storage, scratch=folder), structure.other)
        machine = Machine(scratch=folder, clock=SystemClock(), ids=RandomIds(), workers=1)
        run, dying = RandomIds().fresh(), DiesAfter(storage, last_write)
        with pytest.raises(SimulatedCrash):
            runs.switch(dying, plan, lambda _: None, run=run, holder="a test", machine=machine)
        # The commit decides which structure it is of; a start in that one is refused.
        query.confs |= Structure.V1.conf
        with pytest.raises(StreamingQueryException, match="CANNOT_LOAD_STATE_STORE"):
            query.run(1)
        lease.break_lease(storage, run=RandomIds().fresh(), holder="a test", clock=SystemClock())
        direction = ["--to", structure.other.value] if way_out == "--apply" else []
        statekeeper("switch", str(query.checkpoint), way_out, *direction, "--confirm-stopped")
        query.confs |= (structure.other if way_out == "--apply" else structure).conf
        query.run(1)
        assert query.outputs == outputs, "the batch that was refused was run as well"
        assert state(query) == end


class DiesAfter(FaultyStorage):
    """The process dies when it has written a certain file, or put one quarantine."""

    def __init__(self, inner: Storage, what: str) -> None:
        super().__init__(inner)
        self._what = what

    def _fault_of(self, request: Request) -> Fault | None:
        if self._what == "aside":
            is_it = request.kind is Kind.REPLACE and request.path.startswith(names.QUARANTINE)
        else:
            is_it = request.kind is Kind.REPLACE and request.path == self._what
        return Fault.AFTER if is_it else None


def snapshots_of(query: NativeQuery, folder: Path) -> None:
    """One of each store at its head."""
    root = str(query.checkpoint)
    statekeeper("snapshot", root, "--at-head", "--confirm-stopped", "--mode", "snapshots", "--scratch", str(folder))
