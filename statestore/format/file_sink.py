"""The log of Spark's file sink: one entry for each batch, with the files that the batch wrote. Pure.

    <output folder>/_spark_metadata/0 ... 8      the files of one batch
                                    9.compact    the files of all batches up to 9
                                    10 ...

An entry is `v1`, then a line of JSON for each file. A batch without files has the entry `v1`. Spark lists the files of a
query by this log, and fails if an entry is missing or has the other name. So the interval between two compactions must be
the one that Spark derives. Source: `CompactibleFileStreamLog`, `FileStreamSinkLog`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statekeeper.statestore.base.errors import (
    RESTORE,
    CorruptFile,
    ObjectMissing,
    RefusedAsUnsafe,
    UnknownFormatVersion,
)
from statekeeper.statestore.format.names import parse_batch

LOG = "_spark_metadata"
EMPTY = b"v1"
"""The entry of a batch without files."""

DEFAULT_INTERVAL = 10
"""Spark's default for `INTERVAL_CONF`."""

INTERVAL_CONF = "spark.sql.streaming.fileSink.log.compactInterval"
_COMPACT = ".compact"


@dataclass(frozen=True, order=True)
class LogEntry:
    """One entry of the log. `is_compacted`: it has the files of all batches up to its own."""

    batch: int
    is_compacted: bool = False

    @property
    def path(self) -> str:
        """The file, relative to the output folder."""
        return f"{LOG}/{self.batch}{_COMPACT if self.is_compacted else ''}"


@dataclass(frozen=True)
class NextEntry:
    """The entry of the next batch, which writes no file.

    needed    the entries from the newest compaction on: a reader needs all of them
    interval  batches from one compaction to the next
    """

    entry: LogEntry
    needed: tuple[LogEntry, ...]
    interval: int

    @property
    def sources(self) -> tuple[LogEntry, ...]:
        """The entries whose lines the entry repeats."""
        return self.needed if self.entry.is_compacted else ()

    @property
    def sets_interval(self) -> bool:
        """Whether the entry is the first compaction: Spark derives the interval from it, not from its conf."""
        return self.entry.is_compacted and not any(entry.is_compacted for entry in self.needed)


def parse_entry(path: str) -> LogEntry | None:
    """Return the entry at a path relative to the output folder; None for any other file."""
    folder, _, name = path.rpartition("/")
    batch = parse_batch(name.removesuffix(_COMPACT))
    entry = None if batch is None else LogEntry(batch, name.endswith(_COMPACT))
    return entry if entry and folder == LOG and entry.path == path else None


def next_entry(entries: Iterable[LogEntry], batch: int, url: str) -> NextEntry:
    """Return the entry of `batch`, from the entries of the earlier ones. `url`: of the output folder, for errors.

    Raises `ObjectMissing` if the log or an entry that Spark needs is missing, `RefusedAsUnsafe` if the interval of
    compactions cannot be known.
    """
    found = {entry for entry in entries if entry.batch < batch}
    if not found:
        raise ObjectMissing(
            "has no entry; the output folder is wrong, or no file sink of Spark wrote it",
            path=f"{url}/{LOG}",
            hint="give the `path` of the sink with --file-sink",
        )
    interval = _interval([entry.batch for entry in found if entry.is_compacted], batch, url)
    newest = batch - 1
    needed = tuple(_named(number, interval) for number in range(_newest_compaction(newest, interval), batch))
    missing = next((entry for entry in needed if entry not in found), None)
    if missing is not None:
        raise ObjectMissing(
            f"is missing; Spark needs this entry to continue the log of the sink after batch {newest}; nothing was changed",
            path=f"{url}/{missing.path}",
            hint="make sure that --file-sink is the `path` of the sink of this query. If it is, restore the file from a "
            "backup. If an earlier rescale ran without --file-sink, first rewind the query to the batch before the rescale",
        )
    return NextEntry(_named(batch, interval), needed, interval)


def kept_entries(entries: Iterable[LogEntry], batch: int, url: str) -> tuple[LogEntry, ...]:
    """Return the entries that a reader needs if `batch` is the newest batch of the log: the newest compaction up to it, or
    batch 0, and all later ones. `url`: of the output folder, for errors.

    Raises `ObjectMissing` if one of them is missing.
    """
    found = {entry for entry in entries if entry.batch <= batch}
    first = max((entry for entry in found if entry.is_compacted), default=LogEntry(0))
    needed = (first, *(LogEntry(number) for number in range(first.batch + 1, batch + 1)))
    missing = next((entry for entry in needed if entry not in found), None)
    if missing is not None:
        raise ObjectMissing(
            f"is missing; without this entry, the sink and its readers fail after a rewind to batch {batch}; nothing was "
            "changed",
            path=f"{url}/{missing.path}",
            hint="make sure that --file-sink is the `path` of the sink of this query. If it is, restore the file from a "
            "backup. If an earlier rescale ran without --file-sink, rewind the query to the batch before the rescale",
        )
    return needed


def require_entry(head: bytes, last: bytes, path: str) -> None:
    """Verify the first three bytes and the last byte of an entry. Raises `UnknownFormatVersion`, `CorruptFile`."""
    if head not in (EMPTY, EMPTY + b"\n"):
        raise UnknownFormatVersion(
            f"begins with {head!r}, but this release only knows {EMPTY.decode()}; nothing was changed",
            path=path,
            hint="if the file is intact, upgrade Statekeeper",
        )
    if head != EMPTY and last != b"}":
        raise CorruptFile(
            "is truncated: its last line is not complete; nothing was changed",
            path=path,
            hint=RESTORE,
        )


def _interval(compacted: list[int], batch: int, url: str) -> int:
    """Return the interval that Spark uses from `batch` on."""
    if not compacted:
        # The log does not show the conf of the query, and so not the name that Spark expects. But Spark takes the interval
        # from the first compacted file. So a compacted file is right whatever the conf is.
        return batch + 1
    *earlier, newest = sorted(compacted)
    if earlier:
        interval = newest - earlier[-1]
        if (newest + 1) % interval == 0:
            return interval
    else:
        # One file: the first compaction, or the only one that was not deleted. Spark derives the interval from its conf.
        first, derived = newest + 1, _derived(DEFAULT_INTERVAL, newest)
        if _named(batch, first) == _named(batch, derived):
            return first
    raise RefusedAsUnsafe(
        f"the compacted entries {', '.join(map(str, sorted(compacted)))} do not show the compaction interval of the sink, "
        f"so the name of the entry of batch {batch} is unknown; nothing was changed",
        path=f"{url}/{LOG}",
        hint="run the query until it writes the next compacted entry, stop it, then run this command again",
    )


def _derived(default: int, newest: int) -> int:
    """Return the interval that Spark derives from its conf and the only compacted entry."""
    count = newest + 1
    if default >= count // 2:
        return count
    return next((one for one in range(default, count // 2 + 1) if count % one == 0), count)


def _named(batch: int, interval: int) -> LogEntry:
    return LogEntry(batch, (batch + 1) % interval == 0)


def _newest_compaction(batch: int, interval: int) -> int:
    """Return the newest compaction up to a batch; the first batch if there is none."""
    return max(0, (batch + 1) // interval * interval - 1)
