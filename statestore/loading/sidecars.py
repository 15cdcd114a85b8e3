"""Comparison of a changelog or snapshot with its sidecar, the file with its checksum that Spark writes beside it.

Spark 4.1 and later reject a file whose sidecar does not fit, and read a file without a sidecar unchecked. An executor that
dies between the two writes leaves a sidecar without a file. It does not fit a later file of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator

from statekeeper.statestore.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.format import names
from statekeeper.statestore.format.changelog import Readable
from statekeeper.statestore.format.checksum import checksum, parse_sidecar
from statekeeper.statestore.storage import Storage

_PIECE_BYTES = 1024 * 1024


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
