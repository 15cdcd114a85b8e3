"""Plans a savepoint with rows. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from statekeeper.statestore.base.errors import DestinationNotEmpty, LocalDiskFull, StatekeeperError
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones.plan import first_version, misplaced, not_loadable, state_of
from statekeeper.statestore.maintenance.copies.savepoints.gather import Kind, RowsFacts
from statekeeper.statestore.maintenance.copies.savepoints.record import Begun, StoreRows
from statekeeper.statestore.maintenance.copies.savepoints.write import FILE_BYTES, Table, tables_of


class Tables(StrEnum):
    """The format of the tables."""

    PARQUET = "parquet"
    DELTA = "delta"


@dataclass(frozen=True, kw_only=True)
class RowsPlan:
    """The tables to write, the stores to read, and the reasons not to.

    begun         what the destination records
    newest        the newest batch of the source
    structure     of the batch
    query_id      of the query
    tables        of each operator and store name, by family; none for a store whose schema cannot be read
    stores        all stores
    finished      those that an earlier run has finished
    leftovers     files of an earlier run that did not finish their store, and its records that do not match its files
    read_bytes    the size of the files of state that hold the rows
    store_bytes   the size of the files that a restore of each store reads
    is_complete   the destination already is this savepoint
    """

    begun: Begun
    newest: int
    structure: Structure
    query_id: str
    tables: Mapping[Kind, Mapping[str | None, Table]]
    stores: tuple[StorePath, ...]
    finished: Mapping[StorePath, StoreRows]
    leftovers: tuple[str, ...]
    read_bytes: int
    store_bytes: Mapping[StorePath, int]
    refusals: tuple[StatekeeperError, ...]
    is_complete: bool

    def to_read(self) -> list[StorePath]:
        """The stores that are not finished yet."""
        return [store for store in self.stores if store not in self.finished]

    def scratch_bytes(self, workers: int) -> int:
        """The bytes of local disk that this many workers need: each has a store and a file of a table."""
        largest = sorted((self.store_bytes.get(store, 0) for store in self.to_read()), reverse=True)[:workers]
        return sum(largest) + len(largest) * FILE_BYTES

    @property
    def table_bytes(self) -> int:
        """An estimate of the bytes that the run writes into the destination: as many as the files that it restores. The
        rows of a changelog replace others, and columns compress better than rows, so tables are usually smaller."""
        return sum(self.store_bytes.get(store, 0) for store in self.to_read())

    def all_tables(self) -> list[Table]:
        """All tables, in order."""
        return [table for of_kind in self.tables.values() for table in of_kind.values()]


def plan(gathered: RowsFacts, tables: Tables, *, run: str, now_ms: int) -> RowsPlan:
    """Plan a savepoint. `run`, `now_ms`: the id and the time of this run, unless it continues an earlier one."""
    copied = gathered.copied
    begun = Begun(
        source=copied.source_place.url,
        batch=copied.batch,
        tables=tables.value,
        state=_state(gathered),
        run=run,
        begun_at_ms=now_ms,
    )
    earlier = gathered.begun
    continues = earlier is not None and earlier.is_continued_by(begun)
    if earlier is not None and continues:
        begun = earlier
    refusals = (*misplaced(copied), *_occupied(gathered, continues=continues), *not_loadable(copied))
    planned = RowsPlan(
        begun=begun,
        newest=copied.newest,
        structure=copied.structure,
        query_id=copied.query_id,
        tables={
            kind: {one.family: one for one in tables_of(kind[0], gathered.operators[kind[0]], kind[1], layout)}
            for kind, layout in gathered.layouts.items()
        },
        stores=tuple(sorted(gathered.contents.stores)),
        finished=gathered.finished if continues else {},
        leftovers=tuple(_leftovers(gathered)) if continues else (),
        read_bytes=_read_bytes(gathered),
        store_bytes={store: _restored_bytes(gathered, chain) for store, chain in copied.chains.items()},
        refusals=refusals,
        is_complete=continues and not refusals and gathered.is_whole,
    )
    return replace(planned, refusals=(*refusals, *_too_large(gathered, planned)))


def _too_large(gathered: RowsFacts, planned: RowsPlan) -> Iterator[StatekeeperError]:
    place, needed = gathered.copied.destination_place, planned.table_bytes
    free = place.location.free
    if not planned.is_complete and free is not None and needed > free:
        yield LocalDiskFull(
            f"has {free:,} bytes of free space, but the tables need about {needed:,}; nothing was written",
            path=place.url,
            hint="free space, or choose another destination",
        )


def _leftovers(gathered: RowsFacts) -> Iterator[str]:
    existing = gathered.copied.existing
    if names.MANIFEST in existing:
        return  # another run has completed the savepoint: its files must stay
    known = {file.path for rows in gathered.finished.values() for part in rows.parts for file in part.files}
    yield from (path for path in existing if names.is_part(path) and path not in known)
    unfinished = (store for store in gathered.contents.stores if store not in gathered.finished)
    yield from (path for path in map(names.finished, unfinished) if path in existing)


def _restored_bytes(gathered: RowsFacts, chain: Chain) -> int:
    """The bytes of the base of the batch, of its tables and of the changelogs after it."""
    base = chain.bases.get(chain.head)
    if base is None:
        return 0
    files, source = chain.files, gathered.copied.source
    changelogs = sum(
        files.changelogs[version].size_bytes for version in chain.tail(chain.head) if version in files.changelogs
    )
    stored = chain.snapshots.get(base)
    tables = stored.metadata.named_files if stored is not None and stored.metadata is not None else ()
    paths = [chain.store.snapshot(base), *(chain.store.table_file(table.dfs_name) for table in tables)]
    return changelogs + sum(source[path].size_bytes for path in paths if path in source)


def _state(gathered: RowsFacts) -> str:
    """A digest of the versions of all stores: another history of the source with the same batch has another one."""
    heads = sorted(gathered.contents.stores.items())
    text = "\n".join(f"{store.folder} {version.version} {version.mark}" for store, version in heads)
    return hashlib.blake2b(f"{gathered.copied.query_id}\n{text}".encode(), digest_size=16).hexdigest()


def _read_bytes(gathered: RowsFacts) -> int:
    first = first_version(gathered.copied)
    paths = {path for chain in gathered.copied.chains.values() for path in state_of(chain, first)}
    return sum(entry.size_bytes for path, entry in gathered.copied.source.items() if path in paths)


def _occupied(gathered: RowsFacts, *, continues: bool) -> Iterator[StatekeeperError]:
    earlier, place, existing = gathered.begun, gathered.copied.destination_place, gathered.copied.existing
    if not existing or continues:
        return
    if earlier is None:
        yield DestinationNotEmpty(
            f"is not empty: it contains {min(existing)}; nothing was written",
            path=place.url,
            hint="choose an empty destination",
        )
    else:
        yield DestinationNotEmpty(
            f"contains a savepoint of {earlier.source} at batch {earlier.batch} as {earlier.tables} tables; "
            "nothing was written",
            path=place.url,
            hint=f"choose an empty destination, or delete the folder {place.url}. To complete that savepoint, run: "
            f"statekeeper savepoint {earlier.source} {place.url} --rows --batch {earlier.batch} --format {earlier.tables}",
        )
