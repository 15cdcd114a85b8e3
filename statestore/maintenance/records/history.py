"""The maintenance history: the plans and outcomes of runs, as JSON lines below `_statekeeper/history/`.

A run writes one object with its plan before its first action, and one with its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any, Self, TypeAlias

import msgspec

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, StatekeeperError
from statekeeper.statestore.base.redaction import redacted
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.json_records import Count, Record, UnixSeconds
from statekeeper.statestore.format.names import StoreFileKind, StorePath, VersionId
from statekeeper.statestore.format.untrusted import json_object
from statekeeper.statestore.storage import Entry, Storage, read_lines

Json: TypeAlias = dict[str, Any]
"""A JSON object."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A duration."""


class _Line(Record):
    """A line of a plan or of an outcome. A field that an older release did not write has its default."""

    def encode(self) -> Json:
        """Encode the record as a JSON object."""
        body: Json = json_records.as_json(self)
        names_of_place = {name: str(getattr(self, name)) for name in ("store", "version") if body.get(name) is not None}
        return {name: list(one) if isinstance(one, tuple) else one for name, one in (body | names_of_place).items()}

    @classmethod
    def decode(cls, line: Json) -> Self:
        """Decode the record. Raises `ValueError`."""
        return json_records.converted(cls, {**line, **_places(line)})


class PlannedSnapshot(_Line):
    """A snapshot that a run is about to make, or in a displayed plan, the reason for making none."""

    store: StorePath
    version: VersionId
    reason: str = ""
    explained: str = ""


class TakenSnapshot(_Line):
    """A snapshot that a run made. `outcome`: code of `snapshot.Published`; for the other fields, see `snapshot.Taken`."""

    store: StorePath
    version: VersionId
    outcome: str
    keys: Count = 0
    tables: Count = 0
    new_tables: Count = 0
    uploaded_bytes: Count = 0
    replayed_keys: Count = 0
    skipped_snapshots: tuple[str, ...] = ()
    tail_bytes: Count = 0
    restore_seconds: Seconds = 0.0
    seconds: Seconds = 0.0
    kept_tables: Count = 0

    def encode(self) -> Json:
        """Encode the record as a JSON object. Durations are rounded to milliseconds; `kept_tables` is written if there are
        any."""
        durations = {name: round(getattr(self, name), 3) for name in ("restore_seconds", "seconds")}
        body = super().encode() | durations
        return body if self.kept_tables else {name: one for name, one in body.items() if name != "kept_tables"}


class FailedSnapshot(_Line):
    """A snapshot that a run could not make. `code`: code of the error."""

    store: StorePath
    code: str
    error: str


class FailedRun(_Line):
    """The error that ended a run of any verb."""

    failed: str
    code: str


class EndedRun(_Line):
    """The last line of an outcome of any verb: when the run ended, and its requests to the root after the plan was made.

    A dead run has none, and neither has a run of an earlier release.
    """

    ended: UnixSeconds
    seconds: Seconds = 0.0
    writes: Count = 0
    reads: Count = 0

    def encode(self) -> Json:
        """Encode the record as a JSON object. Times are rounded to milliseconds."""
        return super().encode() | {"ended": round(self.ended, 3), "seconds": round(self.seconds, 3)}


class RetentionHead(_Line):
    """The first line of a retention plan. `head`, `floor`: versions; `reads`: stores whose base is read in full;
    `stored_files`, `stored_bytes`: of all stores before the run, None for a record of an earlier release."""

    head: Count | None = None
    floor: Count | None = None
    findings: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    read_bytes: Count = 0
    stored_files: Count | None = None
    stored_bytes: Count | None = None

    def encode(self) -> Json:
        """Encode the record as a JSON object, without unknown sizes."""
        sizes = ("stored_files", "stored_bytes")
        return {name: one for name, one in super().encode().items() if name not in sizes or one is not None}


