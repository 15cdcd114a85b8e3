"""Batch logs: one object with the record of an attempt at a batch, and the changelogs of all its small stores (FLIP-158).

    magic "SKLOG001", 8 bytes
    head length, uint32, and CRC32C of the head, uint32, big-endian
    head      JSON: version, tag, record, members [[operator, partition, store, id, bytes, checksum], ...]
    members   one after another, each a complete changelog in Spark's format, with header and lineage

The index is in front, because the driver holds all members when it writes: a reader gets it, and a small object as a whole,
with one ranged request. The checksum of a member covers its store and version, so that bytes of another store do not pass.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import google_crc32c
import xxhash

from statekeeper.statestore.base.errors import CorruptFile, TooLarge, UnknownFormatVersion
from statekeeper.statestore.format import names
from statekeeper.statestore.format.limits import require_json
from statekeeper.statestore.format.names import LARGEST_NUMBER, MOST_PARTITIONS, StorePath, VersionId
from statekeeper.statestore.format.untrusted import BAD_VALUES, checkpoint_id, json_object, store_name

Place = tuple[StorePath, VersionId]
"""One version of one store."""

_TAG_LENGTH = 18
_UUID_VERSION_AT = 14
_IN_BATCH_LOG = "8"
"""The UUID version of ids whose changelog is in a batch log. Spark's ids, and ours of own files, have version 4."""
_MAGIC = b"SKLOG001"
_FRONT = struct.Struct(">8sII")
MOST_HEAD_BYTES = 16 * 1024 * 1024
_HINT = "restore the file from a backup. To see from which batch the query can restart, run: statekeeper audit ROOT"

FRONT_BYTES = _FRONT.size
"""The least number of bytes that `head_bytes` needs."""


@dataclass(frozen=True, slots=True)
class Member:
    """One changelog in a batch log. `start`: offset of its first byte in the object; `checksum`: see `member_checksum`."""

    start: int
    length: int
    checksum: str


@dataclass(frozen=True, kw_only=True)
class BatchLog:
    """The head of a batch log.

    record       the attempt, as its driver recorded it
    members      the changelogs, by store and version
    size_bytes   length of the whole object
    """

    version: int
    tag: str
    record: Mapping[str, Any]
    members: Mapping[Place, Member]
    size_bytes: int


def tag_of(attempt: str) -> str:
    """Derive the tag of an attempt's batch log from the attempt's id, a random UUID."""
    return f"{attempt[:_UUID_VERSION_AT]}{_IN_BATCH_LOG}{attempt[_UUID_VERSION_AT + 1 : _TAG_LENGTH]}"


def id_with(tag: str, fresh: str) -> str:
    """Make a checkpoint id whose changelog is in the batch log with this tag. `fresh`: a random UUID."""
    return tag + fresh[_TAG_LENGTH:]


def path_of(version: VersionId) -> str | None:
    """Return the path of the batch log that holds the changelogs of a version; None if each is an object of its own."""
    if version.id is None or version.id[_UUID_VERSION_AT] != _IN_BATCH_LOG:
        return None
    return names.batch_log(version.version, version.id[:_TAG_LENGTH])


def object_of(store: StorePath, version: VersionId) -> str:
    """Return the path of the object that holds a changelog: a batch log, or its own file."""
    return path_of(version) or store.changelog(version)


def encode(version: int, tag: str, record: Mapping[str, Any], changelogs: Mapping[Place, bytes]) -> bytes:
    """Encode a batch log. `changelogs`: complete changelogs; equal arguments give equal bytes.

    Raises `TooLarge` for a head that could not be read again.
    """
    order = sorted(changelogs)
    index = [
        [
            store.operator,
            store.partition,
            store.store,
            of.id,
            len(changelogs[store, of]),
            member_checksum((store, of), changelogs[store, of]),
        ]
        for store, of in order
    ]
    body = {"version": version, "tag": tag, "record": record, "members": index}
    head = json.dumps(body, separators=(",", ":"), sort_keys=True).encode()
    if len(head) > MOST_HEAD_BYTES:
        raise TooLarge(
            f"would have a head of {len(head):,} bytes with {len(index):,} changelogs, above the limit of "
            f"{MOST_HEAD_BYTES:,} bytes; it was not written, and the batch was not committed",
            path=names.batch_log(version, tag),
            hint='start the job with log="stores", which writes a file for each changelog, or write fewer data files in '
            "a batch",
        )
    require_json(names.batch_log(version, tag), head)
    front = _FRONT.pack(_MAGIC, len(head), google_crc32c.value(head))
    return b"".join([front, head, *(changelogs[place] for place in order)])


