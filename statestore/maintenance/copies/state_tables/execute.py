"""Brings a table of state to a batch: writes files, then one commit.

    part-<uuid>.parquet ...              new rows
    deletion_vector_<uuid>.bin           former rows of changed keys; without deletion vectors, their files are rewritten
    _change_data/cdc-<uuid>.parquet      the change data feed
    _delta_log/<version>.json            the commit: all of these, the transaction, and the record of the table

*Guarantee*: a crash before the commit leaves garbage, and after it nothing to do. A rerun reads the record of the table, so
that each batch is published exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format import delta_log
from statekeeper.statestore.format.delta_log import DataFile, DeltaTable
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.maintenance.copies.state_tables import files
from statekeeper.statestore.maintenance.copies.state_tables.changes import (
    Changed,
    Found,
    RangeDeleted,
    Spool,
    StateReader,
    find,
)
from statekeeper.statestore.maintenance.copies.state_tables.columns import Columns
from statekeeper.statestore.maintenance.copies.state_tables.files import FilesWriter, Removals
from statekeeper.statestore.maintenance.copies.state_tables.gather import TableFacts
from statekeeper.statestore.maintenance.copies.state_tables.model import DOMAIN, TableRecord, Way, application
from statekeeper.statestore.maintenance.copies.state_tables.plan import TablePlan
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.scratch import work_folder

_OPERATION = "STATEKEEPER PUBLISH"
_COMPACTION = "STATEKEEPER COMPACT"
_INSERT, _BEFORE, _AFTER, _DELETE = "insert", "update_preimage", "update_postimage", "delete"
_SMALL_FILES = 8
"""So many data files of about the same size are merged. A row is rewritten once for each factor of this size."""
_MOST_DELETED = 0.5
"""A data file with more deleted rows than this part is rewritten."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """The outcome. `way`: as executed; `rows`: of the table; `version`: of the table; `records`: read from changelogs."""

    batch: int
    way: Way
    inserted: int
    updated: int
    deleted: int
    rows: int
    version: int
    files: int
    records: int = 0
    compacted: int = 0


@dataclass(frozen=True)
class Progress:
    """A step: the work, and its number of rows."""

    what: str
    rows: int


def execute(
    facts: TableFacts,
    destination: Storage,
    planned: TablePlan,
    *,
    before_images: bool,
    scratch: Path,
    memory_bytes: int,
    clock: Clock,
    ids: Ids,
    told: Callable[[Progress], None],
) -> Published:
    """Execute a plan. `before_images`: the feed has the former rows of changed keys, and the values of deleted ones.

    Raises `RefusedAsUnsafe` if another program commits meanwhile; `VersionNotLoadable`, `ObjectMissing`, `CorruptFile`,
    `LocalDiskFull`, `StorageError`.
    """
    assert planned.columns is not None
    assert planned.record is not None
    assert facts.contents is not None
    with work_folder(scratch, "publish") as folder:
        run = _Run(
            facts=facts,
            storage=destination,
            columns=planned.columns,
            record=planned.record,
            table=planned.table or DeltaTable(),
            folder=folder,
            before_images=before_images,
            clock=clock,
            ids=ids,
            reader=StateReader(
                contents=facts.contents,
                layout=facts.layouts[planned.columns.chosen.kind],
                columns=planned.columns,
                scratch=scratch,
                clock=clock,
                ids=ids,
            ),
            told=told,
        )
        match planned.way:
            case Way.LOAD | Way.RELOAD:
                made = run.load(planned.way, planned.stores)
            case Way.CHANGES:
                made = run.changes(planned, memory_bytes)
            case Way.COMPARISON:
                made = run.comparison(planned.stores, memory_bytes)
            case Way.NOTHING:
                raise ValueError("a plan without work is not executed")
        return run.compacted(made)


@dataclass(kw_only=True)
class _Run:
    facts: TableFacts
    storage: Storage
    columns: Columns
    record: TableRecord
    table: DeltaTable
    folder: Path
    before_images: bool
    clock: Clock
    ids: Ids
    reader: StateReader
    told: Callable[[Progress], None]

    # -- the ways ------------------------------------------------------------------------------------------------------

    def load(self, way: Way, stores: Sequence[StorePath]) -> Published:
        """Write all rows. A reload removes the former files in the same commit, and its feed shows all rows as new."""
        writer, batch = self._writer(), self.record.position.batch
        for store in stores:
            before = writer.rows
            for shaped in self.reader.rows(store):
                live = shaped.take(~shaped.deleted) if shaped.deleted.any() else shaped
                rows = self._with_times(live.rows, np.full(live.rows.num_rows, batch, np.int64))
                writer.add(files.with_identities(rows, live.keys, live.values))
            self.told(Progress(str(store), writer.rows - before))
        made = writer.finish()
        former = self.table.files.values()
        now_ms = self._now_ms()
        actions = [
            *self._described(now_ms),
            *(file.remove(now_ms, changes_data=True) for file in former),
            *(file.add(changes_data=True) for file in made),
        ]
        deleted = sum(file.live_rows for file in former)
        self._commit(_OPERATION, actions, now_ms)
        return self._outcome(way, inserted=writer.rows, deleted=deleted)

    def changes(self, planned: TablePlan, memory_bytes: int) -> Published:
        """Apply the last write of each key in the changelogs."""
        spool, records = Spool(self.folder / "rows.arrow", self.columns), 0
        try:
            for store, steps in planned.changelogs:
                if steps:
                    versions = [one.version for one in steps]
                    count = self.reader.spool_changes(spool, store, self.facts.bases[store], versions)
                    records += count
                    self.told(Progress(str(store), count))
        except RangeDeleted:
            return self.comparison(planned.stores, memory_bytes)
        return replace(self._apply(Way.CHANGES, spool), records=records)

    def comparison(self, stores: Sequence[StorePath], memory_bytes: int) -> Published:
        """Apply the differences between the table and the state."""
        spool = Spool(self.folder / "differences.arrow", self.columns)

        def told(store: StorePath, rows: int) -> None:
            self.told(Progress(str(store), rows))

        self.reader.spool_differences(spool, self.storage, self.table, stores, memory_bytes, told)
        return self._apply(Way.COMPARISON, spool)

    # -- changes of the table ------------------------------------------------------------------------------------------

    def _apply(self, way: Way, spool: Spool) -> Published:
        changed = spool.finish()
        found = find(self.storage, self.table, changed, lambda: self.told(Progress("table", 0)))
        existed = np.zeros(len(changed), bool)
        existed[found.key] = True
        same = np.zeros(len(changed), bool)
        same[found.key] = found.values == changed.values[found.key]
        same &= existed & ~changed.is_deleted
        acts = ~same & (existed | ~changed.is_deleted)
        removals = Removals()
        leaving = acts[found.key]
        for number in np.unique(found.file[leaving]).tolist():
            removals.add(found.files[number].path, found.positions[leaving & (found.file == number)])
        writer, feed = self._writer(), self._writer(is_feed=True)
        with_lists = len(np.unique(found.key)) < len(found.key) or _has_lists(changed)
        if self.before_images or with_lists:
            self._write_former_rows(feed, found, acts, changed, as_deletions=with_lists)
        kinds = self._write_rows(spool, changed, acts, existed, writer, feed, with_lists=with_lists)
        made, of_feed = writer.finish(), feed.finish()
        now_ms = self._now_ms()
        replaced, replacing = self._removed(removals)
        actions = [
            *self._described(now_ms),
            *(file.remove(now_ms, changes_data=True) for file in replaced),
            *(file.add(changes_data=True) for file in (*replacing, *made)),
            *map(files.feed_action, of_feed),
        ]
        self._commit(_OPERATION, actions, now_ms)
        return self._outcome(way, **kinds)

    def _write_rows(
        self,
        spool: Spool,
        changed: Changed,
        acts: npt.NDArray[np.bool_],
        existed: npt.NDArray[np.bool_],
        writer: FilesWriter,
        feed: FilesWriter,
        *,
        with_lists: bool,
    ) -> dict[str, int]:
        """Write the new rows and the feed; return the numbers of keys by kind."""
        inserted = acts & ~changed.is_deleted & ~existed
        updated = acts & ~changed.is_deleted & existed
        deleted = acts & changed.is_deleted
        first = 0
        for batch in spool.rows():
            of_key = changed.key_of_row[first : first + batch.num_rows]
            first += batch.num_rows
            kept = np.flatnonzero((of_key >= 0) & acts[of_key])
            if not len(kept):
                continue
            of_key = of_key[kept]
            some = batch.take(pa.array(kept))
            written_in = some.column("batch").to_numpy()
            rows = self._with_times(some.select(self.columns.state_schema.names), written_in)
            live = ~changed.is_deleted[of_key]
            if live.any():
                of_live = rows.filter(pa.array(live))
                writer.add(files.with_identities(of_live, changed.keys[of_key[live]], changed.values[of_key[live]]))
                kinds = np.where(updated[of_key[live]] & (not with_lists), _AFTER, _INSERT)
                feed.add(files.feed_rows(of_live, pa.array(kinds.tolist(), pa.string())))
            gone = deleted[of_key]
            if gone.any() and not (self.before_images or with_lists):
                of_gone = self.columns.without_values(rows.filter(pa.array(gone)))
                feed.add(files.feed_rows(of_gone, pa.array([_DELETE] * of_gone.num_rows, pa.string())))
        return {"inserted": int(inserted.sum()), "updated": int(updated.sum()), "deleted": int(deleted.sum())}

    def _write_former_rows(
        self,
        feed: FilesWriter,
        found: Found,
        acts: npt.NDArray[np.bool_],
        changed: Changed,
        *,
        as_deletions: bool,
    ) -> None:
        """Write the rows that leave the table to the feed."""
        for number in np.unique(found.file).tolist():
            of_file = np.flatnonzero((found.file == number) & acts[found.key])
            of_file, done = of_file[np.argsort(found.positions[of_file])], 0
            positions = found.positions[of_file]
            for rows in files.rows_at(self.storage, found.files[number], positions, self.columns.schema):
                keys = found.key[of_file[done : done + rows.num_rows]]
                done += rows.num_rows
                kinds = np.where(changed.is_deleted[keys] | as_deletions, _DELETE, _BEFORE)
                feed.add(files.feed_rows(rows, pa.array(kinds.tolist(), pa.string())))

    def _removed(self, removals: Removals) -> tuple[list[DataFile], list[DataFile]]:
        """The data files that lose rows, and the files in place of them: the same with vectors, or new ones."""
        replaced, marked, replacing = list[DataFile](), list[tuple[DataFile, npt.NDArray[np.int64]]](), list[DataFile]()
        for path in sorted(removals.positions):
            file, positions = self.table.files[path], removals.of(path)
            replaced.append(file)
            if file.live_rows == len(positions):
                continue
            if self.record.chosen.vectors:
                marked.append((file, positions))
                continue
            writer = self._writer()
            for rows in files.live_rows(self.storage, file, self.columns.schema, positions):
                writer.add(rows)
            replacing += writer.finish()
        return replaced, [*replacing, *files.with_vectors(self.storage, marked, self.ids)]

    # -- compaction ----------------------------------------------------------------------------------------------------

    def compacted(self, made: Published) -> Published:
        """Merge small data files, and rewrite those with many deleted rows, in a commit that changes no data. Write a
        checkpoint of the log if it is due."""
        chosen = compactable(self.table)
        if chosen:
            writer = self._writer()
            for file in chosen:
                nothing = np.zeros(0, np.int64)
                for rows in files.live_rows(self.storage, file, self.columns.schema, nothing):
                    writer.add(rows)
                self.told(Progress(file.path, file.live_rows))
            files.require_all(writer.rows, chosen, self.storage.url)
            merged, now_ms = writer.finish(), self._now_ms()
            actions = [
                *(file.remove(now_ms, changes_data=False) for file in chosen),
                *(file.add(changes_data=False) for file in merged),
            ]
            try:
                self._commit(_COMPACTION, actions, now_ms)
            except RefusedAsUnsafe:
                # The batch is published already. Another program was first, so the next run compares and compacts.
                return made
        files.write_checkpoint(self.storage, self.table, self._now_ms())
        return replace(made, version=self.table.version, files=len(self.table.files), compacted=len(chosen))

    # -- the commit ----------------------------------------------------------------------------------------------------

    def _commit(self, operation: str, actions: Sequence[Mapping[str, Any]], now_ms: int) -> None:
        batch = self.record.position.batch
        record = replace(self.record, version=self.table.version + 1)
        head = [
            {
                "commitInfo": {
                    "timestamp": now_ms,
                    "operation": operation,
                    "operationParameters": {"batch": str(batch), "root": self.record.root},
                    "engineInfo": "Statekeeper",
                    "isBlindAppend": False,
                }
            },
            {"txn": {"appId": application(self.record.query), "version": batch, "lastUpdated": now_ms}},
            {"domainMetadata": {"domain": DOMAIN, "configuration": record.encoded(), "removed": False}},
        ]
        self.table = files.commit(self.storage, self.table, [*head, *actions])

    def _described(self, now_ms: int) -> Iterator[dict[str, Any]]:
        """The protocol and metadata of the table, if they are not those that it has."""
        schema = spark_schema_json(self.columns.schema)
        chosen, held = self.record.chosen, self.table.metadata
        protocol = delta_log.protocol_action(self.columns.schema, vectors=chosen.vectors)
        if self.table.version < 0:
            yield protocol
        elif missing := _raised(self.table.protocol, protocol["protocol"]):
            yield {"protocol": missing}
        partition_by = list(chosen.partition_by)
        configuration = dict(held.get("configuration") or {})
        properties = {
            "delta.enableChangeDataFeed": "true",
            "delta.enableDeletionVectors": "true" if chosen.vectors else "false",
        }
        is_same = held.get("schemaString") == schema and list(held.get("partitionColumns") or ()) == partition_by
        if is_same and properties.items() <= configuration.items():
            return
        yield {
            "metaData": {
                "id": str(held.get("id") or self.ids.fresh()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": partition_by,
                "configuration": {**configuration, **properties},
                "createdTime": int(held.get("createdTime") or now_ms),
            }
        }

    def _outcome(self, way: Way, *, inserted: int = 0, updated: int = 0, deleted: int = 0) -> Published:
        return Published(
            batch=self.record.position.batch,
            way=way,
            inserted=inserted,
            updated=updated,
            deleted=deleted,
            rows=self.table.live_rows,
            version=self.table.version,
            files=len(self.table.files),
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _writer(self, *, is_feed: bool = False) -> FilesWriter:
        return FilesWriter(
            self.storage,
            self.columns.schema,
            self.record.chosen.partition_by,
            self.folder,
            clock=self.clock,
            ids=self.ids,
            is_feed=is_feed,
        )

    def _with_times(self, rows: pa.RecordBatch, batches: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Append the columns with the batch and with the time of its commit."""
        known = {batch: self.facts.committed_ms.get(batch) for batch in np.unique(batches).tolist()}
        times = [known[batch] for batch in batches.tolist()]
        at = pa.array(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
        columns = {name: rows.column(name) for name in rows.schema.names}
        columns |= {self.columns.batch: pa.array(batches, pa.int64()), self.columns.committed_at: at}
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self.columns.schema.names], schema=self.columns.schema
        )

    def _now_ms(self) -> int:
        return int(self.clock.now_seconds() * 1000)


