"""Snapshots: a zip that holds RocksDB's small files and names the SSTs of one whole version.

    <version>_<id>.zip      CURRENT, MANIFEST-*, OPTIONS-*, *.log (empty), metadata
    SSTs/<n>-<uuid>.sst     shared between snapshots, named by `metadata`
    logs/<n>-<uuid>.log     the same, of archived write-ahead logs

`metadata` is a line `v1` (`v2` in structure V2 of Spark 4.0) and one JSON object. The zip holds no lineage: bodies of
V1 and V2 are the same, only the name differs.

Archived write-ahead logs are in the format and in Spark's tests of it, not in what a query writes: RocksDB's `Checkpoint`,
by which Spark captures a database, takes none along, and Spark switches the log off. No load reads them: RocksDB recovers
from the logs of its own folder alone. But Spark wants each that a snapshot names to be there, in its size.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from statestore.errors import CorruptFile, UnknownFormatVersion
from statestore.format.names import VersionId, is_checkpoint_id
from statestore.format.rocksdb_options import require_string_append
from statestore.format.untrusted import BAD_VALUES, MOST_JSON_BYTES, parsed_json

MAX_UNPACKED_BYTES = 256 * 1024 * 1024
"""What the small files of a snapshot may take together; a MANIFEST of tens of thousands of SSTs stays far below."""

_MAX_ENTRIES = 1000
_ENTRY = b"PK\x01\x02"
"""What an entry begins with in the directory of a zip, which `zipfile` reads as a whole."""

_METADATA = "metadata"
_TABLE_NAME, _LOG_NAME = "dfsSstFileName", "dfsLogFileName"
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_NOT_OURS = (1980, 1, 2, 0, 0, 0)
_SMALL_FILE = re.compile(r"CURRENT|IDENTITY|(?:MANIFEST|OPTIONS)-[0-9]{1,20}|[0-9]{1,20}\.log")
_CURRENT = re.compile(rb"MANIFEST-[0-9]{1,20}\n")
_LOCAL_TABLE = re.compile(r"[0-9]{1,20}\.sst")
_DFS_TABLE = re.compile(r"[0-9]{1,20}-[0-9A-Za-z-]{1,200}\.sst")
_LOCAL_LOG = re.compile(r"[0-9]{1,20}\.log")
_DFS_LOG = re.compile(r"[0-9]{1,20}-[0-9A-Za-z-]{1,200}\.log")
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError, OSError, LookupError)
"""What `zipfile` raises over bytes that are no zip; NotImplementedError is a RuntimeError."""

_PIECE_BYTES = 1024 * 1024

_LARGEST_FAMILY = 2**15 - 1
_LARGEST_COUNT = 2**63
"""What a short, and a long, of Spark's can hold."""

_HINT = "load an older version, or take a new snapshot"


@dataclass(frozen=True)
class TableFile:
    """An SST of a snapshot, or an archived log: its name inside the local RocksDB, its name under `SSTs/` or `logs/`, and
    its size."""

    local_name: str
    dfs_name: str
    size_bytes: int


@dataclass(frozen=True)
class SnapshotMetadata:
    """What a snapshot's `metadata` says. `key_count` -1 means that nobody counted.

    `column_families` is the mapping of names to ids, empty for a store without; it exists in snapshots only, as do
    `internal_families` (name -> whether Spark keeps it for itself) and `largest_family_id`. `archived_logs` hold nothing
    that the tables do not.
    """

    header: str
    tables: tuple[TableFile, ...]
    key_count: int
    column_families: dict[str, int]
    internal_key_count: int = 0
    internal_families: dict[str, bool] = field(default_factory=dict)
    largest_family_id: int = 0
    archived_logs: tuple[TableFile, ...] = ()

    @property
    def named_files(self) -> tuple[TableFile, ...]:
        """All files beside the zip that Spark does not load it without."""
        return self.tables + self.archived_logs


