"""The maintenance history: the plans and outcomes of runs, as JSON lines below `_statekeeper/history/`.

A run writes one object with its plan before its first action, and one with its outcome.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError
from statekeeper.statestore.base.redaction import redacted
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StoreFileKind, StorePath, VersionId
from statekeeper.statestore.format.untrusted import json_lines
from statekeeper.statestore.storage import Entry, Storage, read_or_none

Json: TypeAlias = dict[str, Any]
"""A JSON object."""

_LARGEST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class PlannedSnapshot:
    """A snapshot that a run is about to make, or in a displayed plan, the reason for making none."""

    store: StorePath
    version: VersionId
    reason: str
    explained: str

    def encode(self) -> Json:
        """Encode the record as a JSON object."""
        return {
            "store": str(self.store),
            "version": str(self.version),
            "reason": self.reason,
            "explained": self.explained,
        }

    @classmethod
    def decode(cls, line: Json) -> PlannedSnapshot:
        """Decode the record. Raises `ValueError`."""
        store, version = _snapshot(line)
        return cls(store=store, version=version, reason=_text(line, "reason"), explained=_text(line, "explained"))


@dataclass(frozen=True, kw_only=True)
class TakenSnapshot:
    """A snapshot that a run made. `outcome`: code of `snapshot.Published`; for the other fields, see `snapshot.Taken`."""

    store: StorePath
    version: VersionId
    outcome: str
    keys: int
    tables: int
    new_tables: int
    uploaded_bytes: int
    replayed_keys: int
    skipped_snapshots: tuple[str, ...]
    tail_bytes: int
    restore_seconds: float
    seconds: float

    def encode(self) -> Json:
        """Encode the record as a JSON object. Durations are rounded to milliseconds."""
        return {
            "store": str(self.store),
            "version": str(self.version),
            "outcome": self.outcome,
            "keys": self.keys,
            "tables": self.tables,
            "new_tables": self.new_tables,
            "uploaded_bytes": self.uploaded_bytes,
            "replayed_keys": self.replayed_keys,
            "skipped_snapshots": list(self.skipped_snapshots),
            "tail_bytes": self.tail_bytes,
            "restore_seconds": round(self.restore_seconds, 3),
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def decode(cls, line: Json) -> TakenSnapshot:
        """Decode the record. Counts and durations that an older release did not write are 0. Raises `ValueError`."""
        store, version = _snapshot(line)
        return cls(
            store=store,
            version=version,
            outcome=_required_text(line, "outcome"),
            keys=_count(line, "keys"),
            tables=_count(line, "tables"),
            new_tables=_count(line, "new_tables"),
            uploaded_bytes=_count(line, "uploaded_bytes"),
            replayed_keys=_count(line, "replayed_keys"),
            skipped_snapshots=_texts(line, "skipped_snapshots"),
            tail_bytes=_count(line, "tail_bytes"),
            restore_seconds=_seconds(line, "restore_seconds"),
            seconds=_seconds(line, "seconds"),
        )


@dataclass(frozen=True, kw_only=True)
class FailedSnapshot:
    """A snapshot that a run could not make. `code`: code of the error."""

    store: StorePath
    code: str
    error: str

    def encode(self) -> Json:
        """Encode the record as a JSON object."""
        return {"store": str(self.store), "code": self.code, "error": self.error}

    @classmethod
    def decode(cls, line: Json) -> FailedSnapshot:
        """Decode the record. Raises `ValueError`."""
        return cls(store=_store(line), code=_required_text(line, "code"), error=_required_text(line, "error"))


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """The error that ended a run of any verb."""

    failed: str
    code: str

    def encode(self) -> Json:
        """Encode the record as a JSON object."""
        return {"failed": self.failed, "code": self.code}

    @classmethod
    def decode(cls, line: Json) -> FailedRun:
        """Decode the record. Raises `ValueError`."""
        return cls(failed=_required_text(line, "failed"), code=_required_text(line, "code"))


@dataclass(frozen=True, kw_only=True)
class RetentionHead:
    """The first line of a retention plan. `head`, `floor`: versions; `reads`: stores whose base is read in full."""

    head: int | None
    floor: int | None
    findings: tuple[str, ...]
    reads: tuple[str, ...]
    read_bytes: int

    def encode(self) -> Json:
        """Encode the record as a JSON object."""
        return {
            "head": self.head,
            "floor": self.floor,
            "findings": list(self.findings),
            "reads": list(self.reads),
            "read_bytes": self.read_bytes,
        }

    @classmethod
    def decode(cls, line: Json) -> RetentionHead:
        """Decode the record. Raises `ValueError`."""
        return cls(
            head=_optional_count(line, "head"),
            floor=_optional_count(line, "floor"),
            findings=_texts(line, "findings"),
            reads=_texts(line, "reads"),
            read_bytes=_count(line, "read_bytes"),
        )


@dataclass(frozen=True, kw_only=True)
class PlannedDeletion:
    """A file that retention is about to delete. `rule`: code of `retention.Rule`."""

    path: str
    rule: str

    @property
    def snapshot(self) -> tuple[StorePath, VersionId] | None:
        """The snapshot at the path; None for another file."""
        place = names.parse_store_path(self.path)
        if place is None or place[1].kind is not StoreFileKind.SNAPSHOT:
            return None
        return place[0], place[1].version

    def encode(self) -> Json:
        """Encode the record as a JSON object."""
        return {"delete": self.path, "rule": self.rule}

    @classmethod
    def decode(cls, line: Json) -> PlannedDeletion:
        """Decode the record. Raises `ValueError`."""
        return cls(path=_required_text(line, "delete"), rule=_text(line, "rule"))


@dataclass(frozen=True, kw_only=True)
class DeletedFiles:
    """The result of one delete request, or of the read of one base. See `retention.Deleted`."""

    store: StorePath | None
    outcome: str
    files: int
    bytes: int
    spared: tuple[str, ...]
    detail: str
    read_files: int
    read_bytes: int

    def encode(self) -> Json:
        """Encode the record as a JSON object."""
        return {
            "store": None if self.store is None else str(self.store),
            "outcome": self.outcome,
            "files": self.files,
            "bytes": self.bytes,
            "spared": list(self.spared),
            "detail": self.detail,
            "read_files": self.read_files,
            "read_bytes": self.read_bytes,
        }

    @classmethod
    def decode(cls, line: Json) -> DeletedFiles:
        """Decode the record. Raises `ValueError`."""
        return cls(
            store=None if line.get("store") is None else _store(line),
            outcome=_required_text(line, "outcome"),
            files=_count(line, "files"),
            bytes=_count(line, "bytes"),
            spared=_texts(line, "spared"),
            detail=_text(line, "detail"),
            read_files=_count(line, "read_files"),
            read_bytes=_count(line, "read_bytes"),
        )


HistoryRecord: TypeAlias = (
    PlannedSnapshot | TakenSnapshot | FailedSnapshot | FailedRun | RetentionHead | PlannedDeletion | DeletedFiles
)


def decode(verb: str, part: str, line: Json) -> HistoryRecord:
    """Decode a line of a plan or an outcome (`part`) of a verb. Raises `ValueError` for any line that is no such record."""
    for key, decoder in _DECODERS.get((verb, part), {}).items():
        if key in line:
            return decoder(line)
    raise ValueError(f"no record of a {part} of {verb}")


_DECODERS: Mapping[tuple[str, str], Mapping[str, Callable[[Json], HistoryRecord]]] = {
    ("snapshot", "plan"): {"store": PlannedSnapshot.decode},
    ("snapshot", "outcome"): {
        "outcome": TakenSnapshot.decode,
        "error": FailedSnapshot.decode,
        "failed": FailedRun.decode,
    },
    ("gc", "plan"): {"delete": PlannedDeletion.decode, "head": RetentionHead.decode},
    ("gc", "outcome"): {"outcome": DeletedFiles.decode, "failed": FailedRun.decode},
    ("mirror", "plan"): {"delete": PlannedDeletion.decode},
    ("mirror", "outcome"): {"outcome": DeletedFiles.decode, "failed": FailedRun.decode},
}
"""Decoders by verb and part, then by the key that only one kind of record has."""


def _store(line: Json) -> StorePath:
    place = names.parse_place(f"{line.get('store')}/any")
    if place is None:
        raise ValueError("the record names no store")
    return place[0]


def _snapshot(line: Json) -> tuple[StorePath, VersionId]:
    place = names.parse_store_path(f"{line.get('store')}/{line.get('version')}.zip")
    if place is None:
        raise ValueError("the record names no version of a store")
    return place[0], place[1].version


def _text(line: Json, key: str) -> str:
    return _required_text(line, key) if key in line else ""


def _required_text(line: Json, key: str) -> str:
    value = line.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a text")
    return value


def _texts(line: Json, key: str) -> tuple[str, ...]:
    values = line.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} is not a list of texts")
    return tuple(values)


def _count(line: Json, key: str) -> int:
    value = line.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{key} is not a count")
    return value


def _optional_count(line: Json, key: str) -> int | None:
    return None if line.get(key) is None else _count(line, key)


def _seconds(line: Json, key: str) -> float:
    value = line.get(key, 0.0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _LARGEST or math.isnan(value):
        raise ValueError(f"{key} is not a duration")
    return float(value)


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


@contextmanager
def recorded(storage: Storage, verb: str, run: str, plan: Iterable[Json], clock: Clock) -> Iterator[list[Json]]:
    """Record a run in the history: the plan before the body of the `with` statement, and the yielded list after it.

    If the body raises an error, the outcome contains the list and the error. Raises `StorageError`, and the error of the
    body.
    """
    history = History.begin(storage, verb, run, clock)
    history.plan(plan)
    done: list[Json] = []
    try:
        yield done
    except BaseException as error:
        failed = FailedRun(
            failed=redacted(str(error)) or type(error).__name__,
            code=error.code if isinstance(error, StatekeeperError) else "failed",
        )
        # Report the error of the body, not that of its record.
        with suppress(StatekeeperError):
            history.outcome([*done, failed.encode()])
        raise
    history.outcome(done)


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
            yield decode(verb, part, line)
        except ValueError as error:
            if part != "outcome":
                raise CorruptFile(f"a line of the record is malformed: {error}", path=path) from error