def member_checksum(place: Place, changelog: bytes) -> str:
    """Compute the checksum of a member: XXH3, 128 bits, of its store, its version and its bytes."""
    store, version = place
    return xxhash.xxh3_128_hexdigest(store.changelog(version).encode() + b"\n" + changelog)


def head_bytes(data: bytes, path: str) -> int:
    """Return the number of bytes from the start of the object to its first member.

    `data`: at least `FRONT_BYTES` bytes from the start. Raises `CorruptFile`, `UnknownFormatVersion`.
    """
    if len(data) < FRONT_BYTES:
        raise CorruptFile(
            f"is truncated: it has only {len(data)} bytes; its changelogs are lost", path=path, hint=_HINT
        )
    magic, length, _ = _FRONT.unpack_from(data)
    if magic != _MAGIC:
        if magic[:5] == _MAGIC[:5]:
            raise UnknownFormatVersion(
                f"has format {magic[5:].decode('ascii', 'replace')!r}; this release reads {_MAGIC[5:].decode()}",
                path=path,
                hint="upgrade Statekeeper",
            )
        raise CorruptFile("is not a batch log; its changelogs are lost", path=path, hint=_HINT)
    if length > MOST_HEAD_BYTES:
        raise CorruptFile(f"has a head of {length:,} bytes; the limit is {MOST_HEAD_BYTES:,}", path=path, hint=_HINT)
    return FRONT_BYTES + int(length)


def parse_head(data: bytes, path: str) -> BatchLog:
    """Parse the head of a batch log. `data`: at least the first `head_bytes` of the object.

    Raises `CorruptFile` for damaged bytes, for a head that names another object than `path`, and for members that no store
    or version can have; `UnknownFormatVersion`.
    """
    end = head_bytes(data, path)
    head = data[FRONT_BYTES:end]
    _, length, checksum = _FRONT.unpack_from(data)
    if len(head) < length or google_crc32c.value(head) != checksum:
        raise CorruptFile("is truncated or corrupt: its index fails its checksum", path=path, hint=_HINT)
    body = json_object(head, path)
    try:
        version, tag, record = body["version"], str(body["tag"]), dict(body["record"])
        members, size_bytes = _members(body["members"], version, tag, end)
    except BAD_VALUES as error:
        raise CorruptFile(f"has an invalid index: {error}", path=path, hint=_HINT) from error
    if names.batch_log(version, tag) != path:
        raise CorruptFile(f"contains the batch log {version}-{tag}; it was copied or renamed", path=path, hint=_HINT)
    return BatchLog(version=version, tag=tag, record=record, members=members, size_bytes=size_bytes)


def _members(rows: Any, version: Any, tag: str, start: int) -> tuple[dict[Place, Member], int]:
    if not isinstance(version, int) or isinstance(version, bool) or not isinstance(rows, list):
        raise TypeError("version and members have other types")
    members: dict[Place, Member] = {}
    for operator, partition, store, text, length, checksum in rows:
        of = VersionId(version, checkpoint_id(text))
        if path_of(of) != names.batch_log(version, tag):
            raise ValueError(f"id {text} belongs to another batch log")
        place = StorePath(_number(operator, LARGEST_NUMBER), _number(partition, MOST_PARTITIONS), store_name(store)), of
        if place in members:
            raise ValueError(f"{place[0]} occurs twice")
        members[place] = Member(start, _number(length, 2**63), str(checksum))
        start += length
    return members, start


def _number(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is not a number up to {most:,}")
    return value


def member_bytes(log: BatchLog, place: Place, data: bytes, path: str) -> bytes:
    """Return the bytes of a member after verifying its checksum. `data`: the bytes of its range.

    Raises `CorruptFile` if they are truncated, damaged or those of another store.
    """
    member = log.members[place]
    if len(data) != member.length or member_checksum(place, data) != member.checksum:
        store, version = place
        raise CorruptFile(
            f"is truncated or corrupt: the changelog of {version.in_words} of {store} fails its checksum",
            path=path,
            hint=_HINT,
        )
    return data
