"""The files in `tests/fixtures/hdfs_backed`, which Spark wrote with its default state store provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CODECS = ("lz4", "zstd", "snappy", "lzf", "lz4-checksums")
VERSIONS = (1, 2, 3)
_FOLDER = Path(__file__).parents[1] / "fixtures" / "hdfs_backed"
_WRITER = "spark-4.2.0"


def delta_of(codec: str, version: int) -> bytes:
    """Version 3 has several blocks, the others have one."""
    return (_FOLDER / f"{_WRITER}-{codec}-{version}.delta").read_bytes()


def snapshots_of(codec: str) -> dict[int, bytes]:
    """The snapshots by version. There is at least one."""
    paths = _FOLDER.glob(f"{_WRITER}-{codec}-[0-9].snapshot")
    return {int(path.stem.rpartition("-")[2]): path.read_bytes() for path in paths}


def states() -> list[list[list[Any]]]:
    """The rows of Spark's reader after each version: the key's first 10 characters, its length, count and sum."""
    shown: list[list[list[Any]]] = json.loads((_FOLDER / f"{_WRITER}-states.json").read_text())
    return shown
