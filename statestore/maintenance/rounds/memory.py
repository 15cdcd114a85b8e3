"""What a round must know of the rounds before it: a JSON file on local disk.

It is no source of truth. Without it, a round visits every query once and sends the notice of every problem again.

*Guarantee*: the file is replaced in one step, and written before a notice is sent and after it was accepted. So a killed
process loses no notice. If it was killed in between, its successor sends the notice again, with the same id. A notice that
no channel accepted is sent again, too; and to PagerDuty alone, a notice that only PagerDuty did not accept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from statekeeper.statestore.base.errors import LocalStateError, LocalStateLocked
from statekeeper.statestore.format import json_records
from statekeeper.statestore.format.json_records import About, Record
from statekeeper.statestore.maintenance.rounds.due import Asked
from statekeeper.statestore.maintenance.rounds.notices import Told
from statekeeper.statestore.maintenance.rounds.visit import Status

FORMAT = 1
_ABOUT = About(
    "memory of rounds", hint="delete the file: the next round visits every query and tells every problem again"
)


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """The newest visit of a query.

    asked            the version that it found, and the failed visits since the newest successful one
    visited_seconds  its time, since the epoch
    due_seconds      the latest time at which the next visit becomes due; None in the files of earlier builds
    has_failed       whether the next visit should not wait for new batches
    status, team     of the query
    figures          of the query, by the names of `metrics.GAUGES`
    totals           sums over all visits, by the names of `metrics.COUNTERS`
    """

    asked: Asked
    visited_seconds: float
    due_seconds: float | None = None
    has_failed: bool = False
    status: Status = Status.OK
    team: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)


class _Written(Record):
    queries: dict[str, Remembered]
    told: dict[str, Told]


class Memory:
    """The memory of a fleet. `file` None: only of this process."""

    def __init__(self, file: Path | None = None) -> None:
        self.queries: dict[str, Remembered] = {}
        self.told: dict[str, Told] = {}
        self._file = file

    @classmethod
    @contextmanager
    def opened(cls, file: Path | None) -> Iterator[Memory]:
        """Read the memory, and keep other processes from using it. Raises `LocalStateLocked`, `LocalStateError`,
        `CorruptFile`."""
        memory = cls(file)
        if file is None:
            yield memory
            return
        lock = FileLock(f"{file}.lock")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise LocalStateLocked(
                "another process of `statekeeper maintain` uses this memory",
                path=str(file),
                hint="wait for its end, or give this process a memory of its own with --state",
            ) from error
        except OSError as error:
            raise _unusable(file, error) from error
        with lock:
            memory._read(file)
            yield memory

    def _read(self, file: Path) -> None:
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unusable(file, error) from error
        json_records.require_format(data, str(file), _ABOUT, (FORMAT,))
        found = json_records.decoded(_Written, data, str(file), _ABOUT)
        self.queries, self.told = dict(found.queries), dict(found.told)

    def save(self) -> None:
        """Replace the file. Raises `LocalStateError`."""
        if self._file is None:
            return
        body = {"format": FORMAT, "queries": self.queries, "told": self.told}
        try:
            descriptor, name = tempfile.mkstemp(dir=self._file.parent, prefix=f".{self._file.name}.")
            try:
                with os.fdopen(descriptor, "wb") as made:
                    made.write(json_records.encoded(body))
                    made.flush()
                    os.fsync(made.fileno())
                Path(name).replace(self._file)
            except BaseException:
                with suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            raise _unusable(self._file, error) from error


def _unusable(file: Path, error: OSError) -> LocalStateError:
    return LocalStateError(
        f"cannot be used: {error.strerror or error}",
        path=str(file),
        hint="give another file with --state",
    )
