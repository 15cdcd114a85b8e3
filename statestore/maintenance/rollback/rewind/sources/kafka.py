"""Looks up the offsets that Kafka topics still have. The package confluent-kafka asks the brokers: it is optional, and is
imported only here."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

from statekeeper.statestore.base.errors import BadConfiguration, StorageError, UnsupportedEnvironment
from statekeeper.statestore.base.extras import how_to_install
from statekeeper.statestore.maintenance.rollback.rewind.sources.data import KafkaOffsets

_WITHOUT = "run this command without --kafka-config"


def client_properties(file: Path) -> Mapping[str, str]:
    """Read the properties of a Kafka client, a `key=value` a line, such as `bootstrap.servers=host:9092`.

    Raises `BadConfiguration`.
    """
    # The section [DEFAULT] has a special meaning unless another name has it.
    parser = configparser.ConfigParser(
        interpolation=None, delimiters=("=",), comment_prefixes=("#", "!"), strict=True, default_section=""
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign] # keys with upper case
    try:
        parser.read_string(f"[client]\n{file.read_text()}", str(file))
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        problem = str(error).splitlines()[0]
        raise BadConfiguration(
            f"cannot be read: {problem}",
            path=str(file),
            hint="write one key=value a line, such as bootstrap.servers=host:9092",
        ) from error
    found = dict(parser["client"])
    if len(parser.sections()) > 1 or any("\n" in value for value in found.values()):
        raise BadConfiguration(
            "has a section in brackets, or an indented line",
            path=str(file),
            hint="write one key=value a line, from the first column on",
        )
    if "bootstrap.servers" not in found:
        raise BadConfiguration("does not set bootstrap.servers", path=str(file), hint="add bootstrap.servers=host:9092")
    return found


def missing(properties: Mapping[str, str], data: KafkaOffsets, *, seconds: float = 30.0) -> list[str]:
    """Return the offsets that the topics no longer have, in words. `seconds`: how long to wait for each answer.

    Raises `UnsupportedEnvironment` without confluent-kafka; `BadConfiguration` for a property that Kafka's client rejects;
    `StorageError` if no broker answers.
    """
    first, end = _ends(properties, data, seconds)
    found = []
    for topic, number, offset in data.partitions:
        name, place = f"topic {topic}, partition {number}", (topic, number)
        if place not in first or place not in end:
            found.append(f"{name}: it does not exist, or the client lacks the permission to see it")
        elif offset < first[place]:
            found.append(f"{name}: offsets {offset:,} to {first[place] - 1:,}")
        elif offset > end[place]:
            found.append(
                f"{name}: it ends before offset {end[place]:,}; the topic may have been deleted and created again"
            )
    return found


_Ends = dict[tuple[str, int], int]


def _ends(properties: Mapping[str, str], data: KafkaOffsets, seconds: float) -> tuple[_Ends, _Ends]:
    """Ask for the oldest offset of each partition and for the next one. A partition that does not exist is in neither."""
    try:
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient, OffsetSpec
    except ImportError as error:
        raise UnsupportedEnvironment(
            "the package confluent-kafka is not installed, so the Kafka topics cannot be looked up",
            hint=f"run: {how_to_install('kafka')}; or {_WITHOUT}",
        ) from error
    try:
        client = AdminClient({"client.id": "statekeeper", "log_level": "0", **properties})
    except (KafkaException, ValueError, TypeError) as error:
        raise BadConfiguration(
            f"Kafka's client rejects its properties: {_reason(error)}",
            hint="use the names of librdkafka's configuration in the file after --kafka-config",
        ) from error
    ends: list[_Ends] = []
    try:
        topics = client.list_topics(timeout=seconds).topics
        existing = [
            TopicPartition(topic, number)
            for topic, number, _ in data.partitions
            if topic in topics and number in topics[topic].partitions
        ]
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
            asked = client.list_offsets(dict.fromkeys(existing, spec), request_timeout=seconds) if existing else {}
            ends.append(
                {(one.topic, one.partition): answer.result(2 * seconds).offset for one, answer in asked.items()}
            )
    except (KafkaException, TimeoutError) as error:
        raise StorageError(
            f"Kafka does not answer: {_reason(error)}", hint=f"check bootstrap.servers in the file, or {_WITHOUT}"
        ) from error
    return ends[0], ends[1]


def _reason(error: Exception) -> str:
    problem = error.args[0] if error.args else error
    return str(problem.str() if hasattr(problem, "str") else problem or type(error).__name__).splitlines()[0]
