"""Drills compared with Spark's `statestore` reader, on checkpoints that Spark writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.contents.rows import contents_at, layout, opened
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.records import drills
from statekeeper.statestore.maintenance.upkeep.drill import (
    Against,
    Drilled,
    DrillStore,
    Reason,
    StoreFacts,
    Verdict,
)
from statekeeper.statestore.maintenance.upkeep.drill.sparks import compare
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import perform
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from statekeeper.statestore.store.engine.rocks import Database
from tests.support.drills import drilled, planned
from tests.support.keyed_operators import KEYED
from tests.support.native import DEFAULT_PROVIDER, FORMAT, OPERATORS, NativeQuery, Operator
from tests.support.s3_server import S3Server
from tests.support.switching import take_snapshots

pytestmark = pytest.mark.spark


def _with_rows_of_one_minute(operator: Operator) -> Operator:
    """Several rows have the same key and event time."""

    def query(left: DataFrame, right: DataFrame) -> DataFrame:
        by_minute = [one.withColumn("at", F.date_trunc("minute", "at")) for one in (left, right)]
        return operator.query(*(one.withColumn("k", F.concat(F.lit("key "), F.col("x") % 3)) for one in by_minute))

    return replace(operator, query=query)


CASES = {
    "aggregation in structure V2": (OPERATORS["aggregation"], {FORMAT: "2"}),
    "sessions in structure V1": (OPERATORS["sessions"], {FORMAT: "1"}),
    "join 2 on the default provider": (OPERATORS["join 2"], DEFAULT_PROVIDER),
    "join 2 in structure V2": (OPERATORS["join 2"], {FORMAT: "2"}),
    "join 3 in structure V1": (OPERATORS["join 3"], {FORMAT: "1"}),
    "join 4 in structure V2": (_with_rows_of_one_minute(OPERATORS["join 4"]), {FORMAT: "2"}),
    "transformWithState in structure V2": (OPERATORS["transformWithState"], {FORMAT: "2"}),
    "transformWithState with times to live in structure V1": (KEYED["transformWithStateInPandas"], {FORMAT: "1"}),
    "transformWithState in event time": (KEYED["transformWithState"], {FORMAT: "2"}),
}
IN_CI = "transformWithState in structure V2"


@pytest.fixture(
    scope="module", params=[one if one == IN_CI else pytest.param(one, marks=pytest.mark.slow) for one in CASES]
)
def query(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> NativeQuery:
    folder = tmp_path_factory.mktemp("drilled")
    operator, confs = CASES[request.param]
    query = NativeQuery(spark, folder / "query", operator, confs)
    query.run(2)
    if confs is not DEFAULT_PROVIDER:
        take_snapshots(open_storage(query.root), folder / "scratch", at_head=True)
    return query


HOW = {"sample": 100, "against_spark": True, "mode": Mode.OBSERVE}


def by_spark(one: Drilled) -> list[bool | None]:
    """Whether Spark's reader shows the same rows, if that proves them."""
    found = [comparison for comparison in one.comparisons if comparison.against is Against.SPARK]
    return [comparison.is_equal if comparison.is_decided else None for comparison in found]


def test_the_restored_rows_are_those_that_spark_shows(
    query: NativeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    storage = open_storage(query.root)
    on_record: list[int] = []
    made = planned(storage, tmp_path / "scratch", sample=100, against_spark=True)
    found = perform(made, lambda step: on_record.append(len(drills.read(storage)))).made
    assert found is not None
    for one in found.drilled:
        assert by_spark(one) == [True], one.explained
    assert found.is_green
    stores = len(found.drilled)
    assert on_record == [0] * stores + [stores] * stores, "the restores are on record before Spark starts"
    assert all(one.is_proved for one in drills.read(storage).values())
    # A negative control: a restore that loses a row of one family.
    full = max(found.drilled, key=lambda one: one.rows).action.store
    families = _families_with_rows(storage, full, tmp_path)
    is_slow = request.node.get_closest_marker("slow") is not None
    for name, prefix in families.items() if is_slow else list(families.items())[:1]:
        with monkeypatch.context() as patch:
            patch.setattr(Database, "scan", _without_a_row(prefix))
            [wrong] = drilled(storage, tmp_path / "scratch", **HOW, stores=(str(full),)).drilled
        assert wrong.verdict is Verdict.DIFFERS, name
        assert "differs from Spark's reader at batch " in wrong.explained
        assert name is None or f", column family {name}" in wrong.explained


def _families_with_rows(storage: Storage, store: StorePath, scratch: Path) -> dict[str | None, bytes]:
    """The first bytes of the keys of each family, those that only Spark's repartition reads first."""
    contents = contents_at(storage)
    assert contents is not None
    with opened(contents, store, layout(contents, store), scratch=scratch, clock=SystemClock(), ids=RandomIds()) as one:
        found = {pairs.family for pairs in one.pairs()}
        ids = one.families
    named = sorted(name for name in found if name is not None)
    return {name: ids[name].to_bytes(2, "little") for name in named} or {None: b""}


def _without_a_row(prefix: bytes) -> Callable[..., Iterator[tuple[list[bytes], list[bytes]]]]:
    real = Database.scan

    def scan(database: Database, *given: Any) -> Iterator[tuple[list[bytes], list[bytes]]]:
        is_lost = False
        for keys, values in real(database, *given):
            pairs = list(zip(keys, values, strict=True))
            at = next((n for n, (key, _) in enumerate(pairs) if key.startswith(prefix)), None)
            if not is_lost and at is not None:
                is_lost = True
                del pairs[at]
            yield [key for key, _ in pairs], [value for _, value in pairs]

    return scan


def test_a_difference_that_spark_has_shown_survives_a_later_error(query: NativeQuery, tmp_path: Path) -> None:
    """Another store has no schema, and the storage fails at the end."""
    storage = open_storage(query.root)
    contents = contents_at(storage)
    assert contents is not None
    wrong, lost = min(contents.stores), StorePath(9, 0)
    digests = dict.fromkeys(layout(contents, wrong).families, "1:aa")

    @contextmanager
    def failing(batch: int, stores: object) -> Iterator[Storage]:
        yield storage
        raise StorageError("timed out", path=f"{batch} {stores}")

    restored = [(_of(store, contents.batch + 1), digests) for store in (wrong, lost)]
    structure = catalog.structure_at(storage, contents.batch)
    found = compare(contents, restored, structure, at=failing, is_copy=False)
    assert found[wrong].is_equal is False
    assert found[lost].is_equal is None
    assert "its schema is not found" in found[lost].why


def _of(store: StorePath, version: int) -> DrillStore:
    return DrillStore(facts=StoreFacts(store=store, version=VersionId(version), load=None), reason=Reason.ASKED)


def test_spark_reads_a_copy_of_the_sampled_stores_of_a_bucket(
    query: NativeQuery, tmp_path: Path, s3_server: S3Server
) -> None:
    storage = open_storage(query.root)
    spec = StorageSpec(f"s3://{s3_server.make_bucket()}/root", tuple(s3_server.options.items()))
    bucket = open_storage(spec)
    for entry in storage.list(""):
        bucket.create(entry.path, storage.read(entry.path))
    found = drilled(bucket, tmp_path / "scratch", **{**HOW, "sample": 1})
    [one] = found.drilled
    assert by_spark(one) == [True], one.explained
    assert " of a local copy" in one.explained
    assert not list((tmp_path / "scratch").iterdir())
