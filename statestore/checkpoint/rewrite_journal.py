"""The journal of a rewrite: a switchover, a rescale, a conversion, an edit, a load, a schema evolution or a migration.

After a crash, the next run reads it to finish or to reverse the rewrite. That of a migration is in its destination.

    _statekeeper/switchover/00000001/begun.json                  the start, and the names of the new snapshots
                                     cleared.json                a switchover: conflicting files are quarantined; an
                                                                 edit: all its snapshots exist
                                     made-0-3-default.json       the snapshot of a store exists and is verified
                                     ended.json                  completed or aborted

The folder was named when the switchover was the only rewrite. A journal with `begun.json` and without `ended.json` is open.
At most one is open, because each number is created once.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Literal

from msgspec import UNSET, UnsetType

from statekeeper.statestore.base.errors import RESTORE, AlreadyExists, CorruptFile, HalfSwitched, RootHeld
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_sink import parse_entry
from statekeeper.statestore.format.json_records import (
    About,
    CheckpointId,
    Count,
    Number,
    Record,
    StoreName,
    TableName,
    decoded,
    encoded,
    require_format,
)
from statekeeper.statestore.format.names import StorePath, VersionId, parse_store_file
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.storage import Storage

_ABOUT = About("journal", then="the rewrite cannot be finished or reversed")


@dataclass(frozen=True)
class SinkEntry:
    """The entry that a rewrite adds to the log of Spark's file sink. `url`: the output folder; `path`: relative to it."""

    url: str
    path: str

    def __post_init__(self) -> None:
        if parse_entry(self.path) is None:
            raise ValueError(f"{self.path[:100]!r} is not an entry of a file sink")


@dataclass(frozen=True)
class SchemaChange:
    """The value schema of one store in Spark's JSON, before and after a schema evolution."""

    before: str
    after: str

    @property
    def after_columns(self) -> str:
        """The new columns for display."""
        columns = json.loads(self.after)["fields"]
        return ", ".join(
            f"{one['name']}: {one['type'] if isinstance(one['type'], str) else json.dumps(one['type'])}"
            f"{'' if one['nullable'] else ' not null'}"
            for one in columns
        )


Schemas = Mapping[str, SchemaChange]
"""The changed value schemas. The keys are the names of the stores."""


def files_to_replace(batch: int, stores: Iterable[StorePath]) -> list[str]:
    """The files that a rescale of an own root replaces besides the newest commit, in this order. `stores`: the new ones."""
    operators = sorted({store.operator for store in stores})
    return [names.offsets(batch), *map(names.operator_metadata, operators), names.BINDING]


def files_of_schemas(batch: int) -> list[str]:
    """The files that a schema evolution replaces besides the newest commit and the schemas for Spark, in this order. The
    second one exists if the job added a column with this batch, or after an earlier evolution at this batch."""
    return [names.BINDING, names.later_schema(batch)]


_FORMAT: Literal[1] = 1
"""The format of a switchover's journal."""

_FORMAT_OF_OTHERS: Literal[2] = 2
"""The format of the other rewrites. Releases that know only switchovers reject it."""


class RewriteKind(Enum):
    """The kinds of rewrites. The value is the command."""

    SWITCH = "switch"
    RESCALE = "rescale"
    CONVERT = "convert"
    EDIT = "edit"
    LOAD = "load"
    EVOLVE = "evolve"
    MIGRATE = "migrate"

    @property
    def noun(self) -> str:
        """The rewrite as a noun."""
        nouns = {
            "switch": "switchover",
            "convert": "conversion",
            "evolve": "schema evolution",
            "migrate": "migration",
        }
        return nouns.get(self.value, self.value)


_OF_CHANGED_STORES = (RewriteKind.EDIT, RewriteKind.EVOLVE)
"""These rewrites make snapshots only of the stores that they change."""


