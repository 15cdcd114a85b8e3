"""The deep audit's word against Spark's: a small part of `make audit-oracle`, and checkpoints that were moved."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, gather, judge
from statekeeper.statestore.storage import open_storage
from tests.interop.oracle import CLEAN, FINDING, Oracle, asked, table
from tests.support.native import FORMAT, OPERATORS, NativeQuery, state
from tests.support.twins import statekeeper

pytestmark = pytest.mark.spark

# One of its five variables is enough to see whether the schema is found.
OPERATOR = replace(OPERATORS["transformWithState"], views=({"stateVarName": "total"},))


def test_spark_starts_from_each_checkpoint_that_a_deep_audit_accepts(spark: SparkSession, tmp_path: Path) -> None:
    oracle = Oracle(spark, tmp_path / "oracle", ("v1-aggregation",))
    results = asked(oracle, 3, range(6), lambda result: None)
    assert [one for one in results if one.is_missed] == [], table(results)
    assert {FINDING} <= {one.audit for one in results} <= {FINDING, CLEAN, "unproven"}


@pytest.mark.slow
def test_spark_starts_from_a_moved_checkpoint_after_its_repair(spark: SparkSession, tmp_path: Path) -> None:
    query = NativeQuery(spark, tmp_path / "query", OPERATOR, {FORMAT: "2"})
    query.run(2)
    before = state(query)
    place, former = tmp_path / "moved" / "checkpoint", query.checkpoint
    place.parent.mkdir()
    shutil.move(former, place)
    query.checkpoint = place
    [found] = judge(gather(open_storage(query.root))).findings
    assert found.kind is FindingKind.DESCRIPTION_MOVED
    with pytest.raises(Exception, match=re.escape(str(former))):
        state(query)
    told = statekeeper("repair", query.root, "--apply", "--confirm-stopped")
    [run] = re.findall(r"--undo ([0-9a-f-]{36})", told)
    statekeeper("repair", query.root, "--undo", run, "--confirm-stopped")
    with pytest.raises(Exception, match=re.escape(str(former))):
        query.run(1)
    statekeeper("repair", query.root, "--apply", "--confirm-stopped")
    assert state(query) == before
    query.run(0)
    assert judge(gather(open_storage(query.root), scratch=tmp_path / "scratch")).findings == ()
    twin = NativeQuery(spark, tmp_path / "twin", OPERATOR, {FORMAT: "2"})
    twin.run(3)
    assert query.outputs == twin.outputs
    assert state(query) == state(twin)
