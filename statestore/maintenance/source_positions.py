"""Finds the files that a batch has read from file sources. Reads only."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from statekeeper.statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.format import file_source, names
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.logs import OffsetLog, parse_offsets
from statekeeper.statestore.storage import Storage


def newest_offsets(storage: Storage, batch: int, offsets: OffsetLog, paths: Collection[str]) -> OffsetLog:
    """Read the offsets of the newest batch that has begun, if the checkpoint has logs of file sources. They show which
    sources a batch had not read yet.

    `offsets`: of `batch`; they are returned if the newest ones cannot be read. `paths`: of the checkpoint. Raises
    `StorageError`.
    """
    begun = [names.parse_batch(path) for path in paths if path.startswith(f"{names.OFFSETS}/")]
    newest = max((number for number in begun if number is not None), default=batch)
    if newest > batch and any(map(file_source.parse, paths)):
        path = names.offsets(newest)
        with suppress(CorruptFile, ObjectMissing, UnknownFormatVersion):
            return parse_offsets(storage.read(path), path)
    return offsets


def positions_at(storage: Storage, batch: int, offsets: OffsetLog, paths: Collection[str]) -> Positions:
    """Find the position of a batch in each file source. Arguments and errors as of `newest_offsets`."""
    return file_source.positions(offsets, newest_offsets(storage, batch, offsets, paths), paths)
