"""Record of the snapshot files that were read in full.

    _statekeeper/verified.json  {"state/0/3/SSTs/000012-6ad1....sst": [size, "<etag or time>", read at, "<digest>", null]}

The entry of a zip means that RocksDB opened the snapshot with all SST files. The last field is null for an intact file,
else the damage and whether a load detects it. An entry is valid while the listing shows the same size and etag (on a file
system: modification time). Without the record, the files are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.contents.chain import ReadFault
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.json_records import About, Count, UnixSeconds
from statekeeper.statestore.storage import Entry, Storage, read_or_none


@dataclass(frozen=True, kw_only=True)
class FileRead:
    """One read of one file. `stamp` identifies the bytes that the store held then; `digest` is XXH3-128 of what was read,
    "" when the read ended early; `fault` is None for an intact file. Time is seconds since the epoch."""

    path: str
    size_bytes: int
    stamp: str
    read_at_seconds: float
    digest: str
    fault: ReadFault | None = None

    def is_of(self, entry: Entry | None) -> bool:
        """Whether the file is still the one that was read."""
        return entry is not None and (self.size_bytes, self.stamp) == (entry.size_bytes, stamp(entry))


_Fields = tuple[Count, str, UnixSeconds, str, tuple[str, bool] | None]
"""The fields of a `FileRead` in the file, without the path; of its fault, text and `is_noticed`."""

Reads = Mapping[str, FileRead]
"""The reads on record, by path."""


def stamp(entry: Entry) -> str:
    """Return the identity of a file's bytes: its etag, else its modification time."""
    return entry.etag or ("" if entry.modified_at_seconds is None else f"{entry.modified_at_seconds:.9f}")


def record(storage: Storage) -> Reads:
    """Read the record; empty if it is missing or unusable. One request. Raises `StorageError`."""
    data = read_or_none(storage, names.VERIFIED)
    if data is None:
        return {}
    try:
        written = json_records.decoded(dict[str, _Fields], data, names.VERIFIED, About("record of verified files"))
    except CorruptFile:
        return {}
    return {
        path: FileRead(
            path=path,
            size_bytes=size_bytes,
            stamp=stamp_then,
            read_at_seconds=read_at_seconds,
            digest=digest,
            fault=None if fault is None else ReadFault(*fault),
        )
        for path, (size_bytes, stamp_then, read_at_seconds, digest, fault) in written.items()
    }


def write(storage: Storage, reads: Reads) -> None:
    """Replace the record. Raises `StorageError`."""
    body = {path: _fields(reads[path]) for path in sorted(reads)}
    storage.replace(names.VERIFIED, json_records.encoded(body, compact=True))


def remaining(reads: Reads, entries: Iterable[Entry], folders: Iterable[str], *, only: bool) -> Reads:
    """Return the record without missing or replaced files. `entries`: the files of the stores in `folders`; `only`: no
    other stores exist. Pure."""
    there = {entry.path: entry for entry in entries}
    looked_at = set(folders)

    def stays(one: FileRead) -> bool:
        place = names.parse_place(one.path)
        if place is None:
            return False
        return one.is_of(there.get(one.path)) if only or place[0].folder in looked_at else True

    return {path: one for path, one in reads.items() if stays(one)}


def faults(reads: Reads, entries: Mapping[str, Entry]) -> Mapping[str, ReadFault]:
    """Return the corrupt files among these, by path. Pure."""
    return {path: one.fault for path, one in reads.items() if one.fault is not None and one.is_of(entries.get(path))}


def _fields(one: FileRead) -> _Fields:
    fault = None if one.fault is None else (one.fault.text, one.fault.is_noticed)
    return (one.size_bytes, one.stamp, round(one.read_at_seconds, 3), one.digest, fault)
