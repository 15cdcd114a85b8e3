"""A rewind reports the data that its sources have lost, and Spark stops on the same data: real Kafka, real Delta."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rollback.rewind.sources import kafka
from statekeeper.statestore.maintenance.rollback.rewind.sources.data import KafkaOffsets
from tests.support.commands import statekeeper
from tests.support.kafka_server import KafkaServer
from tests.support.native import ONLY_CHANGELOGS, configured

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

GONE = "it does not exist, or the client lacks the permission to see it"


def planned(checkpoint: Path, batch: int, *options: object) -> dict[str, Any]:
    """The first source in the plan of a rewind."""
    result = statekeeper("rewind", checkpoint, "--to-batch", batch, *options, "--output", "json")
    assert result.exit_code == 0, result.output
    (source,) = json.loads(result.stdout)["sources"]
    return source


# -- Kafka -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    server = KafkaServer()
    server.start()
    yield server
    server.stop()


def started(broker: KafkaServer, topic: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.kafka_query", broker.servers, topic, str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_offsets_of_a_topic_are_looked_up(broker: KafkaServer) -> None:
    broker.create("clicks")
    broker.send("clicks", 0, range(20))

    def missing(offset: int, *, topic: str = "clicks", partition: int = 0) -> list[str]:
        return kafka.missing(broker.properties, KafkaOffsets({topic: {partition: offset}}))

    assert missing(0) == missing(20) == missing(0, partition=1) == []
    broker.delete_before("clicks", 0, 15)
    assert missing(15) == missing(20) == []
    assert missing(14) == ["topic clicks, partition 0: offsets 14 to 14"]
    assert missing(3) == ["topic clicks, partition 0: offsets 3 to 14"]
    assert "it ends before offset 20; the topic may have been deleted" in missing(21)[0]
    assert missing(0, partition=7) == [f"topic clicks, partition 7: {GONE}"]
    assert missing(0, topic="unknown") == [f"topic unknown, partition 0: {GONE}"]


def test_the_plan_names_the_offsets_that_spark_misses(broker: KafkaServer, tmp_path: Path) -> None:
    broker.create("orders")
    for partition in range(2):
        broker.send("orders", partition, range(20))
    first = started(broker, "orders", tmp_path)
    assert first.returncode == 0, first.stderr
    checkpoint, config = tmp_path / "checkpoint", tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={broker.servers}\n")
    assert "--kafka-config" in planned(checkpoint, 1)["unchecked"]
    complete = planned(checkpoint, 1, "--kafka-config", config)
    assert (complete["missing"], complete["unchecked"]) == ([], None)
    assert "offset 10 and later" in complete["needs"]
    broker.delete_before("orders", 1, 13)
    lost = planned(checkpoint, 1, "--kafka-config", config)
    assert lost["missing"] == ["topic orders, partition 1: offsets 10 to 12"]
    # Spark confirms both: from batch 3 on nothing is missing, and from batch 1 on offsets are.
    assert planned(checkpoint, 2, "--kafka-config", config)["missing"] == []
    for batch, works in ((2, True), (1, False)):
        options = ("--to-batch", batch, "--apply", "--confirm-stopped", "--scratch", tmp_path)
        applied = statekeeper("rewind", checkpoint, *options, "--kafka-config", config)
        assert applied.exit_code == 0, applied.output
        assert ("missing now: topic orders" in applied.output) is not works
        again = started(broker, "orders", tmp_path)
        assert (again.returncode == 0) is works, again.stderr
        said = re.search(r"failOnDataLoss|(?i:data.?loss)|some data may|Cannot fetch offset", again.stderr)
        assert (said is None) is works, again.stderr[-3000:]


def test_a_topic_that_was_created_again_is_reported(broker: KafkaServer, tmp_path: Path) -> None:
    broker.create("trips")
    broker.send("trips", 0, range(30))
    assert started(broker, "trips", tmp_path).returncode == 0
    broker.drop("trips")
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={broker.servers}\n")
    missing = planned(tmp_path / "checkpoint", 1, "--kafka-config", config)["missing"]
    assert missing == [f"topic trips, partition {number}: {GONE}" for number in range(2)]
    broker.create("trips")
    broker.send("trips", 0, range(5))
    (line,) = planned(tmp_path / "checkpoint", 1, "--kafka-config", config)["missing"]
    assert line.startswith("topic trips, partition 0: it ends before offset 5")


# -- Delta -------------------------------------------------------------------------------------------------------------


class _Counted:
    """A query that counts the rows of a Delta table of six versions with two files each, one file a batch."""

    def __init__(self, spark: SparkSession, folder: Path, structure: Structure) -> None:
        self.spark, self.structure = spark, structure
        self.table, self.checkpoint = folder / "a table", folder / "checkpoint"
        for version in range(6):
            rows = spark.range(version * 10, version * 10 + 10, numPartitions=2)
            rows.write.format("delta").mode("append").save(str(self.table))

    def run(self) -> None:
        with configured(self.spark, {**ONLY_CHANGELOGS, **self.structure.conf}):
            rows = self.spark.readStream.format("delta").option("startingVersion", 0).option("maxFilesPerTrigger", 1)
            counts = rows.load(str(self.table)).groupBy("id").count()
            writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(self.checkpoint))
            writer.format("noop").trigger(availableNow=True).start().awaitTermination()

    def vacuum(self) -> None:
        """Delete the files of all versions that OPTIMIZE has merged."""
        self.spark.sql(f"OPTIMIZE delta.`{self.table}`")
        with configured(self.spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
            self.spark.sql(f"VACUUM delta.`{self.table}` RETAIN 0 HOURS")

    def rewind(self, batch: int) -> None:
        options = ("--to-batch", batch, "--apply", "--confirm-stopped", "--scratch", self.checkpoint.parent)
        applied = statekeeper("rewind", self.checkpoint, *options)
        assert applied.exit_code == 0, applied.output


@pytest.mark.parametrize("structure", list(Structure), ids=lambda structure: structure.value)
def test_the_plan_names_the_files_of_a_delta_table_that_spark_misses(
    spark: SparkSession, tmp_path: Path, structure: Structure
) -> None:
    query = _Counted(spark, tmp_path, structure)
    query.run()
    assert "--source URL" in planned(query.checkpoint, 8)["unchecked"]
    for batch in (8, 9, 10):
        complete = planned(query.checkpoint, batch, "--source", query.table)
        assert (complete["missing"], complete["unchecked"]) == ([], None)
    query.vacuum()
    # The twelve files are read one a batch: after batch 8, three are left to read, and after batch 11 none.
    for batch, left in ((8, 3), (9, 2), (10, 1)):
        assert len(planned(query.checkpoint, batch, "--source", query.table)["missing"]) == left
    assert statekeeper("rewind", query.checkpoint, "--to-batch", 10, "--source", query.table).output.count(
        "missing now"
    )
    query.rewind(10)
    with pytest.raises(StreamingQueryException, match=r"(?i)does not exist|not found"):
        query.run()


def test_the_plan_names_deleted_versions_of_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    query = _Counted(spark, tmp_path, Structure.V2)
    query.run()
    DeltaTable(str(query.table)).create_checkpoint()
    for version in range(5):
        (query.table / "_delta_log" / f"{version:020}.json").unlink()
    assert planned(query.checkpoint, 6, "--source", query.table)["missing"] == ["version 3 to 4"]
