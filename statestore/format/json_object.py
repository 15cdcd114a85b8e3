"""A file that is one JSON object."""

from __future__ import annotations

import json
from typing import Any

from statestore.errors import CorruptFile


def json_object(data: bytes, path: str) -> dict[str, Any]:
    """The object. Raises `CorruptFile` when the bytes are anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"not JSON: {error}", path=path, hint="restore the file from a backup") from error
    if not isinstance(value, dict):
        raise CorruptFile("not a JSON object", path=path)
    return value
