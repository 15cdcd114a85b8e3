"""Gathers the facts of a table of state. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statekeeper.statestore.base.errors import NotACheckpoint
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.commit_log import CommitLog, Heads
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.contents.rows import Contents, Layout, contents_at, layout_or_bytes
from statekeeper.statestore.format import delta_log, logs, names, prefix_columns
from statekeeper.statestore.format.delta_log import DeltaTable
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import clones
from statekeeper.statestore.maintenance.copies.clones.model import Place
from statekeeper.statestore.maintenance.copies.state_tables import files
from statekeeper.statestore.maintenance.copies.state_tables.model import (
    Kind,
    Position,
    TableRecord,
    offsets_of,
    parse_record,
    state_of,
)
from statekeeper.statestore.root import binding
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.times import TIMERS
from statekeeper.statestore.storage import Entry, Storage, list_members, read_or_none


@dataclass(frozen=True)
class Changelog:
    """A changelog to read: its version, and its size; None if it does not exist."""

    version: VersionId
    size_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """A root at the batch to publish, and the table.

    query        the id of the query
    newest       the newest committed batch
    contents     the stores at the batch to publish, the newest one whose files no query replaces any more; None if there is
                 none
    layouts      the layout of the rows of each operator's store
    operators    the names of the operators, or of the stores of a job root; "" if unknown
    internal     operators that only help the others, such as an index of timers
    position     of the batch to publish
    table        the newest version of the table; None if there is none
    is_ours      every data file is one that `publish` wrote
    occupied     a file in a location without a table
    record       what the table records; None without a table, and for the table of another program
    published    the position that the published batch has in the root now; None if its commit no longer exists
    moved        the stores of the published batch are not those of the batch to publish
    bases        the versions of the stores at the published batch
    changelogs   of each store: those between the two batches, oldest first
    committed_ms the times of commits by batch
    chains       of the stores at the batch; none unless `with_chains` adds them
    """

    source: Place
    destination: Place
    origin: Origin
    query: str
    newest: int
    structure: Structure
    contents: Contents | None
    layouts: Mapping[Kind, Layout]
    operators: Mapping[int, str]
    internal: frozenset[int]
    position: Position | None
    table: DeltaTable | None
    is_ours: bool
    occupied: str | None
    record: TableRecord | None
    published: Position | None
    moved: bool
    bases: Mapping[StorePath, VersionId]
    changelogs: Mapping[StorePath, tuple[Changelog, ...]]
    committed_ms: Mapping[int, int]
    chains: Mapping[StorePath, Chain] = field(default_factory=dict)


def with_chains(source: Storage, facts: TableFacts) -> TableFacts:
    """Add the chains of the stores at the batch, for a run that reads all rows: it needs a version that loads.

    Requests: see `clones.chains_of`. Raises as `gather`.
    """
    contents = facts.contents
    log = None if contents is None else catalog.commit_log(source, at=contents.batch)
    if contents is None or log is None:
        return facts
    entries = source.list(names.STATE)
    files_of = catalog.with_members(list_members(source), entries, contents.conf.provider)
    families = catalog.with_families(entry.path for entry in entries)
    found = clones.chains_of(source, log, files_of, families, down_to=contents.batch + 1)
    return replace(facts, chains=found)


def gather(source: Storage, destination: Storage, *, stopped: bool = False) -> TableFacts:
    """Gather the facts. `stopped`: a person confirms that the query is stopped: see `clones.newest_settled`.

    Requests: the log of the table from its newest checkpoint on; listings of the state and of the logs; one commit for each
    batch after the published one; one request for each operator, for its schema, for `metadata` and for two offset logs.
    Raises `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    newest = catalog.newest_batch(source)
    if newest is None:
        raise NotACheckpoint(
            "has no committed batch: there is no state to publish",
            path=source.url,
            hint="run this command again after the query has committed its first batch",
        )
    origin = origin_of(source)
    bound = binding.parse_binding(source.read(names.BINDING)) if origin is Origin.OWN else None
    settled = clones.newest_settled(source, origin, newest, stopped=stopped)
    table = files.read_table(destination)
    record = None if table is None else parse_record(table.domains, delta_log.commit_path(table.version))
    occupied = None if table is not None else next((one.path for one in destination.list("") if _counts(one)), None)
    layouts: dict[Kind, Layout] = {}
    operators: dict[int, str] = {}
    position = published = None
    changelogs: Mapping[StorePath, tuple[Changelog, ...]] = {}
    moved, bases = False, dict[StorePath, VersionId]()
    contents = None if settled < 0 else contents_at(source, settled, any_encoding=True)
    rewrites = _rewrites(source)
    if contents is not None:
        for store in sorted(contents.stores):
            if (store.operator, store.store) not in layouts:
                layouts[store.operator, store.store] = layout_or_bytes(contents, store)
        for operator in sorted({operator for operator, _ in layouts}):
            described = catalog.operator_at(source, operator, settled) if bound is None else bound.stores[operator]
            operators[operator] = described.name if described else ""
        position = _position(source, Heads(settled, contents.stores), rewrites)
    if contents is not None and record is not None:
        at = record.position.batch
        log = catalog.commit_log(source, down_to=min(at, newest))
        assert log is not None
        heads = log.at(at)
        if heads is not None:
            published = _position(source, Heads(at, heads), rewrites)
            bases = dict(heads)
            moved = heads.keys() != contents.stores.keys()
            changelogs = {} if moved else _changelogs(source, log, contents, at, record)
    return TableFacts(
        source=Place(url=source.url, location=source.location),
        destination=Place(url=destination.url, location=destination.location),
        origin=origin,
        query=_query_of(source) if bound is None else bound.query_id,
        newest=newest,
        structure=catalog.structure_at(source, newest),
        contents=contents,
        layouts=layouts,
        operators=operators,
        internal=_internal(bound),
        position=position,
        table=table,
        is_ours=table is not None and all(map(files.is_own, table.files)),
        occupied=occupied,
        record=record,
        published=published,
        moved=moved,
        bases=bases,
        changelogs=changelogs,
        committed_ms={
            batch: int((one.modified_at_seconds or 0) * 1000)
            for one in source.list(names.COMMITS)
            if (batch := names.parse_batch(one.path)) is not None
        },
    )


def _query_of(source: Storage) -> str:
    return logs.parse_metadata(source.read(names.QUERY_METADATA), names.QUERY_METADATA)


def _counts(entry: Entry) -> bool:
    """Return whether a file in the location is not a control file, nor of a run that failed before its first commit."""
    return not entry.path.startswith(f"{names.CONTROL}/") and not files.is_own(entry.path)


def _internal(bound: Binding | None) -> frozenset[int]:
    """The operators of a job root that hold its timers, and indexes of timers and expiries."""
    stores = () if bound is None else bound.stores
    return frozenset(
        number
        for number, store in enumerate(stores)
        if store.name == TIMERS or store.prefix_columns != prefix_columns.OF_STATE
    )


def _rewrites(source: Storage) -> str:
    """A digest of the journals of rewrites: an edit in structure V1 replaces a version, which keeps its name."""
    paths = sorted(entry.path for entry in source.list(names.SWITCHOVERS))
    return offsets_of("\n".join(paths).encode()) if paths else ""


def _position(source: Storage, heads: Heads, rewrites: str) -> Position:
    offsets = read_or_none(source, names.offsets(heads.batch))
    return Position(batch=heads.batch, state=state_of(heads), offsets=offsets_of(offsets), rewrites=rewrites)


def _changelogs(
    source: Storage, log: CommitLog, contents: Contents, published: int, record: TableRecord
) -> Mapping[StorePath, tuple[Changelog, ...]]:
    listed = catalog.files(source, provider=contents.conf.provider)
    found: dict[StorePath, tuple[Changelog, ...]] = {}
    for store in contents.stores:
        if (store.operator, store.store) != record.chosen.kind:
            continue
        steps = []
        for batch in range(published + 1, contents.batch + 1):
            version = (log.at(batch) or {}).get(store, VersionId(batch + 1, "unknown"))
            entry = listed.of(store).changelogs.get(version)
            steps.append(Changelog(version, None if entry is None else entry.size_bytes))
        found[store] = tuple(steps)
    return found
