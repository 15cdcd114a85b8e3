"""Snapshots: a zip that holds RocksDB's small files and names the SSTs of one whole version.

    <version>_<id>.zip      CURRENT, MANIFEST-*, OPTIONS-*, *.log (empty), metadata
    SSTs/<n>-<uuid>.sst     shared between snapshots, named by `metadata`

`metadata` is a line `v1` (`v2` in structure V2 of Spark 4.0) and one JSON object. The zip holds no lineage: bodies of
V1 and V2 are the same, only the name differs.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass, field

from statestore.errors import CorruptFile, UnknownFormatVersion
from statestore.format.untrusted import BAD_VALUES

MAX_UNPACKED_BYTES = 256 * 1024 * 1024
"""What the small files of a snapshot may take together; a MANIFEST of tens of thousands of SSTs stays far below."""

_METADATA = "metadata"
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_NOT_OURS = (1980, 1, 2, 0, 0, 0)
_SMALL_FILE = re.compile(r"CURRENT|IDENTITY|MANIFEST-\d+|OPTIONS-\d+|\d+\.log")
_LOCAL_TABLE = re.compile(r"\d+\.sst")
_DFS_TABLE = re.compile(r"[0-9]+-[0-9A-Za-z-]+\.sst")
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError, OSError, LookupError)
"""What `zipfile` raises over bytes that are no zip; NotImplementedError is a RuntimeError."""

_HINT = "load an older version, or take a new snapshot"


@dataclass(frozen=True)
class TableFile:
    """An SST of a snapshot: its name inside the local RocksDB, its name under `SSTs/`, and its size."""

    local_name: str
    dfs_name: str
    size_bytes: int


@dataclass(frozen=True)
class SnapshotMetadata:
    """What a snapshot's `metadata` says. `key_count` -1 means that nobody counted.

    `column_families` is the mapping of names to ids, empty for a store without; it exists in snapshots only, as do
    `internal_families` (name -> whether Spark keeps it for itself) and `largest_family_id`.
    """

    header: str
    tables: tuple[TableFile, ...]
    key_count: int
    column_families: dict[str, int]
    internal_key_count: int = 0
    internal_families: dict[str, bool] = field(default_factory=dict)
    largest_family_id: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A snapshot's zip, unpacked: the small files by name, and what `metadata` says. `is_ours`: not written by Spark."""

    files: dict[str, bytes]
    metadata: SnapshotMetadata
    is_ours: bool = True


def is_small_file(name: str) -> bool:
    """Whether RocksDB's file of that name goes into the zip itself."""
    return _SMALL_FILE.fullmatch(name) is not None


def read_snapshot(data: bytes, path: str) -> Snapshot:
    """Unpack a snapshot's zip. Names and sizes in it are not trusted: none escapes its folder, none allocates more than
    `MAX_UNPACKED_BYTES` in all. Raises `CorruptFile`, or `UnknownFormatVersion`."""
    files: dict[str, bytes] = {}
    left = MAX_UNPACKED_BYTES
    times = set()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                if entry.filename != _METADATA and not is_small_file(entry.filename):
                    raise CorruptFile(f"a file that no snapshot holds: {entry.filename!r}", path=path, hint=_HINT)
                if entry.filename in files:
                    raise CorruptFile(f"two files {entry.filename!r}", path=path, hint=_HINT)
                # Java writes deflate. The other methods' headers choose how much memory is taken.
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise CorruptFile(f"compression method {entry.compress_type}", path=path, hint=_HINT)
                # No more than is claimed here is ever unpacked, so that a bomb is known before it goes off.
                left -= entry.file_size
                if left < 0:
                    raise CorruptFile(f"unpacks to more than {MAX_UNPACKED_BYTES:,} bytes", path=path, hint=_HINT)
                files[entry.filename] = archive.read(entry)
                times.add(entry.date_time)
    except _BAD_ZIP as error:
        raise CorruptFile(f"not a whole zip: {error}", path=path, hint=_HINT) from error
    metadata = _parse_metadata(files.pop(_METADATA, None), path)
    if "CURRENT" not in files:
        raise CorruptFile("a snapshot without CURRENT", path=path, hint=_HINT)
    return Snapshot(files, metadata, is_ours=times == {_NO_TIME})


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot's zip; equal snapshots give equal bytes. Spark finds an entry by its name, in any order."""
    metadata = snapshot.metadata
    fields = {
        "sstFiles": [
            {"localFileName": t.local_name, "dfsSstFileName": t.dfs_name, "sizeBytes": t.size_bytes}
            for t in metadata.tables
        ],
        "numKeys": metadata.key_count,
        "numInternalKeys": metadata.internal_key_count,
        "columnFamilyMapping": metadata.column_families,
        "columnFamilyTypeMap": metadata.internal_families,
        "maxColumnFamilyId": metadata.largest_family_id,
    }
    body = f"{metadata.header}\n{json.dumps(fields, separators=(',', ':'))}".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (*sorted(snapshot.files.items()), (_METADATA, body)):
            # Not the clock's time: bytes that depend on nothing else can be sent again after a lost reply.
            time = _NO_TIME if snapshot.is_ours else _NOT_OURS
            archive.writestr(zipfile.ZipInfo(name, time), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _parse_metadata(body: bytes | None, path: str) -> SnapshotMetadata:
    if body is None:
        raise CorruptFile("a snapshot without metadata", path=path, hint=_HINT)
    header, _, rest = body.partition(b"\n")
    if header not in (b"v1", b"v2"):
        raise UnknownFormatVersion(f"snapshot metadata {header[:20]!r}: known are v1 and v2", path=path)
    try:
        fields = json.loads(rest)
        if fields.get("logFiles"):
            raise UnknownFormatVersion("a snapshot with archived WAL files", path=path, hint="nothing was changed")
        tables = tuple(
            TableFile(str(t["localFileName"]), str(t["dfsSstFileName"]), int(t["sizeBytes"]))
            for t in fields["sstFiles"]
        )
        metadata = SnapshotMetadata(
            header.decode(),
            tables,
            int(fields["numKeys"]),
            {str(name): int(number) for name, number in fields.get("columnFamilyMapping", {}).items()},
            int(fields.get("numInternalKeys", 0)),
            {str(name): bool(internal) for name, internal in fields.get("columnFamilyTypeMap", {}).items()},
            int(fields.get("maxColumnFamilyId", 0)),
        )
    except BAD_VALUES as error:
        raise CorruptFile("metadata is not the JSON that it should be", path=path, hint=_HINT) from error
    for table in tables:
        if not (_LOCAL_TABLE.fullmatch(table.local_name) and _DFS_TABLE.fullmatch(table.dfs_name)):
            raise CorruptFile(f"impossible table names {table.local_name!r}, {table.dfs_name!r}", path=path, hint=_HINT)
        if table.size_bytes < 0:
            raise CorruptFile(f"{table.dfs_name} has {table.size_bytes} bytes", path=path, hint=_HINT)
    if len({table.local_name for table in tables}) < len(tables):
        raise CorruptFile("two tables of one name", path=path, hint=_HINT)
    return metadata