class Ending(Enum):
    """The result of a rewrite."""

    SWITCHED = "switched"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """The start of a rewrite.

    run         the name of its quarantine folder
    batch       the newest committed batch
    header      the header of the snapshots
    commit      the content of the newest commit before the rewrite
    stores      the new version of each store, in the order of the commit log
    reused      stores whose snapshot at the head is reused; of an edit and of a schema evolution: the unchanged stores
    partitions  the number of partitions after a rescale or a conversion; None for a switchover
    provider    of the new snapshots
    file_sink   the entry of the appended batch in the log of the query's file sink; None without such a sink
    replaced    the other files that a rewrite of an own root replaces, in this order, and their contents before it; None if
                the rewrite appends a batch
    options     of an edit, a load, a schema evolution and a migration: the arguments of the command that name the goal
    rows        a digest of the rows or of the changes of columns that the options name; of a migration: of its goal
    watermark_ms  of a load: the watermark with which the query continues; None for others
    late_watermark_ms  of a load: the watermark that decides which rows of the next batch are late; None if unknown
    schemas     of a schema evolution: the changed value schemas
    """

    number: int
    run: str
    to: Structure
    batch: int
    header: str
    commit: str
    stores: Mapping[StorePath, VersionId]
    reused: frozenset[StorePath] = frozenset()
    rewrite: RewriteKind = RewriteKind.SWITCH
    partitions: int | None = None
    provider: Provider = Provider.ROCKSDB
    file_sink: SinkEntry | None = None
    replaced: Mapping[str, str] | None = None
    options: tuple[str, ...] = ()
    rows: str = ""
    watermark_ms: int | None = None
    late_watermark_ms: int | None = None
    schemas: Schemas = field(default_factory=dict)

    @property
    def built(self) -> Mapping[StorePath, VersionId]:
        """The stores for which the rewrite makes a snapshot, with its version."""
        if self.rewrite not in _OF_CHANGED_STORES:
            return self.stores
        return {store: version for store, version in self.stores.items() if store not in self.reused}

    @property
    def appends_batch(self) -> bool:
        """Whether the rewrite appends a batch to the logs of a native query. Otherwise it replaces the newest version."""
        return self.replaced is None and self.rewrite not in (RewriteKind.SWITCH, RewriteKind.EDIT, RewriteKind.MIGRATE)

    @property
    def described(self) -> str:
        """The rewrite as a noun phrase, for messages."""
        match self.rewrite:
            case RewriteKind.SWITCH:
                return f"switchover to structure {self.to.value}"
            case RewriteKind.RESCALE:
                return f"rescale to {self.partitions} partitions"
            case RewriteKind.CONVERT:
                return f"conversion to {self.provider.value} in structure {self.to.value}"
            case RewriteKind.EDIT:
                return f"edit of {len(self.built):,} stores"
            case RewriteKind.LOAD:
                return f"load of {self.options[0] if self.options else 'a savepoint'}"
            case RewriteKind.EVOLVE:
                return f"schema evolution of {len(self.built):,} stores"
            case RewriteKind.MIGRATE:
                return f"migration of {self.options[0] if self.options else 'a checkpoint'}"

    @property
    def first_version(self) -> int | None:
        """The first version whose files have other names than those before it; None if the names stay."""
        match self.rewrite:
            case RewriteKind.SWITCH:
                return self.batch + 1
            case RewriteKind.CONVERT:
                return self.batch + 2
            case RewriteKind.RESCALE | RewriteKind.EDIT | RewriteKind.LOAD | RewriteKind.EVOLVE | RewriteKind.MIGRATE:
                return None

    @property
    def goal(self) -> tuple[str, ...]:
        """The options of the command that name the goal."""
        sink = () if self.file_sink is None else ("--file-sink", self.file_sink.url)
        match self.rewrite:
            case RewriteKind.SWITCH:
                return "--to", self.to.value
            case RewriteKind.RESCALE:
                return "--partitions", str(self.partitions), *sink
            case RewriteKind.CONVERT:
                return "--to", self.provider.option, "--structure", self.to.value, *sink
            case RewriteKind.EDIT | RewriteKind.EVOLVE | RewriteKind.MIGRATE:
                return self.options
            case RewriteKind.LOAD:
                return *self.options, *sink

    @property
    def finishing(self) -> str:
        """The command that finishes the rewrite."""
        if self.rewrite is RewriteKind.LOAD:
            savepoint, *options = self.goal
            return shlex.join(["statekeeper", "load", savepoint, "ROOT", *options, "--apply", "--confirm-stopped"])
        if self.rewrite is RewriteKind.MIGRATE:
            old, blueprint, *options = self.goal
            given = ["statekeeper", "migrate", old, blueprint, "ROOT", *options, "--apply", "--confirm-stopped"]
            return shlex.join(given)
        return f"statekeeper {self.rewrite.value} ROOT {shlex.join(self.goal)} --apply --confirm-stopped"

    @property
    def reversing(self) -> str:
        """The command that reverses the rewrite."""
        if self.rewrite is RewriteKind.MIGRATE:
            return "statekeeper migrate ROOT --abort --confirm-stopped"
        return f"statekeeper {self.rewrite.value} ROOT --abort --confirm-stopped"


