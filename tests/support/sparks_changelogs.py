"""The changelogs in `tests/fixtures/changelogs`, which Spark wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CODECS = ("lz4", "zstd", "snappy", "lzf")
VERSIONS = (1, 2, 3)
_FOLDER = Path(__file__).parents[1] / "fixtures" / "changelogs"
_WRITER = "spark-4.2.0"


def changelog_of(codec: str, version: int) -> bytes:
    """Version 3 has several blocks, the others have one."""
    return (_FOLDER / f"{_WRITER}-{codec}-{version}.changelog").read_bytes()


def states() -> list[list[list[Any]]]:
    """The rows of Spark's reader after each version: the key's first 10 characters, its length, count and sum."""
    shown: list[list[list[Any]]] = json.loads((_FOLDER / f"{_WRITER}-states.json").read_text())
    return shown
