"""The log of a Delta table that Statekeeper writes: actions, the table that they add up to, and checkpoints of the log.

    _delta_log/<20 digits>.json                 one commit: an action per line
    _delta_log/<20 digits>.checkpoint.parquet   all actions that are valid at a version, in place of older commits
    _delta_log/_last_checkpoint                 the version of the newest checkpoint
    _change_data/                               files of the change data feed
    part-<uuid>.parquet, deletion_vector_<uuid>.bin

Pure: bytes to values and back. Source: the protocol of Delta Lake. Checkpoints of several files and checkpoints V2, which
other programs may write, are not supported.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.deletion_vectors import Descriptor, parse_descriptor
from statekeeper.statestore.format.types import children
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
CHANGE_DATA = "_change_data"
VECTORS = "deletionVectors"
_FEED = "changeDataFeed"
_DOMAINS = "domainMetadata"
_LOCAL_TIMES = "timestampNtz"
FEATURES = frozenset({VECTORS, _FEED, _DOMAINS, _LOCAL_TIMES})
"""The features of tables that this module reads and writes. A writer must not write a table with another one."""
_BAD: tuple[type[Exception], ...] = (*BAD_VALUES, pa.ArrowException, OSError)
_ROWS = 10_000
"""Actions of a checkpoint in memory."""
TOMBSTONE_MS = 7 * 24 * 3600 * 1000
"""How long a checkpoint names a file that left the table, so that VACUUM of Delta leaves it: its default retention."""


def commit_path(version: int) -> str:
    """Return the path of a commit."""
    return f"{LOG}/{version:020}.json"


def checkpoint_path(version: int) -> str:
    """Return the path of a checkpoint of the log."""
    return f"{LOG}/{version:020}.checkpoint.parquet"


def parse_log_file(path: str) -> int | None:
    """Return the version of a commit or of a checkpoint; None for another path."""
    name = path.removeprefix(f"{LOG}/")
    number, _, rest = name.partition(".")
    is_one = len(number) == 20 and number.isascii() and number.isdecimal() and rest in ("json", "checkpoint.parquet")
    return int(number) if is_one and name != path else None


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A data file that belongs to a table.

    rows     in the file; those in its deletion vector do not belong to the table. -1 if the log does not have it
    values   of the partition columns, as text
    stats    as the log has it
    """

    path: str
    size_bytes: int
    rows: int
    modified_ms: int
    values: Mapping[str, str | None] = field(default_factory=dict)
    vector: Descriptor | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def live_rows(self) -> int:
        """The number of rows that belong to the table."""
        return self.rows - (0 if self.vector is None else self.vector.rows)

    def add(self, *, changes_data: bool) -> dict[str, Any]:
        """Encode the action that adds the file, or that replaces its deletion vector."""
        stats: dict[str, Any] = {**self.stats} if self.rows < 0 else {**self.stats, "numRecords": self.rows}
        if self.vector is not None:
            stats["tightBounds"] = False
        action: dict[str, Any] = {
            "path": quote(self.path),
            "partitionValues": dict(self.values),
            "size": self.size_bytes,
            "modificationTime": self.modified_ms,
            "dataChange": changes_data,
            "stats": json.dumps(stats, ensure_ascii=False),
        }
        if self.vector is not None:
            action["deletionVector"] = self.vector.as_json()
        return {"add": action}

    def remove(self, now_ms: int, *, changes_data: bool) -> dict[str, Any]:
        """Encode the action that removes the file with its deletion vector."""
        action: dict[str, Any] = {
            "path": quote(self.path),
            "deletionTimestamp": now_ms,
            "dataChange": changes_data,
            "extendedFileMetadata": True,
            "partitionValues": dict(self.values),
            "size": self.size_bytes,
        }
        if self.vector is not None:
            action["deletionVector"] = self.vector.as_json()
        return {"remove": action}


