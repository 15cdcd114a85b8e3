"""Snapshots: a zip with RocksDB's small files and the names of the SSTs of one whole version.

    <version>_<id>.zip      CURRENT, MANIFEST-*, OPTIONS-*, *.log (empty), metadata
    SSTs/<n>-<uuid>.sst     shared between snapshots, named by `metadata`
    logs/<n>-<uuid>.log     the same, of archived write-ahead logs

`metadata` is a line `v1` (`v2` in structure V2 of Spark 4.0) and one JSON object. The zip has no lineage: V1 and V2
differ only in the file name.

Archived write-ahead logs are part of the format and of Spark's tests, but queries do not write them: RocksDB's
`Checkpoint`, with which Spark captures a database, excludes them, and Spark disables the log. No load reads them,
because RocksDB recovers only from the logs in its own folder. But Spark requires that each log named by a snapshot
exists with the stated size.
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

from statekeeper.statestore.base.errors import CorruptFile, TooLarge, UnknownFormatVersion
from statekeeper.statestore.format.names import VersionId, is_checkpoint_id
from statekeeper.statestore.format.options_file import require_string_append
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json, require_parsable

MAX_UNPACKED_BYTES = 256 * 1024 * 1024
"""Maximum total size of a snapshot's small files. A MANIFEST of tens of thousands of SSTs is far smaller."""

_MOST_METADATA_BYTES = 16 * 1024 * 1024
"""Those of 100,000 SSTs are smaller."""

_MAX_ENTRIES = 1000
_ENTRY = b"PK\x01\x02"
"""The first bytes of an entry in the directory of a zip. `zipfile` reads the directory as a whole."""

_HEADER = struct.Struct("<4s2xHH4xIIIHH")
"""The header before the bytes of a file: flags, method, checksum, packed and unpacked bytes, lengths of name and extra."""

_DESCRIPTOR = struct.Struct("<III")
"""After the bytes of a file: the three of the header that were not known when it was written. A signature may be first."""

_ENCRYPTED_FLAG, _DESCRIPTOR_FLAG = 1 << 0, 1 << 3
_HEADER_SIGNATURE, _DESCRIPTOR_SIGNATURE = b"PK\x03\x04", b"PK\x07\x08"

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
"""The errors of `zipfile` for invalid zips; NotImplementedError is a RuntimeError."""

_LARGEST_FAMILY = 2**15 - 1
_LARGEST_COUNT = 2**63
"""What a short, and a long, of Spark's can hold."""

_HINT = "load an older version, or take a new snapshot"


OF_ANOTHER_PAST = "belongs to a version that was rolled back; the current version with this number has other content"


@dataclass(frozen=True)
class TableFile:
    """An SST or archived log of a snapshot: its name in the local RocksDB, its name under `SSTs/` or `logs/`, its
    size."""

    local_name: str
    dfs_name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class SnapshotMetadata:
    """The `metadata` of a snapshot. `key_count` is -1 if the keys were not counted.

    `column_families` maps names to ids; it is empty for a store without column families. It exists only in snapshots,
    as do `internal_families` (name -> whether it is internal to Spark) and `largest_family_id`. `archived_logs` have no
    content that the tables lack.
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
        """All files beside the zip that Spark requires to load it."""
        return self.tables + self.archived_logs


@dataclass(frozen=True)
class Snapshot:
    """The unpacked zip of a snapshot: the small files by name, and `metadata`. `is_ours`: written by Statekeeper, not
    by Spark.

    `digest`: in a root of Statekeeper with structure V1, the digest of the version. It is the zip's comment, which
    Spark ignores.
    """

    files: dict[str, bytes]
    metadata: SnapshotMetadata
    is_ours: bool = True
    digest: str | None = None

    def is_of(self, version: VersionId) -> bool:
        """Return whether this is a snapshot of that version, not of another one with the same number; True if a digest
        is missing."""
        return version.digest is None or self.digest in (None, version.digest)


def rocksdb_files(snapshot: Snapshot, path: str) -> dict[str, bytes]:
    """Return the files of a zip that RocksDB may open, by name: CURRENT and the MANIFEST that it names. Neither
    contains a path.

    The other files are excluded: RocksDB takes paths from OPTIONS (`options_file`) and applies the records of a log,
    which Spark leaves empty. For a store with column families the options must name StringAppend. Raises `CorruptFile`,
    `UnknownFormatVersion`.
    """
    current = snapshot.files["CURRENT"]
    manifest = current.decode("ascii", "replace").rstrip("\n")
    if not _CURRENT.fullmatch(current) or manifest not in snapshot.files:
        raise CorruptFile(f"has a CURRENT that names {current[:40]!r}, which is not in the zip", path=path, hint=_HINT)
    if logged := [name for name, body in snapshot.files.items() if name.endswith(".log") and body]:
        raise CorruptFile(
            f"has records in the write-ahead log {logged[0]}; in Spark's snapshots it is empty", path=path, hint=_HINT
        )
    if snapshot.metadata.column_families:
        options = [name for name in snapshot.files if name.startswith("OPTIONS-")]
        if not options:
            raise CorruptFile("has column families but no OPTIONS file", path=path, hint=_HINT)
        for name in options:
            require_string_append(snapshot.files[name], f"{path}/{name}")
    return {name: snapshot.files[name] for name in ("CURRENT", manifest)}


def is_small_file(name: str) -> bool:
    """Return whether RocksDB's file of that name goes into the zip."""
    return _SMALL_FILE.fullmatch(name) is not None


