"""Drills compared with Spark's `statestore` reader, on checkpoints that Spark writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.maintenance.records import drills
from statekeeper.statestore.maintenance.upkeep.drill import Against, Verdict
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import perform
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.store.engine.rocks import Database
from tests.support.drills import drilled, planned
from tests.support.native import DEFAULT_PROVIDER, FORMAT, OPERATORS, NativeQuery
from tests.support.switching import take_snapshots

pytestmark = pytest.mark.spark

CASES = {
    "aggregation in structure V2": ("aggregation", {FORMAT: "2"}),
    "sessions in structure V1": ("sessions", {FORMAT: "1"}),
    "join 2 on the default provider": ("join 2", DEFAULT_PROVIDER),
}
IN_CI = "aggregation in structure V2"


@pytest.mark.parametrize("case", [one if one == IN_CI else pytest.param(one, marks=pytest.mark.slow) for one in CASES])
def test_the_restored_rows_are_those_that_spark_shows(
    spark: SparkSession, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, confs = CASES[case]
    query = NativeQuery(spark, tmp_path / "query", OPERATORS[name], confs)
    query.run(2)
    storage = open_storage(query.root)
    if confs is not DEFAULT_PROVIDER:
        take_snapshots(storage, tmp_path / "scratch", at_head=True)
    how = {"sample": 100, "against_spark": True, "mode": Mode.OBSERVE}
    found = drilled(storage, tmp_path / "scratch", **how)
    assert found.drilled
    for one in found.drilled:
        by_spark = [comparison for comparison in one.comparisons if comparison.against is Against.SPARK]
        assert [comparison.is_equal for comparison in by_spark] == [True], one.explained
    assert found.is_green
    on_record: list[int] = []
    made = planned(storage, tmp_path / "scratch", sample=100, against_spark=True)
    perform(made, lambda step: on_record.append(len(drills.read(storage))))
    stores = len(found.drilled)
    assert on_record == [0] * stores + [stores] * stores, "the restores are on record before Spark starts"
    assert all(one.is_proved for one in drills.read(storage).values())
    # A negative control: a store whose restore loses a row.
    real = Database.scan

    def without_the_first_row(self, *given, **named):  # type: ignore[no-untyped-def]
        lost = True
        for keys, values in real(self, *given, **named):
            yield (keys[1:], values[1:]) if lost else (keys, values)
            lost = False

    monkeypatch.setattr(Database, "scan", without_the_first_row)
    wrong = drilled(storage, tmp_path / "scratch", **how)
    with_rows = [one for one in wrong.drilled if one.rows]
    assert with_rows
    assert {one.verdict for one in with_rows} == {Verdict.DIFFERS}
    assert all("differs from Spark's reader at batch " in one.explained for one in with_rows)
