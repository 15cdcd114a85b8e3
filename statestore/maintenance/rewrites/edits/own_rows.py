"""The rows of own roots: state roots that a job on `pipelines` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from statekeeper.statestore.contents.rows import Contents
from statekeeper.statestore.format import state_rows
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.root.binding import read_binding


def placed_rows(
    contents: Contents, first: StorePath, keys: pa.Table, values: pa.Table
) -> Iterator[tuple[StorePath, bytes, bytes]]:
    """Encode rows, and find the store of each. `keys`: without the key group, which is the hash by which the job
    distributes its rows. Raises `UnsupportedType`, `CorruptFile`, `StorageError`."""
    bound, _ = read_binding(contents.storage)
    groups = partitions_of(row_hashes(keys), bound.key_groups)
    places: Sequence[int] = (groups.astype(np.int64) * bound.partitions // bound.key_groups).tolist()
    encoded = state_rows.encode_keys(groups, keys).to_pylist(), state_rows.encode_values(values).to_pylist()
    for place, key, value in zip(places, *encoded, strict=True):
        yield replace(first, partition=place), key, value
