"""Incremental reader of a Delta table's log: the batches that the table holds, and changes by others.

Opening a Delta table reads its whole state, every file of it, and a sink is asked twice a batch. Here the state is read
once. From then on each look reads the beginning of the newest commit that is known, to see that it is still the same
table, and the commits that came since: 1 + 1 + new commits requests, whatever the table holds.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_HEAD_BYTES = 4096
_COMMITS = 100
"""Number of newest commits in memory; older ones are read from the table again."""


@dataclass(frozen=True, kw_only=True)
class TableMetadata:
    """The table's properties, the names of its columns, and its id; a table that replaces it has another id. `schema`: the
    columns as JSON."""

    id: str
    configuration: Mapping[str, str]
    columns: tuple[str, ...]
    schema: str
    protocols: int = 0
    """The number of changes of the protocol since the table was opened."""


class DeltaLog:
    """The log of the table at a path. Call `look` first."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._path = path
        self._options = dict(options) or None
        self._known: _Known | None = None

    def look(self) -> KnownTable | None:
        """Return the current table; None if there is none."""
        if self._known is None or not self._follow(self._known):
            self._known = self._opened()
        return None if self._known is None else KnownTable(self._known, self._table)

    def _opened(self) -> _Known | None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._path, self._options):
            return None
        table = self._table()
        head = self._read(table.version(), _HEAD_BYTES)
        if head is None:
            return None
        metadata = table.metadata()
        columns = tuple(field.name for field in table.schema().fields)
        metadata = TableMetadata(
            id=str(metadata.id),
            configuration=dict(metadata.configuration),
            columns=columns,
            schema=table.schema().to_json(),
        )
        known = _Known(version=table.version(), head=head, metadata=metadata)
        known.commits.extend(table.history(_COMMITS))
        known.has_all = len(known.commits) < _COMMITS
        return known

    def _follow(self, known: _Known) -> bool:
        """Read the commits since the last call. Returns False if the table was replaced."""
        if self._read(known.version, _HEAD_BYTES) != known.head:
            return False
        while (data := self._read(known.version + 1, None)) is not None:
            known.add(data)
        return True

    def _read(self, version: int, length: int | None) -> bytes | None:
        """Return a commit of the log, or its first bytes; None if the version does not exist."""
        import pyarrow.fs
        from deltalake.exceptions import TableNotFoundError
        from deltalake.fs import DeltaStorageHandler

        try:
            files = pyarrow.fs.PyFileSystem(DeltaStorageHandler(self._path, self._options))
            with files.open_input_file(f"_delta_log/{version:020}.json") as file:
                return bytes(file.read() if length is None else file.read_at(min(length, file.size()), 0))
        except (FileNotFoundError, TableNotFoundError):
            return None

    def _table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self._path, storage_options=self._options)


@dataclass(kw_only=True)
class _Known:
    version: int
    head: bytes
    metadata: TableMetadata
    transactions: dict[str, int | None] = field(default_factory=dict)
    commits: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_COMMITS))
    has_all: bool = False
    """Whether `commits` hold the whole log, which may begin after version 0."""

    def add(self, data: bytes) -> None:
        """Apply the next commit: one JSON action per line."""
        self.version += 1
        self.has_all = self.has_all and len(self.commits) < _COMMITS
        self.head = data[:_HEAD_BYTES]
        info: dict[str, Any] = {}
        for line in data.splitlines():
            # Most lines are files with long statistics, which are skipped.
            if line.startswith(b'{"protocol"'):
                self.metadata = replace(self.metadata, protocols=self.metadata.protocols + 1)
            if not line.startswith((b'{"txn"', b'{"metaData"', b'{"commitInfo"')):
                continue
            action = json.loads(line)
            if "commitInfo" in action:
                info = action["commitInfo"]
            elif "metaData" in action:
                found = action["metaData"]
                schema = str(found["schemaString"])
                columns = tuple(str(field["name"]) for field in json.loads(schema)["fields"])
                configuration = dict(found.get("configuration") or {})
                self.metadata = TableMetadata(
                    id=str(found["id"]),
                    configuration=configuration,
                    columns=columns,
                    schema=schema,
                    protocols=self.metadata.protocols,
                )
            else:
                self.transactions[str(action["txn"]["appId"])] = int(action["txn"]["version"])
        self.commits.appendleft({**info, "version": self.version})


@dataclass(frozen=True)
class KnownTable:
    """The known part of a table, with the methods of `deltalake.DeltaTable`."""

    _known: _Known
    _open: Any

    def version(self) -> int:
        """Return the newest version."""
        return self._known.version

    def metadata(self) -> TableMetadata:
        """Return id, properties and columns."""
        return self._known.metadata

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest transaction version of an application; None if it has none."""
        known = self._known.transactions
        if app_id not in known:
            # First call for this application: the next look reads newer transactions again.
            known[app_id] = self.opened().transaction_version(app_id)
        return known[app_id]

    def history(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, newest first."""
        commits = self._known.commits
        if limit <= len(commits) or self._known.has_all:
            return list(commits)[:limit]
        found: list[dict[str, Any]] = self.opened().history(limit)
        return found

    def opened(self) -> Any:
        """Return the `deltalake.DeltaTable` with all of its state."""
        return self._open()