class PlannedDeletion(_Line):
    """A file that retention is about to delete. `rule`: code of `retention.Rule`."""

    path: str = msgspec.field(name="delete")
    rule: str = ""

    @property
    def snapshot(self) -> tuple[StorePath, VersionId] | None:
        """The snapshot at the path; None for another file."""
        place = names.parse_store_path(self.path)
        if place is None or place[1].kind is not StoreFileKind.SNAPSHOT:
            return None
        return place[0], place[1].version


class DeletedFiles(_Line, kw_only=True):
    """The result of one delete request, or of the read of one base. See `retention.Deleted`."""

    store: StorePath | None = None
    outcome: str
    files: Count = 0
    bytes: Count = 0
    spared: tuple[str, ...] = ()
    detail: str = ""
    read_files: Count = 0
    read_bytes: Count = 0


class PlannedDrill(_Line):
    """A store that a drill is about to restore."""

    store: StorePath
    version: VersionId
    reason: str = ""


class DrilledStore(_Line):
    """The result of the drill of a store. `verdict`: code of `drill.Verdict`; `compared`: codes of `drill.Against`;
    `predicted_seconds`, `seconds`: of the load, before and by the drill."""

    store: StorePath
    version: VersionId
    verdict: str
    rows: Count = 0
    compared: tuple[str, ...] = ()
    predicted_seconds: Seconds = 0.0
    seconds: Seconds = 0.0
    detail: str = ""


class FailedDrill(_Line):
    """A store that a drill could not examine. `code`: code of the error."""

    store: StorePath
    code: str
    error: str


class PlannedStart(_Line):
    """A query that a drill is about to start on a clone. `start_at`: the cloned batch; `commit`: the one that it must
    commit."""

    start_at: Count
    commit: Count


class StartedQuery(_Line):
    """What a query did that a drill has started. `committed`: its newest batch; `seconds`: from its start to the commit."""

    is_green: bool
    committed: int | None = None
    seconds: Seconds = 0.0
    detail: str = ""


HistoryRecord: TypeAlias = (
    PlannedSnapshot
    | TakenSnapshot
    | FailedSnapshot
    | FailedRun
    | EndedRun
    | RetentionHead
    | PlannedDeletion
    | DeletedFiles
    | PlannedDrill
    | DrilledStore
    | FailedDrill
    | PlannedStart
    | StartedQuery
)


def decode(verb: str, part: str, line: Json) -> HistoryRecord:
    """Decode a line of a plan or an outcome (`part`) of a verb. Raises `ValueError` for any line that is no such record."""
    if part == "outcome" and "ended" in line:
        return EndedRun.decode(line)
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
    ("drill", "plan"): {"store": PlannedDrill.decode, "start_at": PlannedStart.decode},
    ("drill", "outcome"): {
        "verdict": DrilledStore.decode,
        "is_green": StartedQuery.decode,
        "error": FailedDrill.decode,
        "failed": FailedRun.decode,
    },
    ("mirror", "plan"): {"delete": PlannedDeletion.decode},
    ("mirror", "outcome"): {"outcome": DeletedFiles.decode, "failed": FailedRun.decode},
}
"""Decoders by verb and part, then by the key that only one kind of record has."""


def _places(line: Json) -> Json:
    """Parse the store and the version of a line. Raises `ValueError`."""
    if "version" in line:
        file = names.parse_store_path(f"{line.get('store')}/{line['version']}.zip")
        if file is None:
            raise ValueError("the record names no version of a store")
        return {"store": file[0], "version": file[1].version}
    if line.get("store") is None:
        return {}
    place = names.parse_place(f"{line['store']}/any")
    if place is None:
        raise ValueError("the record names no store")
    return {"store": place[0]}


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
        path = names.history(self.started, self.verb, self.run, part)
        self.storage.create(path, json_records.encoded_lines(lines))