def read_snapshot(data: bytes, path: str) -> Snapshot:
    """Unpack the zip of a snapshot. Raises `CorruptFile`, or `UnknownFormatVersion`.

    Names and sizes in the zip are not trusted: no file leaves its folder, and all files take at most
    `MAX_UNPACKED_BYTES`.
    """
    files: dict[str, bytes] = {}
    left, end = MAX_UNPACKED_BYTES, 0
    times = set()
    if data.count(_ENTRY) > _MAX_ENTRIES:
        raise CorruptFile(f"more than {_MAX_ENTRIES:,} files in the zip", path=path, hint=_HINT)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            comment = archive.comment.decode("ascii", "replace")
            for entry in sorted(archive.infolist(), key=lambda one: one.header_offset):
                if entry.filename != _METADATA and not is_small_file(entry.filename):
                    raise CorruptFile(
                        f"has a file that is not part of a snapshot: {entry.filename!r}", path=path, hint=_HINT
                    )
                if entry.filename in files:
                    raise CorruptFile(f"has two files {entry.filename!r}", path=path, hint=_HINT)
                has_descriptor = bool(entry.flag_bits & _DESCRIPTOR_FLAG)
                # Java writes deflate. The headers of other methods determine how much memory they take.
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise CorruptFile(
                        f"uses the unsupported compression method {entry.compress_type}", path=path, hint=_HINT
                    )
                if entry.flag_bits & _ENCRYPTED_FLAG or (has_descriptor and entry.compress_type == zipfile.ZIP_STORED):
                    raise CorruptFile(
                        f"has the file {entry.filename} with flags that Java cannot read: {entry.flag_bits:#x}",
                        path=path,
                        hint=_HINT,
                    )
                left -= entry.file_size
                if left < 0:
                    raise CorruptFile(f"unpacks to more than {MAX_UNPACKED_BYTES:,} bytes", path=path, hint=_HINT)
                if entry.filename == _METADATA and entry.file_size > _MOST_METADATA_BYTES:
                    raise CorruptFile(
                        f"has metadata of {entry.file_size:,} bytes, above the limit of {_MOST_METADATA_BYTES:,}",
                        path=path,
                        hint=_HINT,
                    )
                files[entry.filename], end = _unpacked(data, entry, end, path)
                times.add(entry.date_time)
            if end != archive.start_dir:
                raise CorruptFile("has bytes between its files and its directory", path=path, hint=_HINT)
    except _BAD_ZIP as error:
        raise CorruptFile(f"is not a valid zip: {error}", path=path, hint=_HINT) from error
    metadata = _parse_metadata(files.pop(_METADATA, None), path)
    if "CURRENT" not in files:
        raise CorruptFile("has no file CURRENT", path=path, hint=_HINT)
    return Snapshot(files, metadata, times == {_NO_TIME}, comment if is_checkpoint_id(comment) else None)


