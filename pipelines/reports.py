"""How tasks tell the driver what they committed: one accumulator for all batches, emptied after each attempt.

PySpark keeps every accumulator in a dictionary for as long as the driver lives, and there is no call that releases one.
An accumulator for each attempt would thus keep the reports of all batches: 14 GB a day at 200 partitions and a batch
every two seconds. Taking one out of that dictionary is no way either: an update that comes later, of a task that was
given up, would end PySpark's only connection for updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from pipelines.task import Reported

_Tagged = list[tuple[str, Reported]]


class _Concatenated(AccumulatorParam[_Tagged]):
    def zero(self, value: _Tagged) -> _Tagged:
        del value
        return []

    def addInPlace(self, value1: _Tagged, value2: _Tagged) -> _Tagged:  # noqa: N802 - Spark's name
        value1.extend(value2)
        return value1


@dataclass(frozen=True)
class AttemptReporter:
    """A task's end: sends the reports of one attempt at a batch."""

    accumulator: Accumulator[_Tagged]
    attempt: str

    def add(self, report: Reported) -> None:
        """Tell the driver; it hears of it when the task has succeeded."""
        self.accumulator.add([(self.attempt, report)])


class ReportChannel:
    """The driver's end. It holds the reports of one attempt at most."""

    def __init__(self, context: SparkContext) -> None:
        self._accumulator: Accumulator[Any] = context.accumulator([], _Concatenated())

    def open(self, attempt: str) -> AttemptReporter:
        """A reporter for the tasks of an attempt."""
        self._accumulator.value = []
        return AttemptReporter(self._accumulator, attempt)

    def take(self, reporter: AttemptReporter) -> Sequence[Reported]:
        """The reports of an attempt whose tasks have ended. What came late, from tasks of earlier ones, is dropped."""
        reports = self._accumulator.value
        self._accumulator.value = []
        return [report for attempt, report in reports if attempt == reporter.attempt]
