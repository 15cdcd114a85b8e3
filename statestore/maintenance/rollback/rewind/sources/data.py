"""Reads from a checkpoint which data its sources must still have after a rewind."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.format import file_source, names
from statekeeper.statestore.format.logs import OffsetLog
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json, text
from statekeeper.statestore.storage import Storage, read_lines

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NOTHING = "-"
"""The offset of a source of which a batch has read nothing."""
_MOST_CHARACTERS = 200
"""Of an offset of another source in a text."""
MOST_FILES = 100_000
"""Maximum number of files of a source that are looked up and held in memory."""
_LISTED = 8
"""Partitions of Kafka topics in a text."""


@dataclass(frozen=True)
class Files:
    """The files that later batches have read, as URLs in Spark's form: percent-encoded. `unread`: why some may be unknown.
    `has_more`: whether there are more than `MOST_FILES`; the others are not in `urls`."""

    urls: tuple[str, ...]
    unread: str | None = None
    has_more: bool = False

    def __str__(self) -> str:
        if self.unread is not None and not self.urls:
            return "the files that later batches have read"
        if self.has_more:
            return f"more than {len(self.urls):,} files that later batches have read"
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
    """The next offset of each partition of each topic; all data of a topic without partitions. `unread`: why some
    partitions may be unknown."""

    by_topic: Mapping[str, Mapping[int, int]]
    unread: str | None = None

    @property
    def partitions(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of each partition."""
        return [(topic, *one) for topic, offsets in self.by_topic.items() for one in offsets.items()]

    def __str__(self) -> str:
        named = [f"topic {topic}, partition {number}: offset {at:,} and later" for topic, number, at in self.partitions]
        named += [f"topic {topic}: all of its data" for topic, offsets in self.by_topic.items() if not offsets]
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

    One request for each later entry of a file source, more for one of more than 4 MiB. Raises `StorageError`.
    """
    found: dict[str, SourceData] = {}
    is_one_version = (offsets.source_metadata is None) == (newest.source_metadata is None)
    latest = newest.by_source if is_one_version else {}
    for source in {**offsets.by_source, **latest}:
        offset, later = offsets.by_source.get(source, _NOTHING), latest.get(source, _NOTHING)
        entry, last = file_source.position(offset), file_source.position(later)
        if entry is None and last is not None and offset == _NOTHING:
            entry = -1
        if entry is None:
            found[source] = _parsed(offset, later, is_one_version=is_one_version)
        elif (folder := file_source.folder_of(source, offsets, newest, files)) is None:
            found[source] = OtherData(
                "the files that later batches have read; the folder in sources/ that lists them is unknown"
            )
        else:
            found[source] = _read_after(storage, folder, entry, last, files)
    return found


def _parsed(offset: str, later: str, *, is_one_version: bool) -> SourceData:
    if offset == _NOTHING:
        return OtherData("all of its data")
    try:
        body = parsed_json(offset.encode())
        if "reservoirVersion" in body:
            return _of_delta(body)
        by_topic = _offsets(body)
        # The query reads a partition that it gets later from its beginning.
        for topic, partitions in (_offsets(parsed_json(later.encode())) if later != _NOTHING else {}).items():
            by_topic[topic] = {**dict.fromkeys(partitions, 0), **by_topic.get(topic, {})}
        if not by_topic:
            raise ValueError("no offsets of Kafka")
    except BAD_VALUES:
        return OtherData(f"the data after {offset[:_MOST_CHARACTERS]}")
    unread = None
    if not is_one_version:
        unread = "partitions that the query got later are unknown, because the offset logs have different versions"
    elif empty := [topic for topic, partitions in by_topic.items() if not partitions]:
        unread = (
            f"the offsets name no partition of {f'topic {empty[0]}' if len(empty) == 1 else f'{len(empty):,} topics'}"
        )
    return KafkaOffsets(by_topic, unread)


def _of_delta(body: Mapping[str, Any]) -> DeltaVersions:
    return DeltaVersions(
        table_id=str(body["reservoirId"]),
        version=_number(body["reservoirVersion"], 63),
        index=int(body["index"]),
        is_snapshot=bool(body.get("isStartingVersion", body.get("isInitialSnapshot", False))),
    )


def _offsets(body: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """Read the offsets of Kafka, by topic and partition: none if no topic had matched a pattern. Raises for others."""
    by_topic = {
        topic: {_number(number, 31): _number(offset, 63) for number, offset in partitions.items()}
        for topic, partitions in body.items()
        if _TOPIC.fullmatch(topic)
    }
    if len(by_topic) < len(body):
        raise ValueError("no offsets of Kafka")
    return by_topic


def _number(value: object, bits: int) -> int:
    number = int(str(value))
    if not 0 <= number < 2**bits:
        raise ValueError(f"{number} is out of range")
    return number


def _read_after(storage: Storage, folder: str, newest: int, last: int | None, files: Collection[str]) -> Files:
    """Read the later entries of a file source. `newest`: that of the target. `last`: the newest one that the query has
    read."""
    urls: dict[str, None] = {}
    entries = {path: parsed[1] for path in files if (parsed := file_source.parse(path)) and parsed[0] == folder}
    later = sorted(path for path, entry in entries.items() if entry > newest)
    damaged, known = [], set[int]()
    for path in later:
        found, is_whole = _read_entry(storage, path, newest, urls)
        known |= found
        if not is_whole or entries[path] not in found:
            damaged.append(path)
    if last is None:
        last = max(entries.values(), default=newest)
    unread = None
    if damaged:
        unread = f"{damaged[0]} cannot be read: not all files are known"
    elif sum(entry <= last for entry in known) < last - newest:
        unread = f"later entries in {names.SOURCES}/{folder} are lost: not all files are known"
    return Files(tuple(urls)[:MOST_FILES], unread, has_more=len(urls) > MOST_FILES)


def _read_entry(storage: Storage, path: str, newest: int, urls: dict[str, None]) -> tuple[set[int], bool]:
    """Add the URLs of an entry to `urls`, up to one more than `MOST_FILES`. Return the later entries whose files it lists,
    and whether all of it was read.

    Spark writes an entry only if it has files. So an entry without them was cut after its first line.
    """
    found: set[int] = set()
    is_whole = False
    try:
        for number, line in enumerate(read_lines(storage, path)):
            if number == 0:
                is_whole = line.startswith(b"v")
                continue
            try:
                body = parsed_json(line)
                entry, url = int(body["batchId"]), text(body["path"])
            except BAD_VALUES:
                is_whole = False
                continue
            # A merged entry also has the files of earlier ones.
            if entry > newest:
                found.add(entry)
                if len(urls) <= MOST_FILES:
                    urls[url] = None
    except (ObjectMissing, CorruptFile):  # deleted meanwhile, or a line above the limit
        return found, False
    return found, is_whole