def _unpacked(data: bytes, entry: zipfile.ZipInfo, start: int, path: str) -> tuple[bytes, int]:
    """Return the bytes of the file whose header is at `start`, and where the next header must be.

    The module `zipfile` reads the directory at the end of a zip; Spark (`ZipInputStream` of Java) reads the headers before
    the files, and each file to the end of its compressed stream. So both must agree.
    """
    signature, flags, method, *sizes, name_length, extra_length = _HEADER.unpack_from(data, start)
    packed_at = start + _HEADER.size + name_length + extra_length
    end = packed_at + entry.compress_size
    packed = data[packed_at:end]
    if flags & _DESCRIPTOR_FLAG:
        end += len(_DESCRIPTOR_SIGNATURE) * data.startswith(_DESCRIPTOR_SIGNATURE, end)
        sizes = list(_DESCRIPTOR.unpack_from(data, end))
        end += _DESCRIPTOR.size
    name = data[start + _HEADER.size : start + _HEADER.size + name_length]
    found = (start, signature, name, flags, method, sizes)
    declared = (
        entry.header_offset,
        _HEADER_SIGNATURE,
        entry.filename.encode(),
        entry.flag_bits,
        entry.compress_type,
        [entry.CRC, entry.compress_size, entry.file_size],
    )
    if found != declared:
        raise CorruptFile(
            f"has a header of the file {entry.filename} that contradicts the directory of the zip",
            path=path,
            hint=_HINT,
        )
    body, is_whole = packed, True
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
        # A forged file of any size takes no more memory than the declared size.
        body = unpacking.decompress(packed, entry.file_size + 1)
        is_whole = unpacking.eof and not unpacking.unused_data
    if not is_whole or len(body) != entry.file_size or zlib.crc32(body) != entry.CRC:
        raise CorruptFile(
            f"has the file {entry.filename} with {len(body):,} bytes that are not the {entry.file_size:,} bytes of its "
            "checksum",
            path=path,
            hint=_HINT,
        )
    return body, end


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot's zip; equal snapshots give equal bytes. Spark finds entries by name, in any order.

    Raises `TooLarge` for a snapshot that `read_snapshot` would reject because of its size.
    """
    metadata = snapshot.metadata
    # Spark omits empty lists of logs.
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
    _require_readable(snapshot, body)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = (snapshot.digest or "").encode()
        for name, content in (*sorted(snapshot.files.items()), (_METADATA, body)):
            # A constant time, so that the bytes are the same when they are sent again after a lost reply.
            time = _NO_TIME if snapshot.is_ours else _NOT_OURS
            archive.writestr(zipfile.ZipInfo(name, time), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _require_readable(snapshot: Snapshot, metadata: bytes) -> None:
    unpacked_bytes = len(metadata) + sum(map(len, snapshot.files.values()))
    try:
        require_parsable(metadata)
    except ValueError as error:
        problem: str | None = str(error)
    else:
        problem = None
    if len(metadata) > _MOST_METADATA_BYTES:
        problem = f"its metadata has {len(metadata):,} bytes, above the limit of {_MOST_METADATA_BYTES:,}"
    elif unpacked_bytes > MAX_UNPACKED_BYTES:
        problem = f"its small files have {unpacked_bytes:,} bytes, above the limit of {MAX_UNPACKED_BYTES:,}"
    elif len(snapshot.files) + 1 > _MAX_ENTRIES:
        problem = f"it has {len(snapshot.files) + 1:,} small files, above the limit of {_MAX_ENTRIES:,}"
    if problem is not None:
        raise TooLarge(
            f"a snapshot of {len(snapshot.metadata.tables):,} SST files could not be read again: {problem}; it was not "
            "written",
            hint="use more partitions, so that each store has fewer SST files: statekeeper rescale ROOT --partitions N",
        )


def _parse_metadata(body: bytes | None, path: str) -> SnapshotMetadata:
    if body is None:
        raise CorruptFile("has no metadata", path=path, hint=_HINT)
    header, _, rest = body.partition(b"\n")
    if header not in (b"v1", b"v2"):
        raise UnknownFormatVersion(
            f"has snapshot metadata version {header[:20]!r}; Statekeeper knows only versions v1 and v2 of the metadata",
            path=path,
            hint=_HINT,
        )
    try:
        fields = parsed_json(rest)
        metadata = SnapshotMetadata(
            header=header.decode(),
            tables=_parse_files(fields["sstFiles"], _TABLE_NAME),
            key_count=int(fields["numKeys"]),
            column_families={str(name): int(number) for name, number in fields.get("columnFamilyMapping", {}).items()},
            internal_key_count=int(fields.get("numInternalKeys", 0)),
            internal_families={
                str(name): bool(internal) for name, internal in fields.get("columnFamilyTypeMap", {}).items()
            },
            largest_family_id=int(fields.get("maxColumnFamilyId", 0)),
            archived_logs=_parse_files(fields.get("logFiles") or (), _LOG_NAME),
        )
    except BAD_VALUES as error:
        raise CorruptFile("has metadata that is not valid JSON of Spark's form", path=path, hint=_HINT) from error
    numbers = [*metadata.column_families.values(), metadata.largest_family_id]
    if not all(0 <= number <= _LARGEST_FAMILY for number in numbers):
        raise CorruptFile(f"has column family ids out of range: {numbers[:8]}", path=path, hint=_HINT)
    counts = (metadata.key_count, metadata.internal_key_count)
    if not all(-1 <= count < _LARGEST_COUNT for count in counts):
        raise CorruptFile(
            f"has impossible key counts: {counts[0]:,} keys, {counts[1]:,} internal keys", path=path, hint=_HINT
        )
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
            raise CorruptFile(f"has invalid file names: {file.local_name!r}, {file.dfs_name!r}", path=path, hint=_HINT)
        if file.size_bytes < 0:
            raise CorruptFile(f"declares a size of {file.size_bytes} bytes for {file.dfs_name}", path=path, hint=_HINT)
    if len({file.local_name for file in files}) < len(files):
        raise CorruptFile("has two files with the same name", path=path, hint=_HINT)
