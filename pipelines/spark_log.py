"""Keeps Spark's log from repeating an error that the caller gets anyway.

Spark logs the end of a query with the stacks of both languages. Where the library raises an error of its own, the user
needs its message once; the stacks are in the log of `statekeeper` at level DEBUG.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

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
