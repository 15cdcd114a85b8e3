"""Changelogs that delete a range of keys: part of Spark's format since 4.2, but no operator writes them yet.

Spark's `RocksDB` class writes one into the store of a query, as an operator would, and then reads the rows of the store.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.changelog import Kind, read_changelog
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import open_storage
from tests.support.dumped import dumped
from tests.support.native import CHANGELOGS, FORMAT, OPERATORS, NativeQuery
from tests.support.twins import statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STATE = "org.apache.spark.sql.execution.streaming.state"
FAMILY = "total"
Rows = dict[bytes, bytes]


@contextmanager
def opened(spark: SparkSession, store: Path, scratch: Path, version: int) -> Iterator[Any]:
    """Spark's own database of a store with column families, in structure V1, at that version."""
    jvm = spark._jvm
    of_state = getattr(jvm, STATE)
    nothing = jvm.scala.Option.empty()
    conf = of_state.StateStoreConf(spark._jsparkSession.sessionState().conf(), jvm.PythonUtils.toScalaMap({}))
    scratch.mkdir(exist_ok=True)
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    rocks = of_state.RocksDBConf.apply(conf)
    local = jvm.java.io.File(str(scratch))
    database = of_state.RocksDB(str(store), rocks, local, hadoop, "a test", True, False, 0, nothing, nothing)
    try:
        database.load(version, nothing, False, False)
        yield database
    finally:
        database.close()


def rows(database: Any, family: str = FAMILY) -> Rows:
    found = {}
    iterator = database.iterator(family)
    while iterator.hasNext():
        pair = iterator.next()
        found[bytes(pair.key())] = bytes(pair.value())
    return found


def test_keys_deleted_by_a_range_are_absent_from_snapshot_and_dump(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    query = NativeQuery(spark, folder / "query", OPERATORS["transformWithState"], {FORMAT: "1"})
    query.run(3)
    root, store = query.checkpoint, query.checkpoint / "state" / "0" / "0"
    spark.conf.set(CHANGELOGS, "true")
    try:
        with opened(spark, store, folder / "writer", 3) as database:
            before = rows(database)
            keys = sorted(before)
            database.deleteRange(keys[1], keys[-1], FAMILY, False, False)
            database.commit(False)
        with opened(spark, store, folder / "reader", 4) as database:
            after = rows(database)
        assert after == {keys[0]: before[keys[0]], keys[-1]: before[keys[-1]]}
        changelog = store / "4.changelog"
        kinds = [piece.kinds.tolist() for piece in read_changelog(changelog.read_bytes(), "4.changelog")[1]]
        assert kinds == [[Kind.DELETE_RANGE]]
        # The other partition did nothing in that batch; the logs say that it was one.
        with opened(spark, store.with_name("1"), folder / "other", 3) as database:
            database.commit(False)
        for log in ("offsets", "commits"):
            shutil.copyfile(root / log / "2", root / log / "3")

        here = [row for row in dumped(root) if row["store"] == "state/0/0" and row["family"] == FAMILY]
        assert len(here) == len(after)
        statekeeper(
            *(
                "snapshot",
                str(root),
                "--at-head",
                "--confirm-stopped",
                "--mode",
                "snapshots",
                "--scratch",
                str(folder / "x"),
            )
        )
        assert audit.judge(audit.gather(open_storage(str(root)), scratch=folder / "audit")).findings == ()
        changelog.unlink()
        with opened(spark, store, folder / "again", 4) as database:
            assert rows(database) == after, "what Spark loads is our snapshot now"
    finally:
        spark.conf.unset(CHANGELOGS)
