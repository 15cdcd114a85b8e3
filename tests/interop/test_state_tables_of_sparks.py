"""Tables of the state of running Spark queries, read by Spark and compared with Spark's `statestore` reader."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.state_tables import Way
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.maintainers import maintainer
from tests.support.native import DEFAULT_PROVIDER, FORMAT, OPERATORS, NativeQuery, configured
from tests.support.state_tables import published
from tests.support.switching import after_the_dead
from tests.support.twins import statekeeper

pytestmark = pytest.mark.spark

TECHNICAL = ("batch", "committed_at", "element", "expires_at")
HOW = {"1": {FORMAT: "1"}, "2": {FORMAT: "2"}, "default provider": DEFAULT_PROVIDER}
MATRIX = [
    ("aggregation", "2"),
    ("windows", "1"),
    ("dropDuplicatesWithinWatermark", "default provider"),
    ("sessions", "2"),
    ("applyInPandasWithState", "1"),
    ("aggregation", "default provider"),
]
IN_CI = {("windows", "1")}


def as_json(rows: DataFrame) -> Counter[str]:
    return Counter(row[0] for row in rows.select(F.to_json(F.struct("*"))).collect())


def by_spark(query: NativeQuery, batch: int) -> Counter[str]:
    """The rows that Spark's `statestore` reader shows, with the columns of key and value side by side."""
    session = query.spark.newSession()
    for name, value in {**query.confs, "spark.sql.session.timeZone": "UTC"}.items():
        session.conf.set(name, value)
    session._jsparkSession.sessionState().streamingQueryManager()
    read = session.read.format("statestore").option("batchId", batch).load(str(query.checkpoint))
    columns = {}
    for part in ("key", "value"):
        for name in read.schema[part].dataType.names:
            shown = f"value_{name}" if name in columns else name
            columns[shown] = F.col(f"{part}.`{name}`").alias(shown)
    return as_json(read.select(*columns.values()))


def in_table(spark: SparkSession, table: Path) -> Counter[str]:
    """The rows of the table, which Spark reads."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    rows = session.read.format("delta").load(str(table))
    return as_json(rows.drop(*(name for name in TECHNICAL if name in rows.columns)))


def by_feed(spark: SparkSession, table: Path, keys: list[str]) -> Counter[str]:
    """The rows of a reader who applies Spark's change data feed."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    feed = session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(str(table))
    held: dict[str, str] = {}
    changes = feed.select(
        "_commit_version",
        "_change_type",
        F.to_json(F.struct(*keys)).alias("key"),
        F.to_json(F.struct("*")).alias("row"),
    ).collect()
    for change in sorted(changes, key=lambda one: (one._commit_version, one._change_type != "delete")):
        if change._change_type == "delete":
            del held[change.key]
        elif change._change_type != "update_preimage":
            row = json.loads(change.row)
            held[change.key] = json.dumps({name: row[name] for name in row if not name.startswith("_")}, sort_keys=True)
    return Counter(held.values())


@pytest.mark.parametrize(
    ("name", "how"), [one if one in IN_CI else pytest.param(*one, marks=pytest.mark.slow) for one in MATRIX]
)
def test_spark_reads_in_the_table_what_its_own_reader_shows_and_its_feed_leads_there(
    spark: SparkSession, tmp_path: Path, name: str, how: str
) -> None:
    query = NativeQuery(spark, tmp_path / "query", OPERATORS[name], HOW[how])
    table = open_storage(str(tmp_path / "table"))
    for batches in (1, 2, 1):
        query.run(batches)
        made = published(open_storage(query.root), table, tmp_path / "scratch", stopped=True)
        assert in_table(spark, tmp_path / "table") == by_spark(query, made.batch)
        assert made.way is (Way.LOAD if made.version == 0 else Way.CHANGES)
    keys = {"aggregation": ["k"], "windows": ["window", "k"]}.get(name)
    if keys is not None:
        held = Counter(
            json.dumps(json.loads(row), sort_keys=True)
            for row in as_json(spark.read.format("delta").load(str(tmp_path / "table")))
        )
        assert by_feed(spark, tmp_path / "table", keys) == held


