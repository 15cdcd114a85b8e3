"""Adds runs to a table of history: each once, in one commit, with the retention of the table and the merge of small files.

    <table>/part-<uuid>.parquet             rows of one month
    <table>/_delta_log/<version>.json       the commit

*Guarantee*: a row is in the table once. The key is the root with the name of the run, which the table is asked for before
each commit. A crash before the commit leaves garbage, which a later run deletes. The table has one writer: a second one is
refused at its commit, and its next run adds what is still missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import CorruptFile, DestinationNotEmpty, RefusedAsUnsafe
from statekeeper.statestore.format import delta_log
from statekeeper.statestore.format.deletion_vectors import Positions
from statekeeper.statestore.format.delta_log import DataFile, DeltaTable
from statekeeper.statestore.format.types import arrow_schema, spark_schema_json
from statekeeper.statestore.maintenance.copies.history_tables.rows import UNFINISHED, Row, table_of
from statekeeper.statestore.maintenance.copies.state_tables import files
from statekeeper.statestore.maintenance.copies.state_tables.execute import compactable
from statekeeper.statestore.maintenance.copies.state_tables.files import FilesWriter
from statekeeper.statestore.storage import Entry, Storage

MONTH = "month"
_OPERATION = "STATEKEEPER HISTORY"
_READER, _WRITER = 1, 2
"""The versions of Delta's protocol without any feature: each reader has them."""
_HINT = "a table of history has one writer: run this command again after the other program has ended"
_ELSEWHERE = "choose an empty location"
_ROWS_AT_ONCE = 2_000

RunKey: TypeAlias = tuple[str, str]
"""The URL of a root, and the name of one of its runs; in the table `health`, a day."""


@dataclass(frozen=True)
class KeptRun:
    """A run that a table has: its outcome, and the data files with its rows."""

    outcome: str
    files: frozenset[str]

    @property
    def is_final(self) -> bool:
        return self.outcome != UNFINISHED


@dataclass(frozen=True, kw_only=True)
class HistoryTable:
    """A table of history.

    outcome   the column with the outcome of the run
    schema    the columns of this release, and those that a later one has added
    table     its newest version; None before the first commit
    listed    its files, without those of the log
    """

    name: str
    outcome: str
    storage: Storage
    schema: pa.Schema
    table: DeltaTable | None
    listed: tuple[Entry, ...]

    def kept(self, months: Iterable[str]) -> dict[RunKey, KeptRun]:
        """Read the runs of these months. Requests: two or more for each data file of them. Raises `CorruptFile`,
        `ObjectMissing`, `StorageError`."""
        found: dict[RunKey, KeptRun] = {}
        wanted = frozenset(months)
        for path, file in sorted((self.table or DeltaTable()).files.items()):
            if file.values.get(MONTH) not in wanted:
                continue
            for key, outcome in _keys(self.storage, file, self.outcome):
                others = found[key].files if key in found else frozenset[str]()
                found[key] = KeptRun(outcome, others | {path})
        return found


def opened(storage: Storage, name: str, schema: pa.Schema, outcome: str) -> HistoryTable:
    """Open a table, which need not exist. Raises `DestinationNotEmpty`, `RefusedAsUnsafe` if it is of another program, and
    as `files.read_table`."""
    table = files.read_table(storage)
    listed = storage.list("")
    of_data = tuple(entry for entry in listed if not entry.path.startswith(f"{delta_log.LOG}/"))
    if table is None:
        other = next((entry.path for entry in listed if not files.is_own(entry.path)), None)
        if other is not None:
            what = f"is no Delta table that can be read, but it contains {other}; nothing was written"
            raise DestinationNotEmpty(what, path=storage.url, hint=_ELSEWHERE)
        return HistoryTable(name=name, outcome=outcome, storage=storage, schema=schema, table=None, listed=of_data)
    known = arrow_schema(str(table.metadata.get("schemaString")))
    if table.metadata.get("partitionColumns") != [MONTH] or "run" not in known.names:
        what = "is a Delta table of another program; nothing was written"
        raise DestinationNotEmpty(what, path=storage.url, hint=_ELSEWHERE)
    versions = int(table.protocol.get("minReaderVersion", 0)), int(table.protocol.get("minWriterVersion", 0))
    is_append_only = (table.metadata.get("configuration") or {}).get("delta.appendOnly") == "true"
    if versions > (_READER, _WRITER) or versions[1] > _WRITER or is_append_only:
        what = "has features of Delta that this command does not write; nothing was written"
        raise RefusedAsUnsafe(what, path=storage.url, hint=f"remove the features from the table, or {_ELSEWHERE}")
    return HistoryTable(
        name=name,
        outcome=outcome,
        storage=storage,
        schema=_together(known, schema, storage.url),
        table=table,
        listed=of_data,
    )


