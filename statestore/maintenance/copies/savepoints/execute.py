"""Writes a savepoint with rows."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.errors import AlreadyExists, DestinationNotEmpty, StatekeeperError
from statekeeper.statestore.contents.rows import Contents, Layout
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.copies.savepoints.gather import RowsFacts
from statekeeper.statestore.maintenance.copies.savepoints.manifest import Summary, encode_manifest, summary_of
from statekeeper.statestore.maintenance.copies.savepoints.plan import RowsPlan, Tables
from statekeeper.statestore.maintenance.copies.savepoints.record import File, StoreRows
from statekeeper.statestore.maintenance.copies.savepoints.write import (
    Table,
    encode_commit,
    table_of,
    write_empty,
    write_store,
)
from statekeeper.statestore.maintenance.executors import Executor, Place
from statekeeper.statestore.storage import Storage


def begin(destination: Storage, planned: RowsPlan) -> None:
    """Write the first record of the destination. Raises `DestinationNotEmpty` if another process has begun another
    savepoint there since the plan; `StorageError`."""
    try:
        destination.create(names.BEGUN, planned.begun.encoded())
    except AlreadyExists as error:
        raise DestinationNotEmpty(
            "another process has begun a savepoint here; nothing was written",
            path=destination.url,
            hint="choose an empty destination, or wait for the other process",
        ) from error


@dataclass(frozen=True, kw_only=True)
class WriteEach:
    """The task of a store. Two tries, on two hosts, give its files the same names and the same bytes.

    `layouts`: by operator and store name; `operators`: their names; `wrote`: of an executor in this process, see `execute`.
    """

    contents: Contents
    layouts: Mapping[tuple[int, str], Layout]
    operators: Mapping[int, str]
    destination: Storage
    wrote: Callable[[int], None] | None = None

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.contents.storage, self.destination)

    def __call__(self, store: StorePath, place: Place) -> StoreRows:
        found = write_store(
            self.contents,
            store,
            self.layouts[store.operator, store.store],
            self.operators[store.operator],
            self.destination,
            scratch=place.folder,
            clock=place.clock,
            ids=place.ids,
            wrote=self.wrote or (lambda rows: None),
        )
        self.destination.create(found.path, found.encoded())
        return found


def execute(
    gathered: RowsFacts,
    destination: Storage,
    planned: RowsPlan,
    *,
    executor: Executor,
    scratch: Path,
    wrote: Callable[[int], None],
    finished: Callable[[StoreRows], None],
) -> Summary:
    """Write the rows of all stores after `begin`.

    Call `wrote` after each piece with its number of rows, and `finished` after each store, from one thread at a time. The
    pieces on another host are those of a store together. *Guarantee*: the destination is a savepoint only after the last
    file, the manifest. The source is only read. Raises the first error of a store, see `write_store`; the stores that are
    being written then are completed.
    """
    destination.delete(planned.leftovers)
    done, errors, counting = dict(planned.finished), list[StatekeeperError](), threading.Lock()

    def counted(rows: int) -> None:
        with counting:
            wrote(rows)

    def ended(store: StorePath, outcome: StoreRows | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            errors.append(outcome)
            raise errors[0]
        done[store] = outcome
        if not executor.is_here:
            counted(outcome.rows)
        finished(outcome)

    task = WriteEach(
        contents=gathered.contents,
        layouts=gathered.layouts,
        operators=gathered.operators,
        destination=destination,
        wrote=counted if executor.is_here else None,
    )
    executor.map(task, planned.to_read(), ended)
    return _complete(gathered, destination, planned, dict(sorted(done.items())), scratch)


def _complete(
    gathered: RowsFacts,
    destination: Storage,
    planned: RowsPlan,
    done: Mapping[StorePath, StoreRows],
    scratch: Path,
) -> Summary:
    tables = {table.folder: table for table in planned.all_tables()}
    tables |= {table.folder: table for table in _found(gathered, done) if table.folder not in tables}
    files: dict[str, list[File]] = defaultdict(list)
    for rows in done.values():
        for part in rows.parts:
            files[part.table] += part.files
    for folder, table in tables.items():
        if not files[folder]:
            files[folder].append(write_empty(table, destination, scratch))
        if planned.begun.tables == Tables.DELTA:
            commit = encode_commit(folder, table.schema, files[folder], planned.begun)
            destination.create(names.delta_commit(folder), commit)
    manifest = encode_manifest(gathered, planned, tables, done)
    destination.create(names.MANIFEST, manifest)
    return summary_of(manifest)


def _found(gathered: RowsFacts, done: Mapping[StorePath, StoreRows]) -> list[Table]:
    """The tables of families that no schema names, of stores whose schema cannot be read."""
    return [
        table_of(
            store.operator,
            gathered.operators[store.operator],
            store.store,
            part.family,
            gathered.layouts[store.operator, store.store],
        )
        for store, rows in done.items()
        for part in rows.parts
    ]