@contextmanager
def recorded(storage: Storage, verb: str, run: str, plan: Iterable[Json], clock: Clock) -> Iterator[list[Json]]:
    """Record a run in the history: the plan before the body of the `with` statement, and the yielded list after it.

    If the body raises an error, the outcome contains the list and the error. Raises `StorageError`, and the error of the
    body.
    """
    history = History.begin(storage, verb, run, clock)
    before, started = storage.requests.snapshot(), clock.monotonic_seconds()
    history.plan(plan)
    done: list[Json] = []

    def ended() -> Json:
        made = storage.requests.since(before)
        # The outcome itself is one more write.
        return EndedRun(
            ended=clock.now_seconds(),
            seconds=clock.monotonic_seconds() - started,
            writes=made.writes + 1,
            reads=made.reads,
        ).encode()

    try:
        yield done
    except BaseException as error:
        failed = FailedRun(
            failed=redacted(str(error)) or type(error).__name__,
            code=error.code if isinstance(error, StatekeeperError) else "failed",
        )
        # Report the error of the body, not that of its record.
        with suppress(StatekeeperError):
            history.outcome([*done, failed.encode(), ended()])
        raise
    history.outcome([*done, ended()])


def read(storage: Storage, path: str) -> list[HistoryRecord]:
    """Read the records of one file, as `records`."""
    return list(records(storage, path))


def records(storage: Storage, path: str) -> Iterator[HistoryRecord]:
    """Read the records of one file, without the end of the run, one after another; none if the file is missing. One request
    for each 4 MiB.

    A malformed line of an outcome is skipped. A malformed line of a plan raises an error, because a reader that misses a
    planned action would miss its effect. Raises `CorruptFile`, `StorageError`; `ObjectMissing` if the file is deleted while
    it is read.
    """
    verb, part = names.parse_history(path) or ("", "")
    lines = read_lines(storage, path)
    try:
        first = next(lines, None)
    except ObjectMissing:
        return
    for line in chain(() if first is None else (first,), lines):
        try:
            found = decode(verb, part, json_object(line, path))
            if not isinstance(found, EndedRun):
                yield found
        except ValueError as error:
            if part != "outcome":
                raise CorruptFile(f"a line of the record is malformed: {error}", path=path) from error


def newest_outcome(storage: Storage, verb: str) -> list[HistoryRecord]:
    """Read the newest outcome of a verb; none if there is none. One listing, one request.

    Raises `CorruptFile`, `StorageError`.
    """
    return newest_outcome_among(storage, verb, storage.list(names.HISTORY))


def newest_outcome_among(storage: Storage, verb: str, listed: Iterable[Entry]) -> list[HistoryRecord]:
    """Read the newest outcome of a verb in a listing of the history. One request. Raises as `newest_outcome`."""
    outcomes = [entry.path for entry in listed if names.parse_history(entry.path) == (verb, "outcome")]
    return read(storage, max(outcomes)) if outcomes else []


def runs_since(since_seconds: float, listed: Iterable[Entry]) -> int:
    """Return the number of runs in a listing of the history that started after a time and have an outcome. Pure."""
    outcomes = [one.path for one in listed if (parsed := names.parse_history(one.path)) and parsed[1] == "outcome"]
    return sum((started_seconds(path) or 0.0) >= since_seconds for path in outcomes)


def starts_of_runs(storage: Storage, verbs: Collection[str]) -> list[float]:
    """Return the Unix times at which the runs of these verbs with an outcome started. One listing. Raises
    `StorageError`."""
    return [
        seconds
        for entry in storage.list(names.HISTORY)
        if (parsed := names.parse_history(entry.path)) and parsed[0] in verbs and parsed[1] == "outcome"
        if (seconds := started_seconds(entry.path)) is not None
    ]


def started_seconds(path: str) -> float | None:
    """Return the Unix time at which the run of a file of the history started; None for another path. Pure."""
    stamp = path.removeprefix(f"{names.HISTORY}/").partition("-")[0]
    try:
        return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None  # not a time that a run wrote