@dataclass(frozen=True)
class Snapshot:
    """A snapshot's zip, unpacked: the small files by name, and what `metadata` says. `is_ours`: not written by Spark.

    `digest`: in a root of our own in structure V1, of which version of its number it is; it is the zip's comment, which
    Spark does not look at.
    """

    files: dict[str, bytes]
    metadata: SnapshotMetadata
    is_ours: bool = True
    digest: str | None = None

    def is_of(self, version: VersionId) -> bool:
        """Whether it is of that version, and not of another one of the same number; where nothing is told, it is."""
        return version.digest is None or self.digest in (None, version.digest)


def rocksdb_files(snapshot: Snapshot, path: str) -> dict[str, bytes]:
    """The files of a zip that RocksDB may open, by name: CURRENT and the MANIFEST that it names. Neither holds a path.

    The other files stay out: RocksDB takes paths from OPTIONS (`rocksdb_options`), and applies what is in a log, which
    Spark leaves empty. For a store with column families the options must name StringAppend. Raises `CorruptFile`,
    `UnknownFormatVersion`.
    """
    current = snapshot.files["CURRENT"]
    manifest = current.decode("ascii", "replace").rstrip("\n")
    if not _CURRENT.fullmatch(current) or manifest not in snapshot.files:
        raise CorruptFile(f"CURRENT names {current[:40]!r}, which the zip does not hold", path=path, hint=_HINT)
    if logged := [name for name, body in snapshot.files.items() if name.endswith(".log") and body]:
        raise CorruptFile(f"{logged[0]} has records; Spark writes no write-ahead log", path=path, hint=_HINT)
    if snapshot.metadata.column_families:
        options = [name for name in snapshot.files if name.startswith("OPTIONS-")]
        if not options:
            raise CorruptFile("a snapshot with column families and without OPTIONS", path=path, hint=_HINT)
        for name in options:
            require_string_append(snapshot.files[name], f"{path}/{name}")
    return {name: snapshot.files[name] for name in ("CURRENT", manifest)}


def is_small_file(name: str) -> bool:
    """Whether RocksDB's file of that name goes into the zip itself."""
    return _SMALL_FILE.fullmatch(name) is not None


