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


@dataclass(frozen=True)
class Partitioning:
    """Number of partitions and key groups, which are fixed for a root, and of tasks, which can differ by batch.

    A task processes its partitions one after another. With as many tasks as the cluster has slots, the number of
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

    def split(
        self, batches: Iterable[pa.RecordBatch], task: int, key_group: int
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """Split the rows of a task by partition; one item for each partition, also for one without rows.

        `key_group`: position of the column with key groups, by which the rows are sorted. Consume the rows of a partition
        before the next item.
        """
        by_partition = itertools.groupby(self._slices(batches, key_group), key=operator.itemgetter(0))
        following = next(by_partition, None)
        for partition in self.partitions_of(task):
            if following is None or following[0] != partition:
                yield partition, iter(())
                continue
            yield partition, (rows for _, rows in following[1])
            following = next(by_partition, None)
        if following is not None:
            raise AssertionError(f"task {task} has rows of partition {following[0]}")

    def _slices(self, batches: Iterable[pa.RecordBatch], key_group: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in batches:
            groups: npt.NDArray[np.int64] = batch.column(key_group).to_numpy().astype(np.int64)
            partitions = groups * self.partitions // self.key_groups
            cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
            for start, end in itertools.pairwise(cuts):
                if end > start:
                    yield int(partitions[start]), batch.slice(start, end - start)
