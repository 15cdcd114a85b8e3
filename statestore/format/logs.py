"""The query's logs: `metadata`, `offsets/N` and `commits/N`.

metadata      {"id": "<uuid>"}
offsets/N     v1, then {batchWatermarkMs, batchTimestampMs, conf}, then the offset of each source, one line each; continuous
              processing writes an empty line in place of the object
              v2, of Spark 4.2, the same with sourceMetadataInfo and with lines <id of the source>:<offset>
commits/N     v1, then {nextBatchWatermarkMs}; in Statekeeper's roots with statekeeperDigests, in the form of the ids of v2
              v2, the same with stateUniqueIds: {operator: [[id of store 0, ...] of partition 0, ...]}
              v3, of Spark 4.2 if sinks have names: v1 or v2 with sinkMetadataMap
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from statekeeper.statestore.base.errors import RESTORE, CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.provider import PROVIDER, Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.untrusted import BAD_VALUES, checkpoint_id, json_object, plain_number

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_KNOW_IT = "nothing was changed; upgrade Statekeeper"

_STATE = "spark.sql.streaming.stateStore."
CODEC = _STATE + "compression.codec"
ENCODING = _STATE + "encodingFormat"
"""Set in the offset logs of queries that were first started with Spark 4.0 or later."""

_IDS = "stateUniqueIds"
_SINKS = "sinkMetadataMap"
_DIGESTS = "statekeeperDigests"
"""Spark ignores unknown fields."""
_SOURCES = "sourceMetadataInfo"

STATE_CONF = {
    PROVIDER: Provider.ROCKSDB.class_name,
    _STATE + "rocksdb.formatVersion": "5",
    _STATE + "rocksdb.mergeOperatorVersion": "2",
    ENCODING: "unsaferow",
    _STATE + "rowChecksum.enabled": "false",
    CODEC: "lz4",
}
"""How the state of Statekeeper's roots is encoded, as the confs of Spark's offset log."""


@dataclass(frozen=True, kw_only=True)
class OffsetLog:
    """One `offsets/N`: the end of the batch in each source, and the confs of the state.

    sources          the line of each source, as in the file
    is_continuous    an epoch of continuous processing, which has no confs and no times
    source_metadata  in v2, Spark's metadata of the sources, unchanged; None in v1
    """

    watermark_ms: int
    timestamp_ms: int
    conf: dict[str, str]
    sources: tuple[str, ...]
    is_continuous: bool = False
    source_metadata: dict[str, Any] | None = None

    @property
    def by_source(self) -> dict[str, str]:
        """The offset of each source by its id; in v1, by its number in the query."""
        if self.source_metadata is None:
            return {str(number): offset for number, offset in enumerate(self.sources)}
        return {line.partition(":")[0]: line.partition(":")[2] for line in self.sources}

    @property
    def query_conf(self) -> dict[str, str]:
        """The confs that do not describe stores. Without one of them, Spark takes its oldest default at the next start: it
        would ignore the names of the sources, for example."""
        return {name: value for name, value in self.conf.items() if not name.startswith(_STATE)}


ByStore = dict[int, tuple[tuple[str, ...], ...]]
"""Operator -> partition -> one text per store."""


@dataclass(frozen=True, slots=True)
class CommitLog:
    """One `commits/N`.

    `ids` is None in v1. `digests`: in v1, the digests of the committed versions (see `checkpoint.digests`); None in
    commits by Spark, and in v2. `sinks`: in v3, Spark's metadata of the sinks, unchanged.
    """

    next_watermark_ms: int
    ids: ByStore | None
    digests: ByStore | None = None
    sinks: dict[str, Any] | None = None

    @property
    def structure(self) -> Structure:
        """The structure of the batch."""
        return Structure.V1 if self.ids is None else Structure.V2

    @property
    def marks(self) -> ByStore | None:
        """The ids or the digests. They tell the committed versions from other versions with the same number."""
        return self.digests if self.ids is None else self.ids

    @property
    def shape(self) -> CommitLog:
        """The same log with empty marks; it gives the number of stores. Logs of one shape share it to save memory."""
        ids, digests = (None if by_store is None else _shape(by_store) for by_store in (self.ids, self.digests))
        return CommitLog(self.next_watermark_ms, ids, digests)

    def version(self, number: int, mark: str) -> VersionId:
        """Return the version with this number and mark."""
        return VersionId(number, digest=mark) if self.ids is None else VersionId(number, mark)


def _shape(by_store: ByStore) -> ByStore:
    widths = tuple((operator, tuple(map(len, partitions))) for operator, partitions in by_store.items())
    return _shared_shape(widths)


@lru_cache(maxsize=64)
def _shared_shape(widths: tuple[tuple[int, tuple[int, ...]], ...]) -> ByStore:
    return {operator: tuple(("",) * stores for stores in partitions) for operator, partitions in widths}


def encode_metadata(query_id: str) -> bytes:
    """Return the bytes of `metadata`."""
    return json.dumps({"id": query_id}, separators=(",", ":")).encode()


UNFINISHED = b"Statekeeper writes this checkpoint. No query can start before it is complete: run statekeeper audit"
"""The content of `metadata` in an unfinished checkpoint. Each release of Spark reads `metadata` first, and stops if it is
not JSON. Without `metadata`, Spark 3.5 to 4.1 would start on the files that exist already."""


def parse_metadata(data: bytes, path: str) -> str:
    """Parse `metadata`; return the query's id. Raises `CorruptFile`, also for an unfinished checkpoint."""
    if data == UNFINISHED:
        raise CorruptFile(
            "is the checkpoint of an unfinished migration; no query can start",
            path=path,
            hint="for the commands that finish it and reverse it, run: statekeeper audit ROOT",
        )
    body = json_object(data, path)
    if "id" not in body:
        raise CorruptFile("lacks the field 'id'", path=path, hint=RESTORE)
    return str(body["id"])


