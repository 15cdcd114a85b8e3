"""Files that contain one JSON object, or one per line."""

from __future__ import annotations

from typing import Any

from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format.untrusted import parsed_json

_RESTORE = "restore the file from a backup"


def json_object(data: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `CorruptFile` for any other content."""
    try:
        value = parsed_json(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"is not valid JSON: {error}", path=path, hint=_RESTORE) from error
    if not isinstance(value, dict):
        raise CorruptFile("is JSON, but not an object", path=path, hint=_RESTORE)
    return value


def json_lines(data: bytes, path: str) -> list[dict[str, Any]]:
    """Parse one JSON object per line. Raises `CorruptFile` if a line contains anything else."""
    return [json_object(line, path) for line in data.splitlines()]
