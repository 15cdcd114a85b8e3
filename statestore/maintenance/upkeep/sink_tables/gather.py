"""Gathers the facts of a sink table. Reads only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import (
    RESTORE,
    CorruptFile,
    NotACheckpoint,
    UnknownFormatVersion,
    UnsupportedTable,
)
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.contents import delta_logs
from statekeeper.statestore.contents.delta_logs import BatchSearch, ListedLog
from statekeeper.statestore.format import delta_log, logs, names
from statekeeper.statestore.format.delta_log import TableHistory
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.maintenance.records import former_queries, useless_merges
from statekeeper.statestore.maintenance.upkeep.sink_tables.model import SinkFacts, SinkPolicy, Unmergeable
from statekeeper.statestore.root import attempts, binding
from statekeeper.statestore.storage import OpenedObject, Storage, at_once

DELETED_FILES = "delta.deletedFileRetentionDuration"
"""The property of a table with the least age of a file that VACUUM deletes."""
_OF_PUBLISH = f"{delta_logs.OF_JOBS}state-"
"""Before the query id, in the application id of a table of state."""
_ATOMIC = ("delta-rs", delta_logs.ENGINE)
"""The writers that create a commit only if it does not exist: `deltalake` for the tasks of a job, and this program."""
_LOOKS_FIRST = ("s3://", "file://")
"""Where Spark's log stores look whether a commit exists, then write it: they are safe in one process only."""
_BY_HAND = frozenset(
    {
        *("RESTORE", "CREATE TABLE", "CREATE TABLE AS SELECT", "CREATE OR REPLACE TABLE", "CONVERT", "CLONE"),
        *(
            "SET TBLPROPERTIES",
            "UNSET TBLPROPERTIES",
            "ADD COLUMNS",
            "CHANGE COLUMN",
            "UPGRADE PROTOCOL",
            "ADD CONSTRAINT",
        ),
        *("VACUUM START", "VACUUM END"),
    }
)
"""Statements that a person runs now and then: a query that writes the table has other operations."""
_AT_ONCE = 200
"""Commits in memory."""
_INTERVAL = re.compile(r"(?:interval\s+)?(?P<count>[0-9]+)\s+(?P<unit>second|minute|hour|day|week)s?", re.IGNORECASE)
_UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 7 * 86_400.0}


def gather(root: Storage, table: Storage, policy: SinkPolicy, *, clock: Clock) -> SinkFacts:
    """Gather the facts.

    Requests: listings of the commits, of the history and of the whole folder of the table; the binding; one for each
    attempt at the next batch; one for each commit of the table since the oldest version that stays readable, and for the
    checkpoint before it; one for each earlier rewind; one for the record of useless merges.

    Raises `NotACheckpoint` for a root without a committed batch and for a location without a table; `CorruptFile`,
    `UnknownFormatVersion`, `StorageError`.
    """
    batches = [batch for one in root.list(names.COMMITS) if (batch := names.parse_batch(one.path)) is not None]
    if not batches:
        raise NotACheckpoint(
            "has no committed batch, so that its query has not written a table yet",
            path=root.url,
            hint="run this command again after the query has committed its first batch",
        )
    query_ids = _query_ids(root)
    entries = table.list("")
    inside = f"{delta_log.LOG}/"
    log = delta_logs.parse_listing([one for one in entries if one.path.startswith(inside)])
    if log is None:
        raise NotACheckpoint("is no Delta table: it has no log", path=table.url, hint="check the URL of the table")
    if log.oldest_readable is None:
        raise UnsupportedTable(
            "has no checkpoint of its log that this command can read: its commits do not begin with version 0, and its "
            "checkpoints have the format V2",
            path=table.url,
            hint="maintain the table with OPTIMIZE and VACUUM in Spark",
        )
    now = clock.now_seconds()
    names_of_query = delta_logs.applications(query_ids)
    history, search = TableHistory(log.newest), BatchSearch(min(batches), log.newest)
    reading = _Reading(table=table, log=log, history=history, search=search, names_of_query=names_of_query)
    for_readers = _for_readers(log, now - policy.keep_readers_seconds)
    restored = reading.whole(for_readers)
    keep = _keep_seconds(history.metadata, policy)
    if keep is not None and keep > policy.keep_readers_seconds:
        for_readers = _for_readers(log, now - keep)
        restored = reading.whole(for_readers)
    others = history.transactions.keys() - names_of_query
    held = [number for name, number in history.transactions.items() if name in names_of_query]
    return SinkFacts(
        root=root.url,
        table=table.url,
        query_ids=query_ids,
        oldest=min(batches),
        newest=max(batches),
        version=log.newest,
        oldest_readable=log.oldest_readable,
        metadata=history.metadata,
        protocol=history.protocol,
        held=max(held, default=None),
        others=frozenset(name.removeprefix(delta_logs.OF_JOBS) for name in others if not name.startswith(_OF_PUBLISH)),
        newest_commit=reading.newest_commit,
        unmergeable=reading.unmergeable(None if restored is None else min(restored, for_readers)),
        restored=restored,
        restored_age_seconds=_age(log, log.newest if restored is None else restored, now),
        for_readers=for_readers,
        live=tuple(history.files[key] for key in sorted(history.files)),
        last_versions=history.last_versions,
        interrupted=_interrupted(root, max(batches) + 1),
        listed=tuple(one for one in entries if not one.path.startswith(inside)),
        keep_seconds=keep,
        now_seconds=now,
        useless=useless_merges.read(root, table.url),
    )


