"""Finds the entries of later batches in the log of Spark's file sink.

Spark does not run a batch that has an entry: the sink skips it. So a rewind removes these entries, each after the commit
of its batch. Failure sequence otherwise: the entry is removed; the rewind dies; the query continues after the batch, whose
files no reader lists.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.errors import RefusedAsUnsafe
from statekeeper.statestore.format import file_sink, names
from statekeeper.statestore.maintenance import file_sinks
from statekeeper.statestore.maintenance.rewind.facts import RewindFacts
from statekeeper.statestore.storage import Entry, Storage


@dataclass(frozen=True, kw_only=True)
class FileSinkLog:
    """The log of a file sink. `url`: of the output folder; `later`: the entries after the target, and their batches."""

    url: str
    later: Mapping[Entry, int]


def gather(sink: Storage, batch: int, *, known: int) -> FileSinkLog:
    """Find the entries after a batch. `known`: the newest batch that the query has begun, before earlier rewinds, too.

    One listing, and two requests for each entry since the newest compaction up to the batch. Raises `ObjectMissing` if an
    entry is missing that the sink needs after the rewind; `RefusedAsUnsafe` if the log has an entry after `known`;
    `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    log = file_sinks.listed(sink)
    way_out = (
        f"If this is the sink of this query, an earlier rewind of the query is no longer known: delete the entries after "
        f"batch {known} and their hidden .crc files, then run this command again"
    )
    file_sinks.require_no_later(sink, log, known, "the newest known batch of the query", way_out)
    file_sinks.verify(sink, log, file_sink.kept_entries(log, batch, sink.url))
    return FileSinkLog(url=sink.url, later={one: entry.batch for entry, one in log.items() if entry.batch > batch})


def require_named(gathered: RewindFacts) -> RefusedAsUnsafe | None:
    """Require that the user names the file sink, if an earlier run of Statekeeper had its URL, or if Spark has skipped
    batches. Statekeeper does not open a location that only the checkpoint names."""
    url = shlex.quote(min(gathered.file_sinks)) if gathered.file_sinks else "URL"
    command = f"statekeeper rewind {gathered.url} --to-batch {gathered.batch} --file-sink {url}"
    if gathered.file_sinks:
        return RefusedAsUnsafe(
            "was the output folder of a file sink of this query in an earlier run of Statekeeper. The sink skips batches "
            "that are in its log, so it must be rolled back with the query; nothing was changed",
            path=min(gathered.file_sinks),
            hint=f"run: {command}. If the query no longer writes to this folder, add --no-file-sink instead",
        )
    if gathered.skipped is not None and gathered.skipped.is_committed:
        return RefusedAsUnsafe(
            f"was committed without state, like all of {gathered.skipped.in_words} since the last rewind: Spark's file "
            "sink skips batches that are in its log. Another rewind without this sink would have the same result; nothing "
            "was changed",
            path=names.commits(gathered.skipped.first),
            hint=f"run: {command}. URL is the `path` of the sink. If the query has no file sink, add --no-file-sink "
            "instead",
        )
    return None
