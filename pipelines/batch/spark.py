"""Recognizes Spark's exceptions by their texts; no other module does."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from statekeeper.statestore.base import errors
from statekeeper.statestore.base.errors import StatekeeperError

_FROM_WORKER = re.compile(rf"{re.escape(errors.__name__)}\.(?P<name>[A-Za-z]+): (?P<text>.*)")
_LOST_BLOCK = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
FOREIGN_BLOCK = "statekeeper: rows of an attempt that was not chosen"
"""Message that the check of the operator's output raises inside Spark."""


def named(error: BaseException, complete: Callable[[str], str] = str) -> StatekeeperError | None:
    """Return the library's error inside a Spark exception. An error of a worker arrives as the text of its traceback.
    `complete`: returns a text with complete commands, because the code that raised the error may not know the places."""
    if isinstance(error, StatekeeperError):
        error.name_root(complete)
        return error
    found = list(_FROM_WORKER.finditer(str(error)))
    kind = getattr(errors, found[-1]["name"], None) if found else None
    if not (isinstance(kind, type) and issubclass(kind, StatekeeperError)):
        return None
    return kind(complete(found[-1]["text"].strip()))


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


_LOG = logging.getLogger("statekeeper")
_LOGGER = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"


def hide_end_of_query(session: SparkSession, query_id: str) -> None:
    """Suppress Spark's log message that this query ended with an error. Other messages are not affected.

    The message stays if Spark does not log with Log4j 2."""
    jvm: Any = session._jvm  # noqa: SLF001 - Spark has no call for its filters
    try:
        log4j = jvm.org.apache.logging.log4j
        context = log4j.LogManager.getContext(False)
        configuration = context.getConfiguration()
        logger = configuration.getLoggerConfig(_LOGGER)
        if logger.getName() != _LOGGER:
            logger = log4j.core.config.LoggerConfig(_LOGGER, logger.getLevel(), True)
            configuration.addLogger(_LOGGER, logger)
        results = log4j.core.Filter.Result
        logger.addFilter(
            log4j.core.filter.RegexFilter.createFilter(
                f".*{query_id}.*terminated with error.*", None, True, results.DENY, results.NEUTRAL
            )
        )
        context.updateLoggers()
    except (Py4JError, TypeError, AttributeError) as error:
        _LOG.debug("Spark's log cannot be filtered: %s", error)
