"""Reads from a checkpoint which data its sources must still have after a rewind."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from statestore.counts import counted
from statestore.format import file_source
from statestore.format.logs import OffsetLog
from statestore.format.untrusted import BAD_VALUES, parsed_json
from statestore.storage import Storage, read_or_none

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LISTED = 8
"""Partitions of Kafka topics in a text."""


@dataclass(frozen=True)
class Files:
    """The files that later batches have read, as URLs in Spark's form: percent-encoded."""

    urls: tuple[str, ...]

    def __str__(self) -> str:
        return f"the {'file' if len(self.urls) == 1 else counted(len(self.urls), 'file')} that later batches have read"


@dataclass(frozen=True, kw_only=True)
class DeltaVersions:
    """A Delta table from a version on. Source: Delta's DeltaSourceOffset.

    table_id     `reservoirId`
    version      the version that the query continues with; it need not exist yet
    index        the newest file of that version that the query has read; negative if it has read none
    is_snapshot  whether the query still reads the whole table as of that version
    """

    table_id: str
    version: int
    index: int
    is_snapshot: bool

    def __str__(self) -> str:
        return f"version {self.version} of the Delta table and all later versions"


@dataclass(frozen=True)
class KafkaOffsets:
    """The next offset of each partition of each topic."""

    by_topic: Mapping[str, Mapping[int, int]]

    @property
    def partitions(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of each partition."""
        return [(topic, *one) for topic, offsets in self.by_topic.items() for one in offsets.items()]

    def __str__(self) -> str:
        named = [f"topic {topic}, partition {number}: offset {at:,} and later" for topic, number, at in self.partitions]
        more = [f"{counted(len(named) - _LISTED, 'more partition')}"] if len(named) > _LISTED else []
        return ", ".join([*named[:_LISTED], *more])


@dataclass(frozen=True)
class OtherData:
    """The data of a source that Statekeeper does not know."""

    in_words: str

    def __str__(self) -> str:
        return self.in_words


SourceData = Files | DeltaVersions | KafkaOffsets | OtherData


def read(storage: Storage, offsets: OffsetLog, newest: OffsetLog, files: Collection[str]) -> Mapping[str, SourceData]:
    """Read the data that each source must still have, by its name, or by its number in the query from 0.

    offsets  of the target
    newest   of the newest batch that has begun
    files    the paths of the checkpoint

    One request for each later entry of a file source. Raises `StorageError`.
    """
    found: dict[str, SourceData] = {}
    for source, offset in offsets.by_source.items():
        entry = file_source.position(offset)
        if entry is None:
            found[source] = _parsed(offset)
        elif (folder := file_source.folder_of(source, offsets, newest, files)) is None:
            found[source] = OtherData(
                "the files that later batches have read; the folder in sources/ that lists them is unknown"
            )
        else:
            found[source] = Files(tuple(dict.fromkeys(_read_after(storage, folder, entry, files))))
    return found


def _parsed(offset: str) -> SourceData:
    if offset == "-":
        return OtherData("all of its data")
    try:
        body = parsed_json(offset.encode())
        return _of_delta(body) if "reservoirVersion" in body else _of_kafka(body)
    except BAD_VALUES:
        return OtherData(f"the data after {offset}")


def _of_delta(body: Mapping[str, Any]) -> DeltaVersions:
    return DeltaVersions(
        table_id=str(body["reservoirId"]),
        version=_number(body["reservoirVersion"], 63),
        index=int(body["index"]),
        is_snapshot=bool(body.get("isStartingVersion", body.get("isInitialSnapshot", False))),
    )


def _of_kafka(body: Mapping[str, Any]) -> KafkaOffsets:
    by_topic = {
        topic: {_number(number, 31): _number(offset, 63) for number, offset in partitions.items()}
        for topic, partitions in body.items()
        if _TOPIC.fullmatch(topic)
    }
    if not by_topic or len(by_topic) < len(body):
        raise ValueError("no offsets of Kafka")
    return KafkaOffsets(by_topic)


def _number(value: object, bits: int) -> int:
    number = int(str(value))
    if not 0 <= number < 2**bits:
        raise ValueError(f"{number} is out of range")
    return number


def _read_after(storage: Storage, folder: str, newest: int, files: Collection[str]) -> Iterator[str]:
    """Yield the URLs of the files in the later entries of a file source."""
    for path in sorted(files):
        parsed = file_source.parse(path)
        if parsed is None or parsed[0] != folder or parsed[1] <= newest:
            continue
        data = read_or_none(storage, path)
        for line in (data or b"").decode(errors="replace").splitlines()[1:]:
            try:
                body = parsed_json(line)
                # A merged entry also has the files of earlier ones.
                if int(body["batchId"]) > newest:
                    yield str(body["path"])
            except BAD_VALUES:
                continue  # Spark rejects the entry; the rewind moves it away
