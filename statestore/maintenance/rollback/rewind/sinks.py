"""Finds the version of a Delta table that belongs to a batch of a query, from the log of the table.

Delta records the id of the query and the batch in `txn` (idempotent writes). A RESTORE of the table keeps them: a query
with the same id would skip the batches that it writes again. So a rewind gives the query a new id.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile, NotACheckpoint, RefusedAsUnsafe
from statekeeper.statestore.contents import delta_logs, file_logs
from statekeeper.statestore.format import file_sink, names
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.maintenance.rollback.rewind.facts import RewindFacts
from statekeeper.statestore.storage import Entry, Storage

_NATIVE = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The application id of a native query is its id."""


@dataclass(frozen=True, kw_only=True)
class DeltaPosition:
    """A Delta table after a batch.

    url      of the table
    version  the version to restore: the newest one without rows of later batches; -1 if there is none
    newest   the newest version
    holds    the newest batch of the query in the table; None if the table has no later batch
    others   later versions by other writers, which a restore reverts too: "58 OPTIMIZE"
    """

    url: str
    version: int
    newest: int
    holds: int | None
    others: tuple[str, ...]

    @property
    def command(self) -> str:
        """The SQL statement that restores the table."""
        if self.version < 0:
            return f"DELETE FROM delta.`{self.url}`"  # noqa: S608 - displayed, not executed
        return f"RESTORE TABLE delta.`{self.url}` TO VERSION AS OF {self.version}"


def delta_position(table: Storage, query_ids: Collection[str], batch: int) -> DeltaPosition:
    """Find the version of a table that has the rows up to a batch. `query_ids`: the id of the query, and its former ids.

    Requests: a listing; one for each version, from the newest down to that batch.

    Raises `NotACheckpoint` if there is no Delta table; `RefusedAsUnsafe` if its log no longer has these versions, or if one
    of them has a batch of an unknown job;
    `CorruptFile`, `StorageError`.
    """
    versions = delta_logs.versions_in(table.list(delta_logs.LOG))
    if not versions:
        raise NotACheckpoint("is no Delta table: it has no log", path=table.url, hint="check the URL after --sink")
    names = delta_logs.applications(query_ids)
    search = delta_logs.BatchSearch(batch, versions[-1])
    others: list[str] = []
    for version in reversed(versions):
        commit = _read(table, version, names)
        if search.ends_at(version, commit.written):
            return _position(table, search, versions[-1], others)
        if commit.written is None:
            _require_known(table, version, commit)
            if not commit.is_merge_of_files:
                others.append(f"{version} {commit.operation}")
    if versions[0] == 0:
        return _position(table, search, versions[-1], others)
    raise RefusedAsUnsafe(
        f"the Delta log begins at version {versions[0]} and contains no batch up to {batch} of query "
        f"{', '.join(sorted(query_ids))}; Statekeeper cannot tell which version of the table to restore",
        path=f"{table.url}/{delta_logs.LOG}",
        hint="find the version by its time in DESCRIBE HISTORY. Then run this command without --sink",
    )


def _position(table: Storage, search: delta_logs.BatchSearch, newest: int, others: list[str]) -> DeltaPosition:
    later = [text for text in others if int(text.split()[0]) > search.version + 1]
    return DeltaPosition(
        url=delta_logs.as_spark_reads_it(table.url),
        version=search.version,
        newest=newest,
        holds=search.holds,
        others=tuple(reversed(later)),
    )


@dataclass(frozen=True)
class _Commit:
    """One version of the table.

    written   the batch of the query that it has; None if it has none
    unknown   an application id of another job with a `pipelines.DeltaSink`, or of another native query
    is_merge_of_files  `optimize` has merged files, which changes no row
    """

    operation: str
    written: int | None
    unknown: str | None
    is_merge_of_files: bool = False


def _require_known(table: Storage, version: int, commit: _Commit) -> None:
    """Require that the version has no batch of an unknown job: it may be this query under an id that no record has."""
    if commit.unknown is not None:
        raise RefusedAsUnsafe(
            f"contains a batch of an unknown query ({commit.unknown}). This id may be a former id of this query, so "
            "Statekeeper cannot tell which version of the table to restore; nothing was changed",
            path=f"{table.url}/{delta_logs.commit_path(version)}",
            hint="find the version with DESCRIBE HISTORY. Then run this command without --sink",
        )


def _read(table: Storage, version: int, names: set[str]) -> _Commit:
    operation, written, unknown, engine = "UNKNOWN", None, None, ""
    hint = "run this command without --sink"
    for kind, body in delta_logs.actions(table, version, {"commitInfo", "txn"}, hint=hint):
        try:
            if kind == "commitInfo":
                operation, engine = str(body.get("operation", operation)), str(body.get("engineInfo"))
            elif (writer := str(body["appId"])) in names:
                written = int(body["version"])
            elif writer.startswith(delta_logs.OF_JOBS) or _NATIVE.fullmatch(writer) is not None:
                unknown = writer
        except BAD_VALUES as error:
            path = f"{table.url}/{delta_logs.commit_path(version)}"
            raise CorruptFile(f"cannot be parsed: {error}", path=path, hint=hint) from error
    return _Commit(operation, written, unknown, is_merge_of_files=engine == delta_logs.ENGINE)


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
    log = file_logs.listed(sink)
    way_out = (
        f"If this is the sink of this query, an earlier rewind of the query is no longer known: delete the entries after "
        f"batch {known} and their hidden .crc files, then run this command again"
    )
    file_logs.require_no_later(sink, log, known, "the newest known batch of the query", way_out)
    file_logs.verify(sink, log, file_sink.kept_entries(log, batch, sink.url))
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
