"""Files and their sidecars: Spark's checksum files, which have the size and the checksum of a file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from statekeeper.statestore.base.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.format import names
from statekeeper.statestore.format.checksum import checksum, parse_sidecar
from statekeeper.statestore.format.compression import Readable
from statekeeper.statestore.storage import Storage

_PIECE_BYTES = 1024 * 1024
_MAP_FROM_BYTES = 16 * 1024 * 1024


def misfit(storage: Storage, path: str, content: Readable) -> str | None:
    """Compare `content` with the sidecar of `path`. Return the difference; None if there is none, if there is no sidecar,
    and if the sidecar has an unknown format of a later Spark. One request. Raises `StorageError`."""
    beside = names.sidecar(path)
    try:
        said = parse_sidecar(storage.read(beside), beside)
    except (ObjectMissing, UnknownFormatVersion):
        return None
    except (CorruptFile, NotAFile) as error:
        return error.what
    if said.size_bytes != len(content):
        return f"has size {said.size_bytes:,} bytes, but the file has {len(content):,}"
    found = checksum(pieces(content))
    return None if said == found else f"has checksum {said.value}, but the file has {found.value}"


def pieces(content: Readable) -> Iterator[bytes]:
    """Split the content into pieces of 1 MiB."""
    return (content[start : start + _PIECE_BYTES] for start in range(0, len(content), _PIECE_BYTES))


def readable(path: Path) -> Readable:
    """Read a small local file into memory; map a larger one. Raises `OSError`."""
    if path.stat().st_size < _MAP_FROM_BYTES:
        return path.read_bytes()
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
