"""Retention purges `offsets/` and `commits/` of native queries, and each Spark starts from the remaining files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.storage import Storage, open_storage
from tests.interop.sparks import remote
from tests.interop.sparks.remote import ENVIRONMENTS, MINORS, RemoteQuery, Sparks
from tests.support import twins
from tests.support.native import FORMAT, OPERATORS, NativeQuery, state

BATCHES, RETAINED = 4, 2
OLDEST = BATCHES - RETAINED


def batches(storage: Storage, folder: str) -> list[int]:
    return sorted(int(entry.path.rpartition("/")[2]) for entry in storage.list(folder))


def collected(query: NativeQuery, scratch: Path, *for_spark: str) -> None:
    """Some batches, a snapshot of every store, more batches, and a gc that retains these."""
    query.run(OLDEST)
    options = ["--mode", "snapshots", "--scratch", str(scratch), *for_spark]
    twins.statekeeper("snapshot", query.root, *twins.AT_HEAD, *options)
    query.run(RETAINED)
    retain = ["--retain", str(RETAINED), "--grace", "0s", "--mode", "full"]
    twins.statekeeper("gc", query.root, *retain, "--apply")
    storage = open_storage(query.root)
    assert batches(storage, names.COMMITS) == list(range(OLDEST, BATCHES))
    assert batches(storage, names.OFFSETS) == list(range(OLDEST - 1, BATCHES)), "a start reads one more"
    logs = {entry.path for folder in (names.OFFSETS, names.COMMITS) for entry in storage.list(folder, hidden=True)}
    shown = {path for path in logs if "/." not in path}
    assert logs - shown == {names.hidden_checksum(path) for path in shown}, "Hadoop's checksums go with their logs"
    twins.clean(storage, scratch, but=frozenset({FindingKind.SNAPSHOT_OF_SPARK_4_0}) if for_spark else frozenset())


def ended_well(_: Storage) -> None:
    pass


def died_in_its_last_batch(storage: Storage) -> None:
    storage.delete([names.commits(BATCHES - 1)])


def taken_back_to_the_oldest_retained_batch(storage: Storage) -> None:
    storage.delete([path(batch) for batch in range(OLDEST + 1, BATCHES) for path in (names.commits, names.offsets)])


STANDING = (ended_well, died_in_its_last_batch, taken_back_to_the_oldest_retained_batch)


def starts_from_what_is_left(
    query: NativeQuery, twin: NativeQuery, oracle: Callable[[NativeQuery], twins.State], scratch: Path, *for_spark: str
) -> None:
    collected(query, scratch, *for_spark)
    query.saved("collected")
    twin.run(BATCHES + 1)
    expected = oracle(twin)
    for happened in STANDING:
        query.restored("collected")
        happened(open_storage(query.root))
        query.run(1)
        assert oracle(query) == expected, happened.__name__


@pytest.mark.spark
def test_spark_starts_from_the_logs_that_retention_leaves(spark: SparkSession, tmp_path: Path) -> None:
    query, twin = (NativeQuery(spark, tmp_path / f, OPERATORS["aggregation"], {FORMAT: "2"}) for f in ("query", "twin"))
    starts_from_what_is_left(query, twin, state, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["1", "2"])
@pytest.mark.parametrize("minor", MINORS)
def test_every_spark_starts_from_the_logs_that_retention_leaves(tmp_path: Path, minor: str, structure: str) -> None:
    if not OPERATORS["aggregation"].runs_on(minor, structure):
        pytest.skip(f"Spark {minor} has no structure V{structure}")
    if not (ENVIRONMENTS / minor / ".made").exists():
        pytest.skip(f"no environment of Spark {minor}: make sparks")
    # 3.5 cannot read its state, and 4.0 not that of structure V2.
    reader = "4.2" if (minor, structure) in (("3.5", "1"), ("4.0", "2")) else minor
    with Sparks(tmp_path / "logs") as sparks:
        query, twin = (
            RemoteQuery(sparks.get(minor, structure), tmp_path / folder, "aggregation", {FORMAT: structure})
            for folder in ("query", "twin")
        )

        def oracle(query: NativeQuery) -> twins.State:
            assert isinstance(query, RemoteQuery)
            if (minor, structure) == ("4.0", "2"):
                twins.statekeeper("repair", query.root, "--for-spark", reader, "--apply", "--confirm-stopped")
            return remote.state(query, spark=sparks.get(reader, structure))

        # A checkpoint of structure V2 does not show whether it is of 4.0 or 4.1.
        for_spark = ["--for-spark", minor] if (minor, structure) == ("4.0", "2") else []
        starts_from_what_is_left(query, twin, oracle, tmp_path, *for_spark)
