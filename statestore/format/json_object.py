"""A file that is one JSON object, or one a line."""

from __future__ import annotations

from typing import Any

from statestore.errors import CorruptFile
from statestore.format.untrusted import parsed_json

_RESTORE = "restore the file from a backup"


def json_object(data: bytes, path: str) -> dict[str, Any]:
    """The object. Raises `CorruptFile` when the bytes are anything else."""
    try:
        value = parsed_json(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"not JSON: {error}", path=path, hint=_RESTORE) from error
    if not isinstance(value, dict):
        raise CorruptFile("not a JSON object", path=path, hint=_RESTORE)
    return value


def json_lines(data: bytes, path: str) -> list[dict[str, Any]]:
    """The objects, one a line. Raises `CorruptFile` when a line is anything else."""
    return [json_object(line, path) for line in data.splitlines()]