def _query_ids(root: Storage) -> frozenset[str]:
    bound = binding.parse_binding(root.read(names.BINDING)) if origin_of(root) is Origin.OWN else None
    query = bound.query_id if bound else logs.parse_metadata(root.read(names.QUERY_METADATA), names.QUERY_METADATA)
    earlier = former_queries.earlier_rewinds(root, [entry.path for entry in root.list(names.HISTORY)])
    return former_queries.ids(earlier, bound) | {query}


def _interrupted(root: Storage, batch: int) -> frozenset[str]:
    """The data files that the attempts at a batch have recorded: the query adds them to the table when it restarts."""
    found: set[str] = set()
    for path, record in attempts.records_at(root, batch):
        try:
            outputs = [output for output in (record.get("outputs") or {}).values() if output.get("files")]
            found |= {str(file["path"]) for output in outputs for file in output["files"]}
        except BAD_VALUES as error:
            raise CorruptFile("does not name its data files; nothing was changed", path=path, hint=RESTORE) from error
    return frozenset(found)


class _Reading:
    """Reads the commits of a table from the newest one down."""

    def __init__(
        self, *, table: Storage, log: ListedLog, history: TableHistory, search: BatchSearch, names_of_query: set[str]
    ) -> None:
        self.newest_commit: bytes | None = None
        self._table, self._log, self._history, self._search = table, log, history, search
        self._names = names_of_query
        self._next = log.newest
        self._is_found = False
        self._reasons: dict[int, Unmergeable] = {}

    def unmergeable(self, since: int | None) -> Unmergeable | None:
        """Why files must not be merged beside the writers of the versions from `since` on; None if they can be."""
        found = {reason for version, reason in self._reasons.items() if since is None or version >= since}
        return next((reason for reason in Unmergeable if reason in found), None)

    def down_to(self, version: int) -> None:
        """Read the commits after a version."""
        while self._next > version and self._next >= self._log.oldest_commit:
            first = max(version + 1, self._next - _AT_ONCE + 1, self._log.oldest_commit)
            found: dict[int, list[dict[str, Any]]] = {}

            def read(one: int, found: dict[int, list[dict[str, Any]]] = found) -> None:
                path = delta_log.commit_path(one)
                data = self._table.read(path)
                if one == self._log.newest:
                    self.newest_commit = data
                found[one] = delta_log.parse_commit(data, path)

            at_once(read, list(range(first, self._next + 1)))
            for one in sorted(found, reverse=True):
                self._add(one, found[one])
            self._next = first - 1

    def whole(self, for_readers: int) -> int | None:
        """Read down to the version that a rewind restores and to the one for readers, then the checkpoint before both.
        Returns the version that a rewind restores; None if the log no longer has it."""
        while not self._is_found and self._next >= self._log.oldest_commit:
            self.down_to(self._next - _AT_ONCE)
        is_known = self._is_found or self._log.oldest_commit == 0
        oldest = min(self._search.version, for_readers) if is_known else self._log.oldest_commit - 1
        base = self._log.base_of(max(oldest, self._log.oldest_readable or 0))
        self.down_to(base)
        for path in self._log.checkpoints[base] if base >= 0 else ():
            actions = delta_log.checkpoint_actions(OpenedObject(self._table, path), path)
            with self._supported():
                self._history.add(actions, base, path)
        if base >= self._log.oldest_commit:
            # A checkpoint has no files of the change data feed.
            path = delta_log.commit_path(base)
            self._history.add_feed(delta_log.parse_commit(self._table.read(path), path), base)
        if not self._history.metadata:
            raise CorruptFile(
                "has no metadata of the table, so that its columns are unknown; nothing was changed",
                path=f"{self._table.url}/{delta_log.LOG}",
                hint="restore the log of the table from a backup",
            )
        found = max(self._search.version, 0)
        return found if is_known and found >= (self._log.oldest_readable or 0) else None

    def _add(self, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
        with self._supported():
            self._history.add(actions, version, delta_log.commit_path(version))
        of_query = [one["txn"] for one in actions if "txn" in one and one["txn"]["appId"] in self._names]
        written = max((int(one["version"]) for one in of_query), default=None)
        commits = [one["commitInfo"] for one in actions if "commitInfo" in one]
        reason = _unmergeable(self._table, commits, is_of_query=written is not None)
        if reason is not None:
            self._reasons[version] = reason
        self._is_found = self._is_found or self._search.ends_at(version, written)

    @contextmanager
    def _supported(self) -> Iterator[None]:
        try:
            yield
        except UnknownFormatVersion as error:
            raise UnsupportedTable(
                "has deletion vectors outside of its folder, as a shallow clone has, or in folders with random names. So "
                "this command does not support it; nothing was changed",
                path=self._table.url,
                hint="maintain the table with OPTIMIZE and VACUUM in Spark",
            ) from error


def _unmergeable(table: Storage, commits: Sequence[Mapping[str, Any]], *, is_of_query: bool) -> Unmergeable | None:
    """Why files must not be merged beside the writer of this commit."""
    if is_of_query and any(one.get("operation") == "MERGE" for one in commits):
        return Unmergeable.MERGES
    if not table.url.startswith(_LOOKS_FIRST):
        return None
    # A commit of a query without these facts: its writer is unknown.
    is_known = bool(commits) or not is_of_query
    is_atomic = is_known and all(str(one.get("engineInfo")).startswith(_ATOMIC) for one in commits)
    is_by_hand = not is_of_query and all(one.get("operation") in _BY_HAND for one in commits)
    return None if is_atomic or is_by_hand else Unmergeable.SPARK


def _keep_seconds(metadata: Mapping[str, Any], policy: SinkPolicy) -> float | None:
    text = (metadata.get("configuration") or {}).get(DELETED_FILES)
    if text is None:
        return policy.keep_readers_seconds
    of_table = parse_interval(str(text))
    return None if of_table is None else max(of_table, policy.keep_readers_seconds)


def parse_interval(text: str) -> float | None:
    """Parse a property of a table such as `interval 7 days`; None if it has another form."""
    found = _INTERVAL.fullmatch(text.strip())
    return None if found is None else int(found["count"]) * _UNITS[found["unit"].lower()]


def _for_readers(log: ListedLog, since_seconds: float) -> int:
    """The version that was the newest one at a time. A commit without a time counts as later."""
    later = [
        version
        for version, entry in log.commits.items()
        if entry.modified_at_seconds is None or entry.modified_at_seconds > since_seconds
    ]
    return max(0, min(later, default=log.newest + 1) - 1)


def _age(log: ListedLog, version: int, now: float) -> float:
    times = [log.commits[one].modified_at_seconds for one in (version, version + 1) if one in log.commits]
    known = [time for time in times if time is not None]
    return max(0.0, now - min(known)) if known else 0.0
