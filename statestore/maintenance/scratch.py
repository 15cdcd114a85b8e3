"""The local disk of a verb."""

from __future__ import annotations

import shutil
from pathlib import Path


def free_bytes(scratch: Path) -> int:
    """Return the free bytes of the disk of the folder, which need not exist yet."""
    place = scratch.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