def read_snapshot(data: bytes, path: str) -> Snapshot:
    """Unpack a snapshot's zip. Names and sizes in it are not trusted: none escapes its folder, none allocates more than
    `MAX_UNPACKED_BYTES` in all. Raises `CorruptFile`, or `UnknownFormatVersion`."""
    files: dict[str, bytes] = {}
    left = MAX_UNPACKED_BYTES
    times = set()
    if data.count(_ENTRY) > _MAX_ENTRIES:
        raise CorruptFile(f"more than {_MAX_ENTRIES:,} files in the zip", path=path, hint=_HINT)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            comment = archive.comment.decode("ascii", "replace")
            for entry in archive.infolist():
                if entry.filename != _METADATA and not is_small_file(entry.filename):
                    raise CorruptFile(f"a file that no snapshot holds: {entry.filename!r}", path=path, hint=_HINT)
                if entry.filename in files:
                    raise CorruptFile(f"two files {entry.filename!r}", path=path, hint=_HINT)
                # Java writes deflate. The other methods' headers choose how much memory is taken.
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise CorruptFile(f"compression method {entry.compress_type}", path=path, hint=_HINT)
                left -= entry.file_size
                if left < 0:
                    raise CorruptFile(f"unpacks to more than {MAX_UNPACKED_BYTES:,} bytes", path=path, hint=_HINT)
                if entry.filename == _METADATA and entry.file_size > MOST_JSON_BYTES:
                    raise CorruptFile(f"metadata of {entry.file_size:,} bytes", path=path, hint=_HINT)
                files[entry.filename] = _unpacked(archive, entry, path)
                times.add(entry.date_time)
    except _BAD_ZIP as error:
        raise CorruptFile(f"not a whole zip: {error}", path=path, hint=_HINT) from error
    metadata = _parse_metadata(files.pop(_METADATA, None), path)
    if "CURRENT" not in files:
        raise CorruptFile("a snapshot without CURRENT", path=path, hint=_HINT)
    return Snapshot(files, metadata, times == {_NO_TIME}, comment if is_checkpoint_id(comment) else None)


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: str) -> bytes:
    """The bytes of an entry. Not `ZipFile.read`: it unpacks up to 2 GiB before it looks at the claimed size."""
    pieces = []
    with archive.open(entry) as packed:
        while piece := packed.read(_PIECE_BYTES):
            pieces.append(piece)
    body = b"".join(pieces)
    # zipfile cuts what is longer than claimed, and says nothing of what is shorter.
    if len(body) != entry.file_size:
        raise CorruptFile(
            f"{entry.filename} has {len(body):,} bytes and claims {entry.file_size:,}", path=path, hint=_HINT
        )
    return body


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot's zip; equal snapshots give equal bytes. Spark finds an entry by its name, in any order."""
    metadata = snapshot.metadata
    # Spark leaves out what a snapshot has none of.
    logs = {"logFiles": _encode_files(metadata.archived_logs, _LOG_NAME)} if metadata.archived_logs else {}
    fields = {
        "sstFiles": _encode_files(metadata.tables, _TABLE_NAME),
        **logs,
        "numKeys": metadata.key_count,
        "numInternalKeys": metadata.internal_key_count,
        "columnFamilyMapping": metadata.column_families,
        "columnFamilyTypeMap": metadata.internal_families,
        "maxColumnFamilyId": metadata.largest_family_id,
    }
    body = f"{metadata.header}\n{json.dumps(fields, separators=(',', ':'))}".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = (snapshot.digest or "").encode()
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
        fields = parsed_json(rest)
        metadata = SnapshotMetadata(
            header.decode(),
            _parse_files(fields["sstFiles"], _TABLE_NAME),
            int(fields["numKeys"]),
            {str(name): int(number) for name, number in fields.get("columnFamilyMapping", {}).items()},
            int(fields.get("numInternalKeys", 0)),
            {str(name): bool(internal) for name, internal in fields.get("columnFamilyTypeMap", {}).items()},
            int(fields.get("maxColumnFamilyId", 0)),
            _parse_files(fields.get("logFiles") or (), _LOG_NAME),
        )
    except BAD_VALUES as error:
        raise CorruptFile("metadata is not the JSON that it should be", path=path, hint=_HINT) from error
    numbers = [*metadata.column_families.values(), metadata.largest_family_id]
    if not all(0 <= number <= _LARGEST_FAMILY for number in numbers):
        raise CorruptFile(f"column families of the numbers {numbers[:8]}", path=path, hint=_HINT)
    counts = (metadata.key_count, metadata.internal_key_count)
    if not all(-1 <= count < _LARGEST_COUNT for count in counts):
        raise CorruptFile(f"{counts[0]:,} keys, of which Spark keeps {counts[1]:,} for itself", path=path, hint=_HINT)
    _require_names(metadata.tables, _LOCAL_TABLE, _DFS_TABLE, path)
    _require_names(metadata.archived_logs, _LOCAL_LOG, _DFS_LOG, path)
    return metadata


def _encode_files(files: Iterable[TableFile], dfs_field: str) -> list[dict[str, str | int]]:
    return [
        {"localFileName": file.local_name, dfs_field: file.dfs_name, "sizeBytes": file.size_bytes} for file in files
    ]


def _parse_files(files: Iterable[Any], dfs_field: str) -> tuple[TableFile, ...]:
    return tuple(TableFile(str(file["localFileName"]), str(file[dfs_field]), int(file["sizeBytes"])) for file in files)


def _require_names(files: Sequence[TableFile], local: re.Pattern[str], dfs: re.Pattern[str], path: str) -> None:
    for file in files:
        if not (local.fullmatch(file.local_name) and dfs.fullmatch(file.dfs_name)):
            raise CorruptFile(f"impossible table names {file.local_name!r}, {file.dfs_name!r}", path=path, hint=_HINT)
        if file.size_bytes < 0:
            raise CorruptFile(f"{file.dfs_name} has {file.size_bytes} bytes", path=path, hint=_HINT)
    if len({file.local_name for file in files}) < len(files):
        raise CorruptFile("two tables of one name", path=path, hint=_HINT)
