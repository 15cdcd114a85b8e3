"""Assignment of keys to partitions, and of partitions to the tasks of a batch.

Key groups, partitions and tasks are numbered so that each partition holds adjacent key groups, and each task adjacent
partitions. So the rows of a task, sorted by key group, are sorted by partition too.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.format.key_groups import KeyGroups

GROUP_COLUMN = "__statekeeper_key_group"
"""The column that Spark appends to the rows, by which they are sorted."""

TOGETHER = 16
"""The partitions that a task processes at once. Their stores are open at the same time."""


@dataclass(frozen=True)
class Partitioning:
    """Number of partitions and key groups of a root, and of tasks, which can differ by batch.

    A task processes groups of its partitions one after another. With as many tasks as the cluster has slots, the number of
    partitions costs no further tasks.
    """

    partitions: int
    key_groups: int
    tasks: int

    def partitions_of(self, task: int) -> range:
        """Return the partitions of a task."""
        first, end = (-(-number * self.partitions // self.tasks) for number in (task, task + 1))
        return range(first, end)

    def task_sql(self, key_group: str) -> str:
        """Return the task of a column with key groups, as an SQL expression."""
        partition = f"floor({key_group} * {self.partitions} / {self.key_groups})"
        return f"CAST(floor({partition} * {self.tasks} / {self.partitions}) AS INT)"

    def of_key_groups(self, key_groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the partition of each key group; shape (rows,)."""
        return KeyGroups(self.key_groups).partitions_of(key_groups, self.partitions)

    def groups_of(self, partition: int) -> range:
        """Return the key groups of a partition."""
        return KeyGroups(self.key_groups).groups_of(partition, self.partitions)

    def split(
        self, batches: Iterable[pa.RecordBatch], task: int, key_group: int, *, together: int = TOGETHER
    ) -> Iterator[tuple[range, Iterator[pa.RecordBatch]]]:
        """Split the rows of a task into groups of up to `together` adjacent partitions, also those without rows.

        `key_group`: position of the column with key groups, by which the rows are sorted. Consume the rows of a group
        before the next item.
        """
        partitions = self.partitions_of(task)
        by_group = itertools.groupby(self._slices(batches, key_group, task, together), key=operator.itemgetter(0))
        following = next(by_group, None)
        for number, first in enumerate(range(partitions.start, partitions.stop, together)):
            group = range(first, min(first + together, partitions.stop))
            if following is None or following[0] != number:
                yield group, iter(())
                continue
            yield group, (rows for _, rows in following[1])
            following = next(by_group, None)

    def _slices(
        self, batches: Iterable[pa.RecordBatch], key_group: int, task: int, together: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in batches:
            partitions = self.of_key_groups(batch.column(key_group).to_numpy().astype(np.int64))
            mine = self.partitions_of(task)
            # The rows are sorted. A row of another task is the first or the last.
            for partition in partitions[[0, -1]] if len(partitions) else ():
                if partition not in mine:
                    raise AssertionError(f"task {task} has rows of partition {partition}")
            groups = (partitions - mine.start) // together
            cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
            for start, end in itertools.pairwise(cuts):
                if end > start:
                    yield int(groups[start]), batch.slice(start, end - start)
