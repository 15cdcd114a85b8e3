"""The logs that a start of a query needs, as refusals of the verbs that copy a checkpoint or roll it back. Pure.

A job on `pipelines` starts with the logs of its outer checkpoint, which `claim` makes from those in its root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from statekeeper.statestore import restart
from statekeeper.statestore.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.storage import Entry


def lost_logs(
    batch: int,
    files: Mapping[str, Entry],
    positions: Positions,
    *,
    has_state: bool,
    copied: Mapping[str, Entry] | None = None,
) -> Iterator[RefusedAsUnsafe]:
    """Yield the logs that a start after a batch needs and that are missing or empty: offsets, and entries of file sources
    up to `positions`. `files`: of the checkpoint, by path; `has_state`: whether the query has state; `copied`: files
    that a copy of the checkpoint has already."""
    for problem in restart.lost_offsets(batch, files, has_state=has_state):
        yield RefusedAsUnsafe(
            f"{problem.text}; Spark cannot start after batch {batch} without it",
            path=problem.path,
            hint="restore the file from a backup, or choose a later batch",
        )
    if names.BINDING in files:
        return  # the logs of the sources of a job are in its outer checkpoint
    entries = restart.read_entries(positions, {**(copied or {}), **files})
    for lost in restart.lost_entries(positions, entries):
        yield RefusedAsUnsafe(
            f"{lost.problem.text}; Spark cannot start after batch {batch} without the log of this source",
            path=lost.problem.path,
            hint="restore the file from a backup, or choose an earlier batch",
        )
