"""A file on the local disk as bytes to decode."""

from __future__ import annotations

import mmap
from pathlib import Path

from statekeeper.statestore.format.changelog import Readable

_MAP_FROM_BYTES = 16 * 1024 * 1024


def readable(path: Path) -> Readable:
    """Read a small local file into memory; map a larger one. Raises `OSError`."""
    if path.stat().st_size < _MAP_FROM_BYTES:
        return path.read_bytes()
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