def _together(known: pa.Schema, ours: pa.Schema, url: str) -> pa.Schema:
    """The columns of a table and those of this release. Raises `RefusedAsUnsafe` for a column with another type."""
    for one in ours:
        if one.name in known.names and known.field(one.name).type != one.type:
            what = f"has a column {one.name} of the type {known.field(one.name).type}; nothing was written"
            raise RefusedAsUnsafe(what, path=url, hint=_ELSEWHERE)
    return pa.schema([*known, *(one for one in ours if one.name not in known.names)])


def _keys(storage: Storage, file: DataFile, outcome: str) -> Iterator[tuple[RunKey, str]]:
    columns = ["root", "run", outcome]
    found = files.opened(storage, file)
    try:
        for number in range(found.num_row_groups):
            rows = found.read_row_group(number, columns=columns)
            for row in rows.group_by(columns).aggregate([]).to_pylist():
                yield (str(row["root"]), str(row["run"])), str(row[outcome])
    except (pa.ArrowException, OSError) as error:
        raise CorruptFile(
            f"cannot be read as a data file of the table: {error}",
            path=f"{storage.url}/{file.path}",
            hint="restore the file, or choose another location: the records below the roots fill a new table",
        ) from error


# -- plan --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Addition:
    """What a commit of a table changes.

    added     runs that the table lacks
    replaced  runs whose rows leave the table, because their outcome is known now; they are also added
    rewritten data files with such rows
    expired   data files of months that are over and older than the retention
    merged    small data files of one month
    garbage   files that no version of the last week names
    """

    added: frozenset[RunKey] = frozenset()
    replaced: frozenset[RunKey] = frozenset()
    rewritten: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    garbage: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether no commit and no deletion is needed."""
        return self == Addition()


def addition(
    found: HistoryTable,
    wanted: Mapping[RunKey, bool],
    kept: Mapping[RunKey, KeptRun],
    *,
    oldest_month: str,
    now_seconds: float,
) -> Addition:
    """Plan a commit. Pure.

    `wanted`: runs of the roots, with whether their outcome is recorded; `kept`: those that the table has; `oldest_month`:
    rows of earlier months leave the table.
    """
    replaced = {key for key, is_final in wanted.items() if is_final and key in kept and not kept[key].is_final}
    table = found.table or DeltaTable()
    expired = tuple(sorted(path for path, one in table.files.items() if (one.values.get(MONTH) or "") < oldest_month))
    rewritten = {path for key in replaced for path in kept[key].files} - set(expired)
    rest = {path: one for path, one in table.files.items() if path not in rewritten and path not in expired}
    return Addition(
        added=frozenset(key for key in wanted if key not in kept) | replaced,
        replaced=frozenset(replaced),
        rewritten=tuple(sorted(rewritten)),
        expired=expired,
        merged=tuple(one.path for one in compactable(replace(table, files=rest))),
        garbage=tuple(_garbage(table, found.listed, now_seconds)),
    )


def _garbage(table: DeltaTable, listed: Iterable[Entry], now_seconds: float) -> Iterator[str]:
    """Yield the own files that left the table a week ago, and those that a dead run left. Readers may use the former until
    then."""
    week = delta_log.TOMBSTONE_MS / 1000
    left = {path: int(one.get("deletionTimestamp") or 0) / 1000 for (path, _), one in table.tombstones.items()}
    for entry in listed:
        since = max(left.get(entry.path, 0.0), entry.modified_at_seconds or now_seconds)
        if entry.path not in table.files and files.is_own(entry.path) and now_seconds - since > week:
            yield entry.path


# -- execution ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Written:
    """The outcome of a commit. `version`: of the table; -1 if it does not exist yet."""

    rows: int = 0
    replaced_runs: int = 0
    expired_rows: int = 0
    merged_files: int = 0
    deleted_files: int = 0
    version: int = -1


@dataclass(kw_only=True)
class HistoryWriter:
    """Writes the rows of a table to data files, and commits them. `folder`: for the files, before they are uploaded."""

    found: HistoryTable
    planned: Addition
    folder: Path
    clock: Clock
    ids: Ids
    _writer: FilesWriter = field(init=False)
    _added: set[RunKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._writer = self._files_writer()

    def add(self, key: RunKey, rows: Iterable[Row]) -> None:
        """Add the rows of a run, unless the table has them. At most `_ROWS_AT_ONCE` of them are in memory."""
        if key in self.planned.added:
            self._added.add(key)
            left = iter(rows)
            while block := list(islice(left, _ROWS_AT_ONCE)):
                self._writer.add(table_of(block, self.found.schema))

    def commit(self) -> Written:
        """Commit what was added. A run that was not added keeps its former rows. Raises `RefusedAsUnsafe` if another
        program commits meanwhile."""
        planned, table = self.planned, self.found.table or DeltaTable()
        rows, replaced = self._writer.rows, planned.replaced & self._added
        rewritten = planned.rewritten if replaced else ()
        removed = [table.files[path] for path in (*rewritten, *planned.expired)]
        small = [table.files[path] for path in planned.merged]
        for path in rewritten:
            self._keep_rest(table.files[path], replaced)
        merging = self._files_writer()
        for file in small:
            self._copy(file, None, merging)
        if small:
            files.require_all(merging.rows, small, self.found.storage.url)
        made, merged, now_ms = self._writer.finish(), merging.finish(), int(self.clock.now_seconds() * 1000)
        actions = [
            *self._described(table, now_ms),
            *(file.remove(now_ms, changes_data=True) for file in removed),
            *(file.remove(now_ms, changes_data=False) for file in small),
            *(file.add(changes_data=True) for file in made),
            *(file.add(changes_data=False) for file in merged),
        ]
        if made or removed or small or self.found.table is None:
            # Also without a row, so that a query of the table works from the first day.
            head = {"timestamp": now_ms, "operation": _OPERATION, "engineInfo": "Statekeeper", "isBlindAppend": False}
            actions = [{"commitInfo": {**head, "operationParameters": {"rows": str(rows)}}}, *actions]
            table = files.commit(self.found.storage, table, actions, hint=_HINT)
            files.write_checkpoint(self.found.storage, table, now_ms)
        if planned.garbage:
            self.found.storage.delete(list(planned.garbage))
        return Written(
            rows=rows,
            replaced_runs=len(replaced),
            expired_rows=sum(max(0, one.rows) for one in removed if one.path in planned.expired),
            merged_files=len(small),
            deleted_files=len(planned.garbage),
            version=table.version,
        )

    def _files_writer(self) -> FilesWriter:
        return FilesWriter(
            self.found.storage,
            self.found.schema,
            [MONTH],
            self.folder,
            clock=self.clock,
            ids=self.ids,
            is_plain=True,
        )

    def _keep_rest(self, file: DataFile, replaced: AbstractSet[RunKey]) -> None:
        """Write the rows of a data file again, without those of replaced runs."""
        rows = files.opened(self.found.storage, file).read(columns=["root", "run"]).to_pylist()
        positions = [number for number, row in enumerate(rows) if (row["root"], row["run"]) not in replaced]
        self._copy(file, np.array(positions, np.int64), self._writer)

    def _copy(self, file: DataFile, positions: Positions | None, writer: FilesWriter) -> None:
        for rows in files.rows_at(self.found.storage, file, positions, self.found.schema):
            writer.add(rows)

    def _described(self, table: DeltaTable, now_ms: int) -> Iterator[dict[str, Any]]:
        """The protocol of a new table, and its metadata if the columns are not those that it has."""
        schema = spark_schema_json(self.found.schema)
        if table.version < 0:
            yield {"protocol": {"minReaderVersion": _READER, "minWriterVersion": _WRITER}}
        if table.metadata.get("schemaString") != schema:
            yield {
                "metaData": {
                    "id": str(table.metadata.get("id") or self.ids.fresh()),
                    "name": self.found.name,
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": schema,
                    "partitionColumns": [MONTH],
                    "configuration": dict(table.metadata.get("configuration") or {}),
                    "createdTime": int(table.metadata.get("createdTime") or now_ms),
                }
            }
