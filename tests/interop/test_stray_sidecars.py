"""A sidecar that an executor left without its zip: Spark continues after snapshot and gc."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, Severity
from statekeeper.statestore.storage import open_storage
from tests.support.native import FORMAT, ONLY_CHANGELOGS, OPERATORS, NativeQuery, state
from tests.support.quick_spark import as_users_have_it
from tests.support.twins import statekeeper, take_snapshots

pytestmark = pytest.mark.spark

A_SIDECAR = json.dumps({"algorithm": "CRC32C", "value": 7, "mainFileSize": 7, "timestampMs": 1, "creator": {}})


def sidecars_at_the_head(query: NativeQuery) -> list[Path]:
    """The sidecar of each store's next snapshot, and Hadoop's hidden checksum of it."""
    heads = catalog.heads(open_storage(query.root))
    assert heads is not None
    return [query.checkpoint / names.sidecar(store.snapshot(head)) for store, head in heads.heads.items()]


def leave_sidecars(query: NativeQuery) -> None:
    for path in sidecars_at_the_head(query):
        path.write_text(A_SIDECAR)
        zipped = path.with_suffix("")
        zipped.with_name(f".{zipped.name}.crc").write_bytes(b"crc\0\0\0\2\0" + bytes(4))


@pytest.fixture
def default_files(spark: SparkSession) -> Iterator[SparkSession]:
    with as_users_have_it(spark):
        yield spark


@pytest.mark.parametrize(
    "operator",
    ["aggregation", *(pytest.param(name, marks=pytest.mark.slow) for name in ("join 3", "transformWithState"))],
)
def test_spark_continues_after_a_stray_sidecar_blocked_a_snapshot(
    default_files: SparkSession, tmp_path: Path, operator: str
) -> None:
    spark = default_files
    query = NativeQuery(spark, tmp_path / "query", OPERATORS[operator], {**ONLY_CHANGELOGS, FORMAT: "2"})
    query.run(3)
    query.saved("middle")
    middle = state(query)
    query.run(1)
    end, outputs = state(query), dict(query.outputs)
    query.restored("middle")
    leave_sidecars(query)

    statekeeper("snapshot", query.root, "--all", "--mode", "snapshots", "--scratch", str(tmp_path), exit_code=3)
    assert not any(path.with_suffix("").exists() for path in sidecars_at_the_head(query))
    found = audit.judge(audit.gather(open_storage(query.root))).findings
    assert {(one.kind, one.severity) for one in found} == {(FindingKind.SIDECAR_STRAY, Severity.WARNING)}
    statekeeper("repair", query.root, "--apply", "--confirm-stopped")
    take_snapshots(query, tmp_path)
    assert state(query) == middle

    # The stray sidecar of an existing snapshot, as after an earlier release or a restored backup.
    leave_sidecars(query)
    with pytest.raises(Exception, match=r"CANNOT_LOAD_STATE_STORE|AUTO_SNAPSHOT_REPAIR_FAILED|CANNOT_READ"):
        state(query)
    statekeeper("gc", query.root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply", exit_code=13)
    statekeeper("repair", query.root, "--apply", "--confirm-stopped")
    statekeeper("gc", query.root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    query.run(1)
    assert (state(query), query.outputs) == (end, outputs)
