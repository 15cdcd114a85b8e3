"""What a comparison with Spark's reader proves. `interop/test_drills_against_spark.py` makes it with Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from statekeeper.statestore.base.errors import UnsupportedEnvironment
from statekeeper.statestore.checkpoint.lineage import BaseKind, LoadPlan
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.maintenance.upkeep.drill import (
    Against,
    Comparison,
    Drilled,
    DrillStore,
    Reason,
    StoreFacts,
    Verdict,
)
from statekeeper.statestore.maintenance.upkeep.drill.sparks import Seen, unknown, views
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import prepare
from statekeeper.statestore.maintenance.verbs.drill import Drill
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import apart, verbs
from tests.support.keyed_roots import KeyedRoot

FACTS = StoreFacts(
    store=StorePath(0, 0),
    version=VersionId(3),
    load=LoadPlan(BaseKind.NOTHING, EMPTY, (VersionId(1), VersionId(2), VersionId(3)), ()),
    no_older="it has no snapshot",
)
ROWS, OTHER_ROWS = "1:aa", "1:bb"


def drilled(seen: Seen) -> Drilled:
    action = DrillStore(facts=FACTS, reason=Reason.NEVER)
    return Drilled(action=action, digest=ROWS, comparisons=(seen.comparison(2, is_copy=False),))


def test_equal_rows_of_all_families_are_green() -> None:
    seen = Seen({"total": ROWS})
    seen.add("total", ROWS)
    seen.add("of no row", "0:00000000000000000000000000000000")
    found = drilled(seen)
    assert found.verdict is Verdict.SAME
    assert found.explained == "equal to 2 column families of Spark's reader at batch 2"


def test_a_family_that_the_reader_does_not_show_is_named_and_not_green() -> None:
    seen = Seen({"total": ROWS, "$ttl_total": ROWS})
    seen.add("total", ROWS)
    seen.unknown |= dict.fromkeys(["$ttl_total", "$min_seen"], "not shown by the reader of Spark 4.1.4")
    found = drilled(seen)
    assert (found.verdict, found.is_proved) == (Verdict.NOT_COMPARED, False)
    assert found.explained == (
        "not compared: it has no snapshot; equal to 1 column family of Spark's reader at batch 2; column families "
        "$min_seen, $ttl_total: not shown by the reader of Spark 4.1.4"
    )


def test_a_store_that_spark_does_not_show_is_not_green_if_another_comparison_proves_its_rows() -> None:
    """Its rows are proved for later drills."""
    replay = Comparison(against=Against.REPLAY, what="the replay", is_equal=True)
    found = Drilled(
        action=DrillStore(facts=FACTS, reason=Reason.NEVER),
        digest=ROWS,
        comparisons=(replay, unknown("Spark's reader fails: no memory")),
    )
    assert (found.verdict, found.is_proved) == (Verdict.NOT_COMPARED, True)
    assert found.explained == ("equal to the replay; not compared with Spark's reader: Spark's reader fails: no memory")


def test_a_family_that_the_reader_does_not_show_is_named_beside_another_comparison() -> None:
    seen = Seen({"total": ROWS, "$ttl_total": ROWS})
    seen.add("total", ROWS)
    seen.leave("not shown")
    replay = Comparison(against=Against.REPLAY, what="the replay", is_equal=True)
    comparisons = (replay, seen.comparison(2, is_copy=False))
    found = Drilled(action=DrillStore(facts=FACTS, reason=Reason.NEVER), digest=ROWS, comparisons=comparisons)
    assert found.explained == (
        "equal to the replay; with Spark's reader, not all was compared: equal to 1 column family of Spark's reader at "
        "batch 2; column family $ttl_total: not shown"
    )


def test_a_family_that_differs_is_a_finding_beside_one_that_is_not_shown() -> None:
    seen = Seen({"total": ROWS, "lost": ROWS})
    seen.add("total", OTHER_ROWS)
    seen.add("lost", "0:00000000000000000000000000000000")
    seen.unknown["$ttl_total"] = "not shown"
    found = drilled(seen)
    assert found.verdict is Verdict.DIFFERS
    assert found.explained == "differs from Spark's reader at batch 2, column family total: other rows"


def test_each_family_is_read_once() -> None:
    families = ["total", "$ttl_total", "$min_list", "$procTimers_keyToTimestamp", "$procTimers_timestampToKey"]
    for operator in ("transformWithStateInPandasExec", "symmetricHashJoin", "an operator of a later Spark"):
        shown = [family for view in views(operator, "default", families) for family in view.families]
        assert sorted(shown, key=str) == sorted(families), operator
    assert [view.options for view in views("symmetricHashJoin", "left-keyToNumValues", [None])] == [
        (("storeName", "left-keyToNumValues"),)
    ]


def test_a_store_without_rows_that_spark_does_not_read_is_not_compared() -> None:
    seen = Seen({})
    seen.leave("the storage fails")
    assert seen.comparison(2, is_copy=False) == unknown("the storage fails")


# -- where it is possible ----------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Storage:
    made = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "hosts", partitions=1)
    made.grow(1)
    return made.storage


def refusals(root: Storage, tmp_path: Path, **how: Any) -> list[str]:
    run = verbs.a_run(root, Policies(mode=Mode.SNAPSHOTS), scratch=tmp_path, **how)
    found = prepare(Drill(against_spark=True), run).refusals
    assert all(isinstance(one, UnsupportedEnvironment) for one in found)
    return [f"{one.what} -> {one.hint}" for one in found]


def test_a_drill_on_a_cluster_is_not_compared_with_spark_on_its_hosts(root: Storage, tmp_path: Path) -> None:
    [refusal] = refusals(root, tmp_path, cluster=apart.elsewhere(scratch=tmp_path / "another host"))
    assert "the hosts of a cluster cannot read" in refusal
    assert f"run: statekeeper drill {root.url} --against-spark --executor local." in refusal


def test_a_spark_without_the_reader_is_refused_before_a_store_is_restored(
    root: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusals(root, tmp_path) == []
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert ["Spark Connect" in one for one in refusals(root, tmp_path)] == [True]
    monkeypatch.setattr(pyspark, "__version__", "3.5.8")
    assert ["PySpark 3.5.8 is installed" in one for one in refusals(root, tmp_path)] == [True]


def test_a_spark_that_does_not_start_leaves_the_restores_not_compared(root: Storage, tmp_path: Path) -> None:
    """In a process of its own, without Java."""
    done = subprocess.run(
        [sys.executable, "-m", "statekeeper", "drill", root.url, "--against-spark", "--output", "json"],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "no java")},
        capture_output=True,
        text=True,
        check=False,
    )
    shown = json.loads(done.stdout)
    assert done.returncode == 4, done.stderr
    assert {one["verdict"] for one in shown["restored"]} == {"not_compared"}
    assert all("Spark does not start: " in one["explained"] for one in shown["restored"])
