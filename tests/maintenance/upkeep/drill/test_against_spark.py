"""What a comparison with Spark's reader proves. `interop/test_drills_against_spark.py` makes it with Spark."""

from __future__ import annotations

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
    assert found.explained == (
        "equal to the replay; with Spark's reader, not all was compared: Spark's reader fails: no memory"
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
