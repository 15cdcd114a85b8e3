"""Recognizes Spark's exceptions by their texts; no other module does."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from statekeeper.statestore import errors
from statekeeper.statestore.errors import StatekeeperError

_FROM_WORKER = re.compile(r"statestore\.errors\.(?P<name>[A-Za-z]+): (?P<text>.*)")
_LOST_BLOCK = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
FOREIGN_BLOCK = "statekeeper: rows of an attempt that was not chosen"
"""Message that the check of the operator's output raises inside Spark."""


def named(error: BaseException) -> StatekeeperError | None:
    """Return the library's error inside a Spark exception. An error of a worker arrives as the text of its traceback."""
    if isinstance(error, StatekeeperError):
        return error
    found = list(_FROM_WORKER.finditer(str(error)))
    kind = getattr(errors, found[-1]["name"], None) if found else None
    if not (isinstance(kind, type) and issubclass(kind, StatekeeperError)):
        return None
    return kind(found[-1]["text"].strip())


def output_is_unreadable(error: BaseException) -> bool:
    """Return whether the operator's output cannot be read: a block is lost or belongs to another attempt."""
    text = str(error)
    return FOREIGN_BLOCK in text or _LOST_BLOCK in text


def is_active(query: StreamingQuery) -> bool | None:
    """Return whether a query runs; None if the JVM has ended."""
    try:
        return bool(query.isActive)
    except (Py4JError, OSError):
        return None