@dataclass(frozen=True)
class Made:
    """A published snapshot: the digest of its keys and values, and the tables that were uploaded for it."""

    digest: str
    tables: tuple[TableName, ...]


@dataclass(frozen=True)
class RewriteJournal:
    """A journal, open unless it was read as ended.

    `made`: the published snapshots by store; `is_cleared`: see `note_cleared`.
    """

    begun: Begun
    made: Mapping[StorePath, Made]
    is_cleared: bool = False


def open_journal(storage: Storage, paths: Iterable[str] | None = None) -> RewriteJournal | None:
    """Read the open journal; None if there is none.

    `paths`: a listing that includes the journals; without it, one listing. One request for each file of an open journal.
    Raises `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    number, parts = _newest(_listed(storage) if paths is None else paths)
    if number is None or "ended" in parts:
        return None
    return _read(storage, number, parts)


def newest_journal(storage: Storage) -> RewriteJournal | None:
    """Read the newest journal, open or ended; None if there is none. Requests and errors: as `open_journal`."""
    number, parts = _newest(_listed(storage))
    return None if number is None else _read(storage, number, parts)


def reopen(storage: Storage, begun: Begun) -> None:
    """Open the newest journal again, to reverse its completed rewrite."""
    storage.delete([names.switchover(begun.number, "ended")])


def _read(storage: Storage, number: int, parts: Mapping[str, str]) -> RewriteJournal:
    if "begun" not in parts:
        path = names.switchover(number, "begun")
        raise CorruptFile(
            "is missing, but other files of the journal exist; the rewrite cannot be finished or reversed",
            path=path,
            hint=RESTORE,
        )
    begun = _parse_begun(storage.read(parts["begun"]), number, parts["begun"])
    by_name = {_made(store): store for store in begun.stores}
    made = {}
    for name, path in parts.items():
        if name in by_name:
            made[by_name[name]] = decoded(Made, storage.read(path), path, _ABOUT)
    return RewriteJournal(begun, made, "cleared" in parts)


def require_none(storage: Storage) -> None:
    """Verify that no journal is open. Raises `HalfSwitched`, and as `open_journal`."""
    found = open_journal(storage)
    if found is not None:
        begun = found.begun
        raise HalfSwitched(
            f"a {begun.described} is half done; no other change is possible before it ends",
            path=names.switchover(begun.number, "begun"),
            hint=f"to finish it, run: {begun.finishing}; to reverse it, run: {begun.reversing}",
        )


def newest_switched(storage: Storage, paths: Iterable[str]) -> int | None:
    """Find the first version whose files have other names than those before it: after the newest switchover or conversion
    that was not aborted; None if there is none.

    `paths`: a listing that includes the journals. Two requests for each journal that is read. Raises as `open_journal`.
    """
    found = _not_aborted(storage, paths)
    return next((first for begun, _ in found if (first := begun.first_version) is not None), None)


def newest_rescale(storage: Storage, paths: Iterable[str]) -> Begun | None:
    """Find the newest completed rescale; None if there is none. `paths`, requests and errors: as `newest_switched`."""
    found = _not_aborted(storage, paths)
    return next((begun for begun, ended in found if ended and begun.rewrite is RewriteKind.RESCALE), None)


def file_sinks(storage: Storage, paths: Iterable[str]) -> list[str]:
    """Return the output folders of file sinks that the rewrites name, except the aborted ones. `paths`, requests and
    errors: as `newest_switched`."""
    return [begun.file_sink.url for begun, _ in _not_aborted(storage, paths) if begun.file_sink is not None]


def _not_aborted(storage: Storage, paths: Iterable[str]) -> Iterator[tuple[Begun, bool]]:
    """Yield the rewrites that were not aborted, newest first, and whether each has ended."""
    parts = {place: path for path in paths if (place := names.parse_switchover(path))}
    for number in sorted({number for number, _ in parts}, reverse=True):
        ended = parts.get((number, "ended"))
        is_aborted = ended is not None and _ending(storage, ended) is Ending.ABORTED
        if (path := parts.get((number, "begun"))) and not is_aborted:
            yield _parse_begun(storage.read(path), number, path), ended is not None


def commit_before(storage: Storage, batch: int) -> str | None:
    """Return the commit of a batch as it was before the newest rewrite, if this was a completed switchover at the batch.

    One listing and two requests. Raises as `open_journal`.
    """
    number, parts = _newest(_listed(storage))
    if number is None or not {"begun", "ended"} <= parts.keys():
        return None
    begun = _parse_begun(storage.read(parts["begun"]), number, parts["begun"])
    is_switch = begun.rewrite is RewriteKind.SWITCH and ending(storage, begun) is Ending.SWITCHED
    return begun.commit if is_switch and begun.batch == batch else None


def next_number(storage: Storage) -> int:
    """The number of the next rewrite."""
    number, _ = _newest(_listed(storage))
    return 1 if number is None else number + 1


def begin(storage: Storage, begun: Begun) -> None:
    """Open the journal. Raises `RootHeld` if another process opens one at the same time."""
    is_switch = begun.rewrite is RewriteKind.SWITCH
    written = _Written(
        format=_FORMAT if is_switch else _FORMAT_OF_OTHERS,
        partitions=UNSET if is_switch else begun.partitions,
        provider=UNSET if is_switch else begun.provider,
        stores=tuple(
            _WrittenStore(
                operator=store.operator,
                partition=store.partition,
                store=store.store,
                snapshot=names.snapshot(version, begun.provider),
                digest=version.digest,
                reused=store in begun.reused,
            )
            for store, version in begun.stores.items()
        ),
        **{name: getattr(begun, name) for name in _SAME},
    )
    path = names.switchover(begun.number, "begun")
    try:
        storage.create(path, encoded(written, indent=1))
    except AlreadyExists as error:
        raise RootHeld(
            f"another process has just started a rewrite; this {begun.rewrite.value} was not started",
            path=path,
            hint="to see the other rewrite, run the same command again",
        ) from error


def note_cleared(storage: Storage, begun: Begun) -> None:
    """Record that conflicting files are quarantined. Later files with names in the journal are of this rewrite. An edit
    records that all its snapshots exist."""
    storage.create(names.switchover(begun.number, "cleared"), b"{}")


def note_made(storage: Storage, begun: Begun, store: StorePath, made: Made) -> None:
    """Record that the snapshot of a store is published and verified."""
    body = encoded({"store": str(store), **asdict(made)})
    # Race: after a lost lease, two processes may record the same snapshot. Both records are correct, so this replaces.
    storage.replace(names.switchover(begun.number, _made(store)), body)


def end(storage: Storage, begun: Begun, ending: Ending) -> None:
    """Close the journal."""
    storage.create(names.switchover(begun.number, "ended"), encoded(_Ended(how=ending)))


def ending(storage: Storage, begun: Begun) -> Ending | None:
    """Read the result of a rewrite; None while its journal is open. One request, two if it has ended."""
    path = names.switchover(begun.number, "ended")
    return None if storage.stat(path) is None else _ending(storage, path)


def _ending(storage: Storage, path: str) -> Ending:
    return decoded(_Ended, storage.read(path), path, _ABOUT).how


def _listed(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list(names.SWITCHOVERS)]


def _newest(paths: Iterable[str]) -> tuple[int | None, dict[str, str]]:
    """The number of the newest journal, and the paths of its parts."""
    found = [(place, path) for path in paths if (place := names.parse_switchover(path))]
    number = max((place[0] for place, _ in found), default=None)
    return number, {place[1]: path for place, path in found if place[0] == number}


def _made(store: StorePath) -> str:
    return f"made-{store.operator}-{store.partition}-{store.store}"


class _Ended(Record):
    """`ended.json`."""

    how: Ending


class _WrittenStore(Record):
    """The new version of a store in `begun.json`. `snapshot`: the name of its file."""

    operator: Number
    partition: Number
    store: StoreName
    snapshot: str
    digest: CheckpointId | None
    reused: bool


class _Written(Record, kw_only=True, omit_defaults=True):
    """`begun.json`; see `Begun`. That of a switchover has no kind of rewrite, no partitions and no provider."""

    format: Literal[1, 2]
    rewrite: RewriteKind = RewriteKind.SWITCH
    partitions: Number | UnsetType | None = UNSET
    provider: Provider | UnsetType = UNSET
    file_sink: SinkEntry | None = None
    replaced: Mapping[str, str] | None = None
    options: tuple[str, ...] = ()
    rows: str = ""
    watermark_ms: Count | None = None
    late_watermark_ms: Count | None = None
    schemas: Mapping[str, SchemaChange] = {}
    run: CheckpointId
    to: Structure
    batch: Count
    header: str
    commit: str
    stores: tuple[_WrittenStore, ...]

    def __post_init__(self) -> None:
        is_switch = self.rewrite is RewriteKind.SWITCH
        if is_switch != (self.format == _FORMAT) or is_switch != (self.provider is UNSET):
            raise ValueError(f"the fields are not those of format {self.format}")


_SAME = tuple(one for one in _Written.__struct_fields__ if one not in ("format", "partitions", "provider", "stores"))
"""Fields of `_Written` and of `Begun`."""


def _parse_begun(data: bytes, number: int, path: str) -> Begun:
    require_format(data, path, _ABOUT, (_FORMAT, _FORMAT_OF_OTHERS))
    written = decoded(_Written, data, path, _ABOUT)
    provider = Provider.ROCKSDB if written.provider is UNSET else written.provider
    stores, reused = {}, set()
    for one in written.stores:
        store = StorePath(one.operator, one.partition, one.store, provider)
        file = parse_store_file(one.snapshot, provider)
        if file is None:
            raise _ABOUT.invalid(f"{one.snapshot[:100]!r} is not the name of a snapshot", path)
        stores[store] = replace(file.version, digest=one.digest)
        if one.reused:
            reused.add(store)
    if written.replaced is not None:
        of_schemas = files_of_schemas(written.batch)
        is_evolution = written.rewrite is RewriteKind.EVOLVE
        allowed = [of_schemas, of_schemas[:1]] if is_evolution else [files_to_replace(written.batch, stores)]
        if list(written.replaced) not in allowed:
            raise _ABOUT.invalid("this rewrite replaces other files", path)
    if written.schemas:
        # Imported on demand: no other rewrite needs Arrow's types.
        from statekeeper.statestore.format.types import arrow_schema

        for change in written.schemas.values():
            try:
                arrow_schema(change.before)
                arrow_schema(change.after)
            except BAD_VALUES as error:
                raise _ABOUT.invalid(error, path) from error
    return Begun(
        number=number,
        stores=stores,
        reused=frozenset(reused),
        partitions=None if written.partitions is UNSET else written.partitions,
        provider=provider,
        **{name: getattr(written, name) for name in _SAME},
    )
