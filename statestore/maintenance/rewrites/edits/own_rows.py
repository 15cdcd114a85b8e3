"""The rows and the attempts of own roots: state roots that a job on `pipelines` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.contents.rows import Contents
from statekeeper.statestore.format import state_rows
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.root import attempts
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import Storage


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


def require_no_attempt(storage: Storage, batch: int, consequence: str) -> None:
    """Require that no attempt at a batch is recorded.

    Failure sequence: the job writes the record of an attempt, which names changelogs on the present state, and the sink; it
    dies before its commit; the state is edited. The restarted job finds its rows in the sink and commits the changelogs of
    this attempt: the edit is lost without an error.

    Raises `RefusedAsUnsafe`, `CorruptFile`, `StorageError`.
    """
    found = next(attempts.records_at(storage, batch), None)
    if found is not None:
        raise RefusedAsUnsafe(
            f"is the record of an attempt at batch {batch}, so the sink may already contain its rows; {consequence}",
            path=found[0],
            hint=f"start the job until it commits batch {batch}, then stop it and run this command again",
        )
