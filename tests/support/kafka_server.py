"""A Kafka broker in its own process. `python -m tests.support.kafka_server` downloads its jars and those of Spark's source
of Kafka."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.storage_servers import STORES

BROKER, SOURCE = STORES / "kafka", STORES / "kafka-source"
SCALA = next((Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar"))
"""Spark's resolver leaves it out, because Spark has it."""
_PACKAGES = {
    BROKER: "org.apache.kafka:kafka_2.13:4.1.1",
    SOURCE: f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
}
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/logs
offsets.topic.replication.factor=1
auto.create.topics.enable=false
"""


class KafkaServer:
    """One broker. Start it once; each test creates its own topics."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kafka-")
        self._process: subprocess.Popen[bytes] | None = None
        self.servers = ""

    def start(self) -> None:
        if not BROKER.exists():
            pytest.skip(f"no {BROKER.name}: make interop-kafka gets it")
        port, controller = _free_port(), _free_port()
        self.servers = f"127.0.0.1:{port}"
        properties = Path(self._folder.name) / "server.properties"
        properties.write_text(_PROPERTIES.format(port=port, controller=controller, folder=self._folder.name))
        java = ["java", "-Xmx512m", "-cp", f"{BROKER}/*:{SCALA}"]
        command = [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", "Zy7Jm3V8R4O7b2lWb1uRkA"]
        subprocess.run([*command, "-c", str(properties)], check=True, capture_output=True)
        self._process = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(300):
            assert self._process.poll() is None, "the broker ended"
            with socket.socket() as tried:
                if not tried.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": "0"})
        self._admin.list_topics(timeout=60)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    @property
    def properties(self) -> Mapping[str, str]:
        return {"bootstrap.servers": self.servers}

    def create(self, topic: str, *, partitions: int = 2) -> None:
        for future in self._admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(60)
        self._wait(topic, exists=True)

    def drop(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result(60)
        self._wait(topic, exists=False)

    def send(self, topic: str, partition: int, values: range) -> None:
        producer = Producer({**self.properties, "log_level": "0"})
        for value in values:
            producer.produce(topic, str(value).encode(), partition=partition)
        assert producer.flush(60) == 0

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset, as the retention of a topic does."""
        for future in self._admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(60)

    def _wait(self, topic: str, *, exists: bool) -> None:
        for _ in range(300):
            found = self._admin.list_topics(timeout=60).topics.get(topic)
            leaders = [] if found is None else [one.leader for one in found.partitions.values()]
            if (found is not None) is exists and min(leaders, default=0) >= 0:
                return
            time.sleep(0.1)
        raise AssertionError(topic)


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def fetch(folder: Path, package: str) -> None:
    """Download a package and its dependencies to a folder, with Spark's package resolver."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars.packages", package)
        .getOrCreate()
    )
    jars = session.sparkContext.getConf().get("spark.jars", "")
    session.stop()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for jar in jars.split(","):
        path = Path(urlsplit(jar).path)
        shutil.copyfile(path, folder / path.name)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    import sys

    if len(sys.argv) > 1:
        fetch(STORES / sys.argv[1], _PACKAGES[STORES / sys.argv[1]])
    else:
        # One process each: a second session in this one would keep the jars of the first.
        for chosen in _PACKAGES:
            subprocess.run([sys.executable, "-m", "tests.support.kafka_server", chosen.name], check=True)
