"""Reports from tasks to the driver: one accumulator for all batches, emptied after each attempt.

PySpark keeps every accumulator in a dictionary until the driver ends, and has no call that releases one. An accumulator
per attempt would keep the reports of all batches: 14 GB a day at 200 partitions and a batch every two seconds. Do not
delete entries of that dictionary: a late update of an abandoned task would end PySpark's only connection for updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from statekeeper.pipelines.reports import Reported

_Tagged = list[tuple[str, Reported]]

_CREATION = Lock()
"""*Race*: two queries of one process create their accumulators at the same time. PySpark takes the next id in two steps, so
both could get the same id, and the reports of both queries would go to one of them."""


class _Concatenated(AccumulatorParam[_Tagged]):
    def zero(self, value: _Tagged) -> _Tagged:
        del value
        return []

    def addInPlace(self, value1: _Tagged, value2: _Tagged) -> _Tagged:  # noqa: N802 - Spark's name
        value1.extend(value2)
        return value1


@dataclass(frozen=True)
class AttemptReporter:
    """The task's side of the channel: sends the reports of one attempt of a batch."""

    accumulator: Accumulator[_Tagged]
    attempt: str

    def add(self, report: Reported) -> None:
        """Send a report. The driver receives it when the task has succeeded."""
        self.accumulator.add([(self.attempt, report)])


class ReportChannel:
    """The driver's side of the channel. Holds the reports of at most one attempt."""

    def __init__(self, context: SparkContext) -> None:
        with _CREATION:
            self._accumulator: Accumulator[Any] = context.accumulator([], _Concatenated())

    def open(self, attempt: str) -> AttemptReporter:
        """Return a reporter for the tasks of an attempt."""
        self._accumulator.value = []
        return AttemptReporter(self._accumulator, attempt)

    def take(self, reporter: AttemptReporter) -> Sequence[Reported]:
        """Return the reports of an attempt whose tasks have ended. Late reports of earlier attempts are dropped."""
        reports = self._accumulator.value
        self._accumulator.value = []
        return [report for attempt, report in reports if attempt == reporter.attempt]
