"""The partition of each key of a state root: the key group is in the key, and a partition has adjacent key groups.

A root has a fixed number of key groups. Another number of partitions moves whole key groups, and no key changes (FLIP-158).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.base.errors import UnknownPartitioning
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.state_rows import key_groups_of


@dataclass(frozen=True)
class KeyGroups:
    """The key groups of a root. `count`: their number."""

    count: int

    def partitions_of(self, groups: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
        """Return the partition of each key group, of `partitions`; shape (rows,)."""
        return groups * partitions // self.count

    def groups_of(self, partition: int, partitions: int) -> range:
        """Return the key groups of a partition."""
        first, end = (-(-number * self.count // partitions) for number in (partition, partition + 1))
        return range(first, end)

    def moved(self, keys: Sequence[bytes], store: StorePath, partitions: int, to: int) -> npt.NDArray[np.int32]:
        """Return the partition of each key of a store after a rescale from `partitions` to `to`.

        Raises `UnknownPartitioning` if a key is not in the partition of its key group; `CorruptFile`.
        """
        groups = key_groups_of(pa.array(keys, pa.large_binary()))
        elsewhere = (groups < 0) | (groups >= self.count) | (self.partitions_of(groups, partitions) != store.partition)
        if elsewhere.any():
            group = int(groups[int(elsewhere.argmax())])
            raise UnknownPartitioning(
                f"has a key of key group {group} of {self.count}, which is not in partition {store.partition} of "
                f"{partitions}; nothing was changed",
                path=str(store),
                hint="find the cause: statekeeper audit ROOT --deep; then restore the store from a backup",
            )
        return self.partitions_of(groups, to).astype(np.int32)
