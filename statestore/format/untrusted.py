"""What reading JSON from a file that may be damaged or forged can raise, and the ids in it.

An id becomes part of a path: one that is no id could lead out of the store's folder, and is refused here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from statestore.format.names import LARGEST_NUMBER, MOST_PARTITIONS, is_checkpoint_id, is_store_name, is_table_name

MOST_JSON_BYTES = 16 * 1024 * 1024
"""Of one JSON text. The commit of 400,000 stores is smaller; a text of empty arrays takes 20 times its size in memory."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")

BAD_VALUES: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,  # int() of 1e999
    RecursionError,  # a text of nothing but brackets
)
"""Raised by `parsed_json`, and by picking fields from what it gives."""


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parsed_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`, also for one of more than `MOST_JSON_BYTES`; `RecursionError`."""
    if len(text) > MOST_JSON_BYTES:
        raise ValueError(f"a JSON text of {len(text):,} bytes; texts of up to {MOST_JSON_BYTES:,} are read")
    value = json.loads(text)
    if _SURROGATE.search(text if isinstance(text, str) else text.decode("utf-8", "replace")):
        # Half of a surrogate pair is a string in Python that cannot be written or printed. `UnicodeEncodeError` is a
        # `ValueError`; a whole pair is one character and passes.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def plain_number(text: object) -> int:
    """The number of an operator, as JSON's keys hold it: ASCII digits without zeros in front. Raises `ValueError`."""
    if not isinstance(text, str) or not _NUMBER.fullmatch(text) or int(text) > LARGEST_NUMBER:
        raise ValueError(f"{str(text)[:40]!r} is no number of an operator")
    return int(text)


def store_name(value: object) -> str:
    """The value itself. Raises `ValueError` when no store can have that name."""
    if not isinstance(value, str) or not is_store_name(value):
        raise ValueError(f"{str(value)[:40]!r} is no name of a store")
    return value


def table_name(value: object) -> str:
    """The value itself. Raises `ValueError` when no table has that name in storage."""
    if not isinstance(value, str) or not is_table_name(value):
        raise ValueError(f"{str(value)[:40]!r} is no name of a table")
    return value


def partition_count(value: object) -> int:
    """The value itself. Raises `ValueError` for what is no number of partitions, or more than `MOST_PARTITIONS`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST_PARTITIONS:
        raise ValueError(f"{str(value)[:40]} partitions; known are 1 to {MOST_PARTITIONS:,}")
    return value


def checkpoint_id(value: object) -> str:
    """The value itself. Raises `ValueError` when it is no checkpoint id."""
    if not isinstance(value, str) or not is_checkpoint_id(value):
        raise ValueError(f"{value!r} is no checkpoint id")
    return value


def version_number(value: object) -> int:
    """The value itself. Raises `ValueError` when it is no number of a version that has a file."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is no version")
    return value