@dataclass(frozen=True, kw_only=True)
class DeltaTable:
    """A table at a version of its log.

    files         the data files by path
    tombstones    files that left the table: their actions, by path and deletion vector
    transactions  the actions with the newest transaction of each application, by its id
    domains       the configuration of each metadata domain, by its name
    last_checkpoint  the version of the newest checkpoint of the log; -1 if there is none
    operations    of the commits after the checkpoint: version, operation, and the user metadata
    """

    version: int = -1
    metadata: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, DataFile] = field(default_factory=dict)
    tombstones: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    transactions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    last_checkpoint: int = -1
    operations: tuple[tuple[int, str], ...] = ()

    @property
    def features(self) -> frozenset[str]:
        """The features that the protocol of the table names."""
        kinds = ("readerFeatures", "writerFeatures")
        return frozenset(str(name) for kind in kinds for name in self.protocol.get(kind) or ())

    @property
    def live_rows(self) -> int:
        """The number of rows of the table."""
        return sum(file.live_rows for file in self.files.values())

    def transaction(self, application: str) -> int | None:
        """Return the newest transaction of an application; None if it has none."""
        found = self.transactions.get(application)
        return None if found is None else int(found["version"])

    def after(self, actions: Iterable[Mapping[str, Any]], path: str) -> DeltaTable:
        """Apply the actions of the next commit. Raises `CorruptFile`, `UnknownFormatVersion`."""
        return _applied(self, actions, path, self.version + 1)


def parse_commit(data: bytes, path: str) -> list[dict[str, Any]]:
    """Parse the actions of a commit. Raises `CorruptFile`."""
    try:
        found = [parsed_json(line) for line in data.splitlines() if line.strip()]
    except BAD_VALUES as error:
        raise CorruptFile(f"is not a commit of a Delta table: {error}", path=path) from error
    if not all(isinstance(action, dict) for action in found):
        raise CorruptFile("is not a commit of a Delta table", path=path)
    return found


