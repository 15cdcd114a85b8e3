"""Reads logs of lines in pieces: a log grows with the query, so its size has no limit. A line has one."""

from __future__ import annotations

from collections.abc import Iterator

from statekeeper.statestore.base.errors import RESTORE, CorruptFile
from statekeeper.statestore.storage.base import Storage

PIECE_BYTES = 4 * 1024 * 1024
"""Size of one request."""

MOST_LINE_BYTES = 16 * 1024 * 1024
"""Maximum size of a line, as of one JSON text."""


def read_lines(storage: Storage, path: str) -> Iterator[bytes]:
    """Yield the lines of an object of any size, without line feeds. The last line may be incomplete.

    One request for each piece. Holds a piece and a line in memory. Raises `ObjectMissing`; `CorruptFile` for a line of more
    than MOST_LINE_BYTES; `StorageError`.
    """
    start, rest = 0, b""
    while True:
        piece = storage.read_range(path, start, PIECE_BYTES)
        start += len(piece)
        *lines, last = piece.split(b"\n")
        if lines:
            yield rest + lines[0]
            yield from lines[1:]
            rest = last
        else:
            rest += last
        if len(rest) > MOST_LINE_BYTES:
            raise CorruptFile(
                f"has a line of more than {MOST_LINE_BYTES:,} bytes; the rest was not read",
                path=f"{storage.url}/{path}",
                hint=RESTORE,
            )
        if len(piece) < PIECE_BYTES:
            break
    if rest:
        yield rest
