"""What maintenance planned and did, as JSON lines below `_statekeeper/history/`: for people and for drills.

One object for the plan, written before anything is done, and one for the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from statestore.clock import Clock
from statestore.format import names
from statestore.format.json_object import json_lines
from statestore.storage import Entry, Storage, read_or_none


@dataclass(frozen=True)
class History:
    """The record of one run of one verb. `started` is the time in its files' names."""

    storage: Storage
    verb: str
    run: str
    started: str

    @classmethod
    def begin(cls, storage: Storage, verb: str, run: str, clock: Clock) -> History:
        """The record of a run that starts now; `run` is its id."""
        now = datetime.fromtimestamp(clock.now_seconds(), UTC)
        return cls(storage, verb, run, now.strftime("%Y%m%dT%H%M%SZ"))

    def plan(self, lines: Iterable[dict[str, Any]]) -> None:
        """What is about to be done, a line each."""
        self._write("plan", lines)

    def outcome(self, lines: Iterable[dict[str, Any]]) -> None:
        """What was done, a line each."""
        self._write("outcome", lines)

    def _write(self, part: str, lines: Iterable[dict[str, Any]]) -> None:
        body = "".join(json.dumps(line) + "\n" for line in lines)
        self.storage.create(names.history(self.started, self.verb, self.run, part), body.encode())


def newest_outcome(storage: Storage, verb: str) -> list[dict[str, Any]]:
    """The lines of the newest outcome of a verb; none when there is none. One listing, one request.

    Raises `CorruptFile`, `StorageError`.
    """
    return newest_outcome_among(storage, verb, storage.list(names.HISTORY))


def newest_outcome_among(storage: Storage, verb: str, history: Iterable[Entry]) -> list[dict[str, Any]]:
    """The same of records that were listed. One request. Raises as `newest_outcome`."""
    outcomes = [entry.path for entry in history if names.parse_history(entry.path) == (verb, "outcome")]
    if not outcomes:
        return []
    newest = max(outcomes)
    return json_lines(read_or_none(storage, newest) or b"", newest)