def encode_offsets(log: OffsetLog) -> bytes:
    """Return the bytes of `offsets/N`; equal logs give equal bytes."""
    head = {"batchWatermarkMs": log.watermark_ms, "batchTimestampMs": log.timestamp_ms, "conf": log.conf}
    header = "v1"
    if log.source_metadata is not None:
        header, head[_SOURCES] = "v2", log.source_metadata
    return "\n".join([header, json.dumps(head, separators=(",", ":")), *log.sources]).encode()


def parse_offsets(data: bytes, path: str) -> OffsetLog:
    """Parse `offsets/N`. Raises `UnknownFormatVersion` for a header other than v1 and v2, and `CorruptFile`."""
    lines = _lines(data, path, known=("v1", "v2"))
    if len(lines) < 2:
        raise CorruptFile("is truncated: the metadata line is missing", path=path, hint=RESTORE)
    if not lines[1] and len(lines) > 2:
        return OffsetLog(watermark_ms=0, timestamp_ms=0, conf={}, sources=tuple(lines[2:]), is_continuous=True)
    head = json_object(lines[1].encode(), path)
    try:
        return OffsetLog(
            watermark_ms=int(head["batchWatermarkMs"]),
            timestamp_ms=int(head["batchTimestampMs"]),
            conf={str(k): str(v) for k, v in head["conf"].items()},
            sources=tuple(lines[2:]),
            source_metadata=dict(head.get(_SOURCES, {})) if lines[0] == "v2" else None,
        )
    except BAD_VALUES as error:
        raise CorruptFile("has a metadata line with a missing or invalid field", path=path, hint=RESTORE) from error


def encode_commit(log: CommitLog) -> bytes:
    """Return the bytes of `commits/N`."""
    body: dict[str, Any] = {"nextBatchWatermarkMs": log.next_watermark_ms}
    if log.ids is not None:
        body[_IDS] = _encoded(log.ids)
    elif log.digests is not None:
        body[_DIGESTS] = _encoded(log.digests)
    header = b"v1\n" if log.ids is None else b"v2\n"
    if log.sinks is not None:
        header, body[_SINKS] = b"v3\n", log.sinks
    return header + json.dumps(body, separators=(",", ":")).encode()


def _encoded(by_store: ByStore) -> dict[str, list[list[str]]]:
    return {str(op): [list(p) for p in partitions] for op, partitions in sorted(by_store.items())}


def parse_commit(data: bytes, path: str) -> CommitLog:
    """Parse `commits/N`. Raises `UnknownFormatVersion` for a header other than v1 to v3, and `CorruptFile`."""
    lines = _lines(data, path, known=("v1", "v2", "v3"))
    body = json_object("\n".join(lines[1:]).encode(), path)
    try:
        watermark_ms = int(body.get("nextBatchWatermarkMs", 0))
        digests = _parsed(body[_DIGESTS]) if _DIGESTS in body else None
        if lines[0] == "v1":
            return CommitLog(watermark_ms, None, digests)
        if lines[0] == "v2":
            return CommitLog(watermark_ms, _parsed(body[_IDS]))
        ids = _parsed(body[_IDS]) if body.get(_IDS) is not None else None
        return CommitLog(watermark_ms, ids, digests, dict(body[_SINKS]))
    except BAD_VALUES as error:
        field_name = {"v1": _DIGESTS, "v2": _IDS}.get(lines[0], f"{_IDS} or {_SINKS}")
        raise CorruptFile(f"has no valid {field_name}", path=path, hint=RESTORE) from error


def _parsed(body: Any) -> ByStore:
    return {
        plain_number(op): tuple(tuple(checkpoint_id(text) for text in stores) for stores in partitions)
        for op, partitions in body.items()
    }


def is_plain_commit(data: bytes, path: str) -> bool:
    """Return whether `parse_commit` reads all fields of `commits/N`, so that the log can be rewritten without loss.
    Raises as `parse_commit`."""
    log = parse_commit(data, path)
    body = json_object(data.partition(b"\n")[2], path)
    seen = {"nextBatchWatermarkMs", _IDS, _DIGESTS} | ({_SINKS} if log.sinks is not None else set())
    return body.keys() <= seen


def _lines(data: bytes, path: str, *, known: tuple[str, ...]) -> list[str]:
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptFile("is not UTF-8 text", path=path, hint=RESTORE) from error
    if not data:
        raise CorruptFile("is empty", path=path, hint=RESTORE)
    if lines[0] not in known:
        if lines[0].startswith("v") and lines[0][1:].isdigit():
            raise UnknownFormatVersion(
                f"has log version {lines[0]}, which is not supported (supported: {', '.join(known)})",
                path=path,
                hint=_KNOW_IT,
            )
        raise CorruptFile(f"starts with {lines[0][:20]!r} instead of a version", path=path, hint=RESTORE)
    return lines


def with_confs(text: str, path: str, confs: Mapping[str, str], *, watermark_ms: int = 0, lowers: bool = False) -> bytes:
    """Return an offset log with these confs, and at least this watermark. `lowers`: exactly this watermark. Unknown fields
    are kept."""
    header, head, *sources = text.split("\n")
    body = json_object(head.encode(), path)
    body["batchWatermarkMs"] = watermark_ms if lowers else max(int(body["batchWatermarkMs"]), watermark_ms)
    body["conf"] = {**body["conf"], **confs}
    return "\n".join([header, json.dumps(body, separators=(",", ":"), ensure_ascii=False), *sources]).encode()