def _has_lists(changed: Changed) -> bool:
    of_rows = changed.key_of_row[changed.key_of_row >= 0]
    return len(np.unique(of_rows)) < len(of_rows)


def _raised(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The protocol of a table with features that it lacks; None if it has all."""
    missing = [
        name
        for kind in ("readerFeatures", "writerFeatures")
        for name in wanted.get(kind) or ()
        if name not in (held.get(kind) or ())
    ]
    if not missing:
        return None
    return {
        "minReaderVersion": max(int(held["minReaderVersion"]), int(wanted["minReaderVersion"])),
        "minWriterVersion": max(int(held["minWriterVersion"]), int(wanted["minWriterVersion"])),
        **{
            kind: sorted({*(held.get(kind) or ()), *(wanted.get(kind) or ())})
            for kind in ("readerFeatures", "writerFeatures")
            if held.get(kind) or wanted.get(kind)
        },
    }


def compactable(table: DeltaTable) -> list[DataFile]:
    """Choose the data files to merge: all of about one size and one partition if there are `_SMALL_FILES`, and those with
    many deleted rows. A file whose number of rows the log does not have stays as it is. Deterministic."""
    chosen: dict[str, DataFile] = {}
    tiers: dict[tuple[tuple[tuple[str, str | None], ...], int], list[DataFile]] = {}
    for path in sorted(table.files):
        file = table.files[path]
        if file.rows < 0:
            continue
        if file.live_rows < file.rows * (1 - _MOST_DELETED):
            chosen[path] = file
        elif file.live_rows < files.FILE_ROWS / 2 and file.size_bytes < files.FILE_BYTES / 2:
            tier = max(_SMALL_FILES, file.live_rows).bit_length() // 3
            tiers.setdefault((tuple(sorted(file.values.items())), tier), []).append(file)
    for found in tiers.values():
        if len(found) >= _SMALL_FILES:
            chosen |= {file.path: file for file in found}
    return [chosen[path] for path in sorted(chosen)]
