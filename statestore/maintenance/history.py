"""The maintenance history: the plans and outcomes of runs, as JSON lines below `_statekeeper/history/`.

A run writes one object with its plan before its first action, and one with its outcome.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from statekeeper.statestore.clock import Clock
from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format import names
from statekeeper.statestore.format.json_object import json_lines
from statekeeper.statestore.maintenance import history_records
from statekeeper.statestore.maintenance.history_records import HistoryRecord, Json
from statekeeper.statestore.storage import Entry, Storage, read_or_none

_STAMP = "%Y%m%dT%H%M%SZ"
"""The time in the names of the files of a run."""


@dataclass(frozen=True)
class History:
    """The history of one run of one verb. `started`: the time in the names of its files, in UTC."""

    storage: Storage
    verb: str
    run: str
    started: str

    @classmethod
    def begin(cls, storage: Storage, verb: str, run: str, clock: Clock) -> History:
        """Start the history of the run with the id `run`. Writes nothing."""
        now = datetime.fromtimestamp(clock.now_seconds(), UTC)
        return cls(storage, verb, run, now.strftime(_STAMP))

    def plan(self, lines: Iterable[Json]) -> None:
        """Write the planned actions, one per line. Raises `StorageError`."""
        self._write("plan", lines)

    def outcome(self, lines: Iterable[Json]) -> None:
        """Write the results, one per line. Raises `StorageError`."""
        self._write("outcome", lines)

    def _write(self, part: str, lines: Iterable[Json]) -> None:
        body = "".join(json.dumps(line) + "\n" for line in lines)
        self.storage.create(names.history(self.started, self.verb, self.run, part), body.encode())


def read(storage: Storage, path: str) -> list[HistoryRecord]:
    """Read the records of one file; none if the file is missing. One request.

    A malformed line of an outcome is skipped. A malformed line of a plan raises an error, because a reader that misses a
    planned action would miss its effect. Raises `CorruptFile`, `StorageError`.
    """
    return list(_records(storage, path))


def newest_outcome(storage: Storage, verb: str) -> list[HistoryRecord]:
    """Read the newest outcome of a verb; none if there is none. One listing, one request.

    Raises `CorruptFile`, `StorageError`.
    """
    return newest_outcome_among(storage, verb, storage.list(names.HISTORY))


def newest_outcome_among(storage: Storage, verb: str, listed: Iterable[Entry]) -> list[HistoryRecord]:
    """Read the newest outcome of a verb in a listing of the history. One request. Raises as `newest_outcome`."""
    outcomes = [entry.path for entry in listed if names.parse_history(entry.path) == (verb, "outcome")]
    return read(storage, max(outcomes)) if outcomes else []


def newest_run_seconds(storage: Storage, verbs: Collection[str]) -> float | None:
    """Return the Unix time at which the newest run of these verbs with an outcome started; None without such a run. One
    listing. Raises `StorageError`."""
    started = [
        seconds
        for entry in storage.list(names.HISTORY)
        if (parsed := names.parse_history(entry.path)) and parsed[0] in verbs and parsed[1] == "outcome"
        if (seconds := _started_seconds(entry.path)) is not None
    ]
    return max(started, default=None)


def _started_seconds(path: str) -> float | None:
    stamp = path.removeprefix(f"{names.HISTORY}/").partition("-")[0]
    try:
        return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None  # not a time that a run wrote


def _records(storage: Storage, path: str) -> Iterator[HistoryRecord]:
    verb, part = names.parse_history(path) or ("", "")
    for line in json_lines(read_or_none(storage, path) or b"", path):
        try:
            yield history_records.decode(verb, part, line)
        except ValueError as error:
            if part != "outcome":
                raise CorruptFile(f"a line of the record is malformed: {error}", path=path) from error