def encode_commit(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode the actions of a commit."""
    return "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions).encode()


def parse_last_checkpoint(data: bytes) -> int | None:
    """Return the version of the newest checkpoint; None if it has several files or another format."""
    try:
        found = parsed_json(data)
        if found.get("parts") is not None or found.get("v2Checkpoint") is not None:
            return None
        return int(found["version"])
    except BAD_VALUES as error:
        raise CorruptFile("is not the pointer to a checkpoint of a Delta log", path=LAST_CHECKPOINT) from error


def checkpoint_actions(source: io.IOBase, path: str) -> Iterator[dict[str, Any]]:
    """Yield the actions in a file of a checkpoint. Raises `CorruptFile`."""
    try:
        file = pq.ParquetFile(pa.PythonFile(source, mode="r"))
        known = [name for name in _CHECKPOINT.names if name in file.schema_arrow.names]
        for rows in file.iter_batches(_ROWS, columns=known):
            for row in rows.to_pylist(maps_as_pydicts="lossy"):
                yield {name: value for name, value in row.items() if value is not None}
    except _BAD as error:
        raise CorruptFile("is not a checkpoint of a Delta log", path=path) from error


def parse_checkpoint(data: bytes, version: int) -> DeltaTable:
    """Parse a checkpoint of the log. Raises `CorruptFile`, `UnknownFormatVersion`."""
    path = checkpoint_path(version)
    actions = checkpoint_actions(io.BytesIO(data), path)
    return replace(_applied(DeltaTable(), actions, path, version), last_checkpoint=version, operations=())


def _applied(table: DeltaTable, actions: Iterable[Mapping[str, Any]], path: str, version: int) -> DeltaTable:
    files, tombstones = dict(table.files), dict(table.tombstones)
    transactions, domains = dict(table.transactions), dict(table.domains)
    metadata, protocol, operation = table.metadata, table.protocol, ""
    try:
        for action in actions:
            if (added := action.get("add")) is not None:
                one = _file_of(added, path)
                files[one.path] = one
                tombstones.pop((one.path, _vector_id(added, path)), None)
            elif (removed := action.get("remove")) is not None:
                name, key = unquote(str(removed["path"])), _vector_id(removed, path)
                held = files.get(name)
                # One commit may remove a file and add it again with another vector, in any order.
                if held is not None and (held.vector.unique_id if held.vector else "") == key:
                    del files[name]
                tombstones[name, key] = removed
            elif (found := action.get("txn")) is not None:
                transactions[str(found["appId"])] = found
            elif (found := action.get("domainMetadata")) is not None:
                domains.pop(str(found["domain"]), None)
                if not found.get("removed"):
                    domains[str(found["domain"])] = str(found["configuration"])
            elif (found := action.get("metaData")) is not None:
                metadata = found
            elif (found := action.get("protocol")) is not None:
                protocol = found
            elif (found := action.get("commitInfo")) is not None:
                operation = str(found.get("operation", ""))
    except BAD_VALUES as error:
        raise CorruptFile(f"has an invalid action: {error!r}", path=path) from error
    return replace(
        table,
        version=version,
        metadata=metadata,
        protocol=protocol,
        files=files,
        tombstones=tombstones,
        transactions=transactions,
        domains=domains,
        operations=(*table.operations, (version, operation)),
    )


def _vector_id(action: Mapping[str, Any], path: str) -> str:
    vector = action.get("deletionVector")
    return "" if vector is None else parse_descriptor(vector, path).unique_id


def _file_of(added: Mapping[str, Any], path: str) -> DataFile:
    stats = parsed_json(added["stats"]) if added.get("stats") else {}
    vector = added.get("deletionVector")
    return DataFile(
        path=unquote(str(added["path"])),
        size_bytes=int(added["size"]),
        rows=int(stats.get("numRecords", -1)),
        modified_ms=int(added["modificationTime"]),
        values={str(name): value for name, value in dict(added.get("partitionValues") or {}).items()},
        vector=None if vector is None else parse_descriptor(vector, path),
        stats={name: value for name, value in stats.items() if name not in ("numRecords", "tightBounds")},
    )


# -- several versions of a table ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LoggedFile:
    """A data file of a version, and its path as the log has it, which escapes some characters."""

    file: DataFile
    logged: str

    def remove(self, now_ms: int) -> dict[str, Any]:
        """Encode the action that removes the file without a change of data."""
        body = self.file.remove(now_ms, changes_data=False)["remove"]
        return {"remove": {**body, "path": self.logged}}


class TableHistory:
    """The versions of a table, read from the newest one down. Pass the actions of each commit to `add`, then those of a
    checkpoint or of version 0.

    files         the data files of the newest version, by path and deletion vector
    last_versions the newest version that needs a file, by path: of a data file, of a file with deletion vectors, or of the
                  change data feed
    transactions  the newest transaction of each application
    """

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.metadata: Mapping[str, Any] = {}
        self.protocol: Mapping[str, Any] = {}
        self.files: dict[tuple[str, str], LoggedFile] = {}
        self.last_versions: dict[str, int] = {}
        self.transactions: dict[str, int] = {}
        self._known: set[tuple[str, str]] = set()

    def add(self, actions: Iterable[Mapping[str, Any]], version: int, path: str) -> None:
        """Add the actions of the next older version. Raises `CorruptFile`, `UnknownFormatVersion`."""
        found = list(actions)
        try:
            # The files that a commit adds first: it wins over a removal of the same file in this commit.
            for action in found:
                if (added := action.get("add")) is not None:
                    key = self._needed(str(added["path"]), added, self.newest, path)
                    if key is not None:
                        plain = {name: value for name, value in added.items() if name != "stats"}
                        self.files[key] = LoggedFile(file=_file_of(plain, path), logged=str(added["path"]))
                elif (one := action.get("txn")) is not None:
                    self.transactions.setdefault(str(one["appId"]), int(one["version"]))
                elif (one := action.get("metaData")) is not None:
                    self.metadata = self.metadata or one
                elif (one := action.get("protocol")) is not None:
                    self.protocol = self.protocol or one
            self.add_feed(found, version)
            for action in found:
                if (removed := action.get("remove")) is not None:
                    self._needed(str(removed["path"]), removed, version - 1, path)
        except BAD_VALUES as error:
            raise CorruptFile(f"has an invalid action: {error!r}", path=path) from error

    def add_feed(self, actions: Iterable[Mapping[str, Any]], version: int) -> None:
        """Note the files of the change data feed in a commit: only this version needs them. `add` includes it."""
        for action in actions:
            if (feed := action.get("cdc")) is not None:
                name = unquote(str(feed["path"]))
                self.last_versions[name] = max(version, self.last_versions.get(name, version))

    def _needed(self, logged: str, body: Mapping[str, Any], until: int, path: str) -> tuple[str, str] | None:
        """Note the newest version that needs a file; return its key if no newer version has decided about it."""
        raw = body.get("deletionVector")
        vector = None if raw is None else parse_descriptor(raw, path)
        key = unquote(logged), "" if vector is None else vector.unique_id
        if key in self._known:
            return None
        self._known.add(key)
        for needed in (key[0], *((vector.path,) if vector is not None and vector.file is not None else ())):
            self.last_versions[needed] = max(until, self.last_versions.get(needed, until))
        return key


# -- a new table -------------------------------------------------------------------------------------------------------


def protocol_action(schema: pa.Schema, *, vectors: bool) -> dict[str, Any]:
    """Encode the protocol of a table with a change data feed and, if wanted, deletion vectors."""
    reader = [VECTORS] if vectors else []
    if any(map(_has_local_times, schema)):
        reader.append(_LOCAL_TIMES)
    action: dict[str, Any] = {
        "minReaderVersion": 3 if reader else 1,
        "minWriterVersion": 7,
        "writerFeatures": sorted([_FEED, _DOMAINS, *reader]),
    }
    if reader:
        action["readerFeatures"] = reader
    return {"protocol": action}


def _has_local_times(one: pa.Field) -> bool:
    is_local = pa.types.is_timestamp(one.type) and one.type.tz is None
    return is_local or any(map(_has_local_times, children(one.type)))


# -- checkpoints of the log --------------------------------------------------------------------------------------------

_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_CHECKPOINT = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                    ("deletionVector", _VECTOR),
                ]
            ),
        ),
        (
            "remove",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("deletionTimestamp", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("extendedFileMetadata", pa.bool_()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("deletionVector", _VECTOR),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
        (
            "domainMetadata",
            pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
        ),
    ]
)


def encode_checkpoint(table: DeltaTable, now_ms: int) -> tuple[bytes, bytes]:
    """Encode a checkpoint of the log at the version of the table, and the pointer to it."""
    actions: list[Mapping[str, Any]] = [
        {"protocol": table.protocol},
        {"metaData": table.metadata},
        *({"txn": found} for found in table.transactions.values()),
        *(
            {"domainMetadata": {"domain": name, "configuration": text, "removed": False}}
            for name, text in table.domains.items()
        ),
        *(file.add(changes_data=False) for file in table.files.values()),
        *(
            {"remove": {**removed, "dataChange": False}}
            for removed in table.tombstones.values()
            if now_ms - int(removed.get("deletionTimestamp") or 0) < TOMBSTONE_MS
        ),
    ]
    rows = pa.Table.from_pylist([dict(_as_maps(action)) for action in actions], schema=_CHECKPOINT)
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="snappy")
    pointer = {"version": table.version, "size": len(actions), "sizeInBytes": sink.tell()}
    return sink.getvalue(), json.dumps(pointer).encode()


def _as_maps(action: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the action with each map as a list of pairs, as Arrow converts it."""
    for name, value in action.items():
        body = dict(value)
        for key in ("partitionValues", "configuration"):
            if isinstance(body.get(key), Mapping):
                body[key] = list(body[key].items())
        if name == "metaData":
            form = dict(body.get("format") or {})
            body["format"] = {**form, "options": list(dict(form.get("options") or {}).items())}
        yield name, body
