"""A `transformWithStateInPandas` query with timers and times to live, after each rewrite: like a twin, each timer fires
once, and only expired values are gone.

The query is that of `tests.support.expiring_query`. No test waits for a clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.dumped import dumped
from tests.support.expiring_query import HOUR_MS, OPERATOR, SOON_MS
from tests.support.loads import savepoint
from tests.support.native import NativeQuery
from tests.support.twins import SHUFFLE_PARTITIONS, clean, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DELETED = "key 1"
APPLY = ("--apply", "--confirm-stopped")


class Timed:
    """The query in the middle of its batches, and the outputs of a twin in the batches after it."""

    def __init__(self, spark: SparkSession, folder: Path, structure: Structure) -> None:
        self.folder, self.structure = folder, structure
        confs = {**structure.conf, SHUFFLE_PARTITIONS: "2"}
        self.query = NativeQuery(spark, folder, OPERATOR, confs)
        self.query.run(3)
        self.query.saved("middle")
        self.middle, self.newest = rows(self.query.root), max(self.query.outputs)
        self.query.run(2)
        self.twin = self.later()

    def later(self) -> list[Counter[str]]:
        """Return the outputs of the batches after the middle, without a batch that a rewrite has appended."""
        outputs = self.query.outputs
        return [outputs[batch] for batch in sorted(outputs) if batch > self.newest and outputs[batch]]

    def run(self, verb: str, *options: str) -> str:
        return statekeeper(verb, self.query.root, *options, "--scratch", str(self.folder / "scratch"))


def rows(root: str) -> Counter[str]:
    """Return all rows with their timers and expiry times, whatever their partitions."""
    return Counter(
        json.dumps([row["store"].split("/")[3:], row["key"], row["value"], row.get("family")]) for row in dumped(root)
    )


def rescaled(timed: Timed) -> None:
    timed.run("rescale", "--partitions", "5", *APPLY)


def switched(timed: Timed) -> None:
    other = timed.structure.other
    timed.run("switch", "--to", other.value, *APPLY)
    timed.query.confs = {**timed.query.confs, **other.conf}


def switched_twice(timed: Timed) -> None:
    switched(timed)
    timed.run("switch", "--to", timed.structure.value, *APPLY)
    timed.query.confs = {**timed.query.confs, **timed.structure.conf}


def edited_and_undone(timed: Timed) -> None:
    told = timed.run("edit", "--operator", "0", "--delete", f"k={DELETED}", *APPLY)
    statekeeper("edit", timed.query.root, "--undo", told.split("--undo ")[1].split()[0], "--confirm-stopped")


REWRITES: tuple[Callable[[Timed], None], ...] = (rescaled, switched, switched_twice, edited_and_undone)


@pytest.fixture(scope="module", params=Structure, ids=lambda one: one.value)
def timed(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Timed:
    return Timed(spark, tmp_path_factory.mktemp("timed"), request.param)


@pytest.fixture
def middle(timed: Timed) -> Timed:
    timed.query.restored("middle")
    timed.query.confs = {**timed.query.confs, **timed.structure.conf}
    return timed


def test_the_twin_fires_each_timer_once_and_forgets_only_expired_values(timed: Timed) -> None:
    for outputs in timed.twin:
        assert max(outputs.values()) == 1
        fired = [row for row in outputs if "kind='timer'" in row]
        assert len(fired) > 5
        shown = [row for row in outputs if "kind='rows'" in row]
        assert all(f"{SOON_MS}: None [] []" in row for row in shown)
        assert any(f"{HOUR_MS}: None [] []" not in row and "far timer: True" in row for row in shown)


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda one: one.__name__)
def test_timers_and_times_to_live_survive_a_rewrite(middle: Timed, rewrite: Callable[[Timed], None]) -> None:
    rewrite(middle)
    assert rows(middle.query.root) == middle.middle
    middle.query.run(2)
    assert middle.later() == middle.twin
    clean(open_storage(middle.query.root), middle.folder / "scratch")


def test_a_deleted_key_loses_its_timers_and_no_other_key_does(middle: Timed) -> None:
    def without(outputs: list[Counter[str]]) -> list[Counter[str]]:
        return [Counter({row: n for row, n in one.items() if f"k='{DELETED}'" not in row}) for one in outputs]

    middle.run("edit", "--operator", "0", "--delete", f"k={DELETED}", *APPLY)
    assert not any(f'"{DELETED}"' in row for row in rows(middle.query.root))
    middle.query.run(2)
    assert without(middle.later()) == without(middle.twin)
    assert middle.later() != middle.twin
    clean(open_storage(middle.query.root), middle.folder / "scratch")


def test_timers_and_times_to_live_of_a_savepoint_continue_in_another_query(spark: SparkSession, middle: Timed) -> None:
    of = savepoint(open_storage(middle.query.root), middle.folder / f"rows of {middle.structure.value}")
    other = NativeQuery(
        spark, middle.folder / "another query", OPERATOR, {**middle.structure.conf, SHUFFLE_PARTITIONS: "3"}
    )
    other.batches = 9
    other.run(1)
    begun = max(other.outputs)
    options = ("--replace-state", *APPLY, "--scratch", str(middle.folder / "scratch"), "--for-spark", "4.2")
    statekeeper("load", of.url, other.root, *options)
    assert rows(other.root) == middle.middle
    other.batches = 3
    other.run(2)
    assert [
        other.outputs[batch] for batch in sorted(other.outputs) if batch > begun and other.outputs[batch]
    ] == middle.twin
    clean(open_storage(other.root), middle.folder / "scratch")


def test_a_conversion_to_the_default_provider_is_refused_without_a_change(middle: Timed) -> None:
    told = " ".join(statekeeper("convert", middle.query.root, "--to", "hdfs", *APPLY, exit_code=3).split())
    assert "column families" in told
    middle.query.run(2)
    assert middle.later() == middle.twin
