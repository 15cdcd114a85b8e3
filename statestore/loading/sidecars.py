"""Spark's sidecars: whether the checksum beside a changelog or a snapshot fits the file.

Spark 4.1 and later refuse a file whose sidecar does not fit, and read a file without a sidecar unchecked. An executor that
dies between the two leaves a sidecar without its file, which fits no file that is written under that name later.
"""

from __future__ import annotations

from collections.abc import Iterator

from statestore.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statestore.format import names
from statestore.format.changelog import Readable
from statestore.format.checksum import checksum, parse_sidecar
from statestore.storage import Storage

_PIECE_BYTES = 1024 * 1024


def misfit(storage: Storage, path: str, content: Readable) -> str | None:
    """In which way the sidecar beside `path` does not fit its content; None when it fits, when there is none, and for one
    of a later Spark that is not known here. One request. Raises `StorageError`."""
    beside = names.sidecar(path)
    try:
        said = parse_sidecar(storage.read(beside), beside)
    except (ObjectMissing, UnknownFormatVersion):
        return None
    except (CorruptFile, NotAFile) as error:
        return error.what
    if said.size_bytes != len(content):
        return f"says {said.size_bytes:,} bytes, the file has {len(content):,}"
    found = checksum(pieces(content))
    return None if said == found else f"says checksum {said.value}, the file has {found.value}"


def pieces(content: Readable) -> Iterator[bytes]:
    """The content, a piece at a time."""
    return (content[start : start + _PIECE_BYTES] for start in range(0, len(content), _PIECE_BYTES))
