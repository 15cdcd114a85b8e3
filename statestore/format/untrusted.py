"""Validation of JSON from files that may be damaged or forged, and of the ids and names in it.

An id becomes part of a path. An invalid id could point outside of the store's folder, so it is rejected here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from statekeeper.statestore.base.errors import RESTORE, CorruptFile
from statekeeper.statestore.format.names import (
    LARGEST_NUMBER,
    MOST_PARTITIONS,
    is_checkpoint_id,
    is_store_name,
)

MOST_JSON_VALUES = 2_000_000
"""Maximum number of values in a JSON text, which determines its memory. The commit of 400,000 stores, or a list of 500,000
files, has fewer. The limit of its file limits the size of the text."""

_DIGEST = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")

BAD_VALUES: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,  # int(1e999)
    RecursionError,  # a text of many nested brackets
)
"""Errors of `parsed_json`, and of reading fields from its result."""


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parsed_json(text: str | bytes) -> Any:
    """Parse a JSON text. Raises `ValueError`, also for more than `MOST_JSON_VALUES`; `RecursionError`."""
    require_parsable(text)
    value = json.loads(text)
    if _SURROGATE.search(text if isinstance(text, str) else text.decode("utf-8", "replace")):
        # Python cannot write or print half of a surrogate pair. `UnicodeEncodeError` is a `ValueError`; a whole pair is
        # one character and passes.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def require_parsable(text: str | bytes) -> None:
    """Raise `ValueError` for a text that `parsed_json` rejects because of its number of values. Commas and brackets in
    strings count, too."""
    if isinstance(text, str):
        values = text.count(",") + text.count("[") + text.count("{")
    else:
        values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > MOST_JSON_VALUES:
        raise ValueError(f"the JSON text has about {values:,} values, above the limit of {MOST_JSON_VALUES:,}")


def plain_number(text: object) -> int:
    """Parse the number of an operator from a JSON key: ASCII digits without leading zeros. Raises `ValueError`."""
    if not isinstance(text, str) or not _NUMBER.fullmatch(text) or int(text) > LARGEST_NUMBER:
        raise ValueError(f"{str(text)[:40]!r} is not a valid operator number")
    return int(text)


def store_name(value: object) -> str:
    """Return the value. Raises `ValueError` if it is not a valid name of a store."""
    if not isinstance(value, str) or not is_store_name(value):
        raise ValueError(f"{str(value)[:40]!r} is not a valid name of a store")
    return value


def partition_count(value: object) -> int:
    """Return the value. Raises `ValueError` if it is not a number from 1 to `MOST_PARTITIONS`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST_PARTITIONS:
        raise ValueError(f"{str(value)[:40]} is not a valid number of partitions (1 to {MOST_PARTITIONS:,})")
    return value


def checkpoint_id(value: object) -> str:
    """Return the value. Raises `ValueError` if it is not a valid checkpoint id."""
    if not isinstance(value, str) or not is_checkpoint_id(value):
        raise ValueError(f"{value!r} is not a checkpoint id")
    return value


def version_number(value: object) -> int:
    """Return the value. Raises `ValueError` if it is not a version number of 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a version number")
    return value


def count(value: object) -> int:
    """Return the value. Raises `ValueError` if it is not a number from 0 to 2**63 - 1: a long of Spark."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return value


def text(value: object) -> str:
    """Return the value. Raises `ValueError` if it is not a text."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is not a text")
    return value


def digest(value: object) -> str:
    """Return the value. Raises `ValueError` if it is not a number of 128 bits as 32 hexadecimal digits."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(f"{str(value)[:40]!r} is not a digest")
    return value


def json_object(data: bytes, path: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `CorruptFile` for any other content."""
    try:
        value = parsed_json(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"is not valid JSON: {error}", path=path, hint=RESTORE) from error
    if not isinstance(value, dict):
        raise CorruptFile("is JSON, but not an object", path=path, hint=RESTORE)
    return value
