"""Writes a savepoint with rows."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import AlreadyExists, DestinationNotEmpty, StatekeeperError
from statekeeper.statestore.base.workers import in_pool
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


def execute(
    gathered: RowsFacts,
    destination: Storage,
    planned: RowsPlan,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    workers: int,
    wrote: Callable[[int], None],
    finished: Callable[[StoreRows], None],
) -> Summary:
    """Write the rows of all stores after `begin`.

    Call `wrote` after each piece with its number of rows, and `finished` after each store, from one thread at a time.
    *Guarantee*: the destination is a savepoint only after the last file, the manifest. The source is only read. Raises the
    first error of a store; see `write_store`.
    """
    destination.delete(planned.leftovers)
    done, errors, counting = dict(planned.finished), list[StatekeeperError](), threading.Lock()

    def counted(rows: int) -> None:
        with counting:
            wrote(rows)

    def write(store: StorePath) -> StoreRows | None:
        if errors:
            return None
        found = write_store(
            gathered.contents,
            store,
            gathered.layouts[store.operator, store.store],
            gathered.operators[store.operator],
            destination,
            scratch=scratch,
            clock=clock,
            ids=ids,
            wrote=counted,
        )
        destination.create(found.path, found.encoded())
        return found

    def ended(store: StorePath, outcome: StoreRows | StatekeeperError | None) -> None:
        if isinstance(outcome, StatekeeperError):
            errors.append(outcome)
        elif outcome is not None:
            done[store] = outcome
            finished(outcome)

    in_pool(write, planned.to_read(), ended, workers=workers)
    for error in errors:
        raise error
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