@pytest.mark.slow
def test_spark_may_vacuum_and_checkpoint_the_table_and_it_is_published_on(spark: SparkSession, tmp_path: Path) -> None:
    query = NativeQuery(spark, tmp_path / "query", OPERATORS["aggregation"], HOW["2"])
    table, path = open_storage(str(tmp_path / "table")), str(tmp_path / "table")
    query.run(1)
    published(open_storage(query.root), table, tmp_path / "scratch")
    query.run(2)
    published(open_storage(query.root), table, tmp_path / "scratch")
    with configured(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 'key 1'")
    query.run(1)
    made = published(open_storage(query.root), table, tmp_path / "scratch")
    assert made.way is Way.COMPARISON
    assert in_table(spark, tmp_path / "table") == by_spark(query, made.batch)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    query.run(1)
    made = published(open_storage(query.root), table, tmp_path / "scratch")
    assert in_table(spark, tmp_path / "table") == by_spark(query, made.batch)


# -- a random run ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("structure", list(Structure), ids=lambda one: one.value)
def test_two_hundred_batches_with_kills_rewinds_and_a_rescale_are_in_the_table_as_in_sparks_reader(
    spark: SparkSession, tmp_path: Path, structure: Structure
) -> None:
    """Each round runs some batches, may disturb the root, and publishes. Some publishing processes die at a request."""
    chance = random.Random(f"{structure.value} 1")
    query = NativeQuery(spark, tmp_path / "query", OPERATORS["aggregation"], structure.conf)
    world = _World(query, tmp_path, chance)
    query.run(1)
    world.publish()
    while query.batches < 200:
        query.run(chance.randint(1, 8))
        disturb: Callable[[], None] = chance.choice([world.nothing, world.nothing, world.rewind, world.rescale])
        disturb()
        world.publish()
    assert world.counts["killed"] > 3
    assert world.counts["rewound"] > 1
    assert world.counts["rescaled"] > 0
    assert {Way.CHANGES, Way.COMPARISON} <= world.ways


class _World:
    """A query, its table, and what has happened to them."""

    def __init__(self, query: NativeQuery, folder: Path, chance: random.Random) -> None:
        self.query, self.folder, self.chance = query, folder, chance
        self.counts: Counter[str] = Counter()
        self.ways: set[Way] = set()

    @property
    def table(self) -> Storage:
        return open_storage(str(self.folder / "table"))

    def nothing(self) -> None:
        self.counts["nothing"] += 1

    def rewind(self) -> None:
        newest = catalog.newest_batch(open_storage(self.query.root))
        assert newest is not None
        if newest < 4:
            return
        to = newest - self.chance.randint(1, 3)
        options = ("--to-batch", to, "--apply", "--confirm-stopped", "--scratch", self.folder)
        statekeeper("rewind", self.query.root, *map(str, options))
        self.counts["rewound"] += 1
        if self.chance.random() < 0.5:
            self.query.run(0)

    def rescale(self) -> None:
        if self.counts["rescaled"] >= 2:
            return
        options = ("--partitions", self.chance.choice([2, 3, 5]), "--for-spark", "4.2", "--apply", "--confirm-stopped")
        statekeeper("rescale", self.query.root, *map(str, options), "--scratch", str(self.folder))
        self.counts["rescaled"] += 1

    def publish(self) -> None:
        """Publish, after a process that dies at some request, and compare with Spark's reader."""
        source = open_storage(self.query.root)
        by = maintainer()
        if self.chance.random() < 0.4:
            fault = self.chance.choice([Fault.BEFORE, Fault.AFTER, Fault.TORN])
            dying = FaultyStorage(self.table, {self.chance.randint(0, 25): fault})
            try:
                published(source, dying, self.folder / "scratch", by=by, stopped=True)
            except (SimulatedCrash, AssertionError):
                self.counts["killed"] += dying.crashed
            shutil.rmtree(self.folder / "scratch", ignore_errors=True)
            by = maintainer(after_the_dead())
        newest = catalog.newest_batch(source)
        assert newest is not None
        try:
            made = published(source, self.table, self.folder / "scratch", by=by, stopped=True)
            self.ways.add(made.way)
        except AssertionError:
            # The process that died had published the batch.
            self.counts["complete"] += 1
        assert in_table(self.query.spark, self.folder / "table") == by_spark(self.query, newest), self.counts
