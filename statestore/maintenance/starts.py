"""The files that Spark reads when it starts a query. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from statestore.errors import RefusedAsUnsafe
from statestore.format import names


def missing_offsets(batch: int, paths: Collection[str]) -> Iterator[RefusedAsUnsafe]:
    """Require the offsets that Spark reads when it starts after a batch: of this batch, and of the one before it."""
    for number in range(max(0, batch - 1), batch + 1):
        path = names.offsets(number)
        if path not in paths:
            yield RefusedAsUnsafe(
                f"is missing; Spark cannot start after batch {batch} without it",
                path=path,
                hint="restore the file from a backup, or choose a later batch",
            )
