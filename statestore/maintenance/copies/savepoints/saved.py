"""Reads the manifest of a savepoint with rows, to load it. Unlike `manifest`, it needs every field."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile, NotACheckpoint, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.untrusted import (
    BAD_VALUES,
    count,
    digest,
    json_object,
    partition_count,
    plain_number,
    store_name,
    text,
)
from statekeeper.statestore.maintenance.copies.savepoints.record import MANIFEST, File, Part
from statekeeper.statestore.maintenance.copies.savepoints.write import digest_sum
from statekeeper.statestore.storage import Storage, read_or_none

_FORMAT = 1

Columns = tuple[tuple[str, str, bool], ...]
"""Name, Arrow type and nullability of each column."""


@dataclass(frozen=True)
class SavedPart:
    """The rows of one partition of a table."""

    partition: int
    part: Part


@dataclass(frozen=True, kw_only=True)
class SavedTable:
    """The table of one column family of an operator's store, or of a store without families.

    problem     the reason why it has bytes instead of typed columns; None if it has typed columns
    key, value  the columns of the state's schema
    partitions  the number of partitions of the operator
    parts       those with rows
    """

    operator: int
    operator_name: str
    store: str
    family: str | None
    problem: str | None
    key: Columns
    value: Columns
    partitions: int
    parts: tuple[SavedPart, ...]

    @property
    def place(self) -> tuple[int, str, str | None]:
        """Operator, store and family."""
        return self.operator, self.store, self.family

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(one.part.rows for one in self.parts)

    @property
    def state_bytes(self) -> int:
        """The size of all keys and values in the store."""
        return sum(one.part.state_bytes for one in self.parts)

    @property
    def file_bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for one in self.parts for file in one.part.files)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A complete savepoint with rows.

    batch         the batch of the source
    watermark_ms  the watermark with which the source continued after the batch
    late_watermark_ms  the watermark of the batch, which decides which rows of the next one are late; None if unknown
    key_groups    of an own root; None for a native checkpoint
    identity      a digest of the manifest
    """

    url: str
    batch: int
    origin: Origin
    watermark_ms: int
    late_watermark_ms: int | None
    key_groups: int | None
    tables: tuple[SavedTable, ...]
    identity: str

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(table.rows for table in self.tables)


def read_saved(storage: Storage) -> Saved:
    """Read the manifest, and compare the sizes of all files with it. Requests: one, and a listing.

    Raises `NotACheckpoint` without a manifest, `CorruptFile` for an invalid one or a file of another size, `ObjectMissing`
    for a missing file, `UnknownFormatVersion` for a manifest of a later release, `StorageError`.
    """
    data = read_or_none(storage, names.MANIFEST)
    if data is None:
        raise NotACheckpoint(
            f"is not a complete savepoint with rows: it has no {names.MANIFEST}",
            path=storage.url,
            hint="to make one, run: statekeeper savepoint ROOT DESTINATION --rows",
        )
    try:
        body = json_object(data, names.MANIFEST)
        if count(body["format"]) > _FORMAT:
            raise UnknownFormatVersion(
                f"has manifest format {body['format']}; this release knows only format {_FORMAT}; nothing was written",
                path=names.MANIFEST,
                hint="upgrade Statekeeper",
            )
        saved = _saved(body, storage.url, hashlib.sha256(data).hexdigest())
    except BAD_VALUES as error:
        raise MANIFEST.invalid(error, names.MANIFEST) from error
    present = {entry.path: entry.size_bytes for entry in storage.list(names.ROWS)}
    for table in saved.tables:
        for one in table.parts:
            for file in one.part.files:
                require_size(file, present.get(file.path))
    return saved


def require_size(file: File, size_bytes: int | None) -> None:
    """Require the size of a file in the manifest. `size_bytes`: None for a missing file. Raises `ObjectMissing`,
    `CorruptFile`."""
    hint = "restore the file from a backup, or make the savepoint again"
    if size_bytes is None:
        raise ObjectMissing("is in the manifest of the savepoint, but it is missing", path=file.path, hint=hint)
    if size_bytes != file.bytes:
        raise CorruptFile(
            f"has {size_bytes:,} bytes; the manifest of the savepoint has {file.bytes:,}", path=file.path, hint=hint
        )


def columns_of(schema: pa.Schema) -> Columns:
    """Return the columns of a schema as a manifest records them."""
    return tuple((field.name, str(field.type), field.nullable) for field in schema)


def _saved(body: dict[str, Any], url: str, identity: str) -> Saved:
    if body["format"] != _FORMAT:
        raise ValueError(f"format {body['format']!r}")
    if "watermark_ms" not in body:
        raise ValueError("an earlier release wrote it without the watermark")
    tables = tuple(_table(one) for one in body["tables"])
    totals = sum(table.rows for table in tables), digest_sum(_digest(table) for table in tables)
    if totals != (count(body["rows"]), int(digest(body["digest"]), 16)):
        raise ValueError("the counts or digests of its tables do not add up")
    if len({table.place for table in tables}) < len(tables):
        raise ValueError("a table is listed twice")
    return Saved(
        url=url,
        batch=count(body["batch"]),
        origin=Origin(body["origin"]),
        watermark_ms=count(body["watermark_ms"]),
        late_watermark_ms=None if "late_watermark_ms" not in body else count(body["late_watermark_ms"]),
        key_groups=None if body["key_groups"] is None else count(body["key_groups"]),
        tables=tables,
        identity=identity,
    )


def _table(body: Mapping[str, Any]) -> SavedTable:
    operator, store = plain_number(str(count(body["operator_id"]))), store_name(body["store"])
    family = None if body["family"] is None else text(body["family"])
    folder = names.table(operator, store, family)
    if body["path"] != folder:
        raise ValueError(f"{str(body['path'])[:100]!r} is not the table {folder}")
    partitions = partition_count(body["partition_count"])
    parts = tuple(_part(one, folder, family) for one in body["partitions"])
    numbers = {one.partition for one in parts}
    if len(numbers) < len(parts) or any(number >= partitions for number in numbers):
        raise ValueError(f"{folder} does not have each of its {partitions} partitions once")
    table = SavedTable(
        operator=operator,
        operator_name=text(body["operator"]),
        store=store,
        family=family,
        problem=None if body["problem"] is None else text(body["problem"]),
        key=_columns(body["key_schema"]),
        value=_columns(body["value_schema"]),
        partitions=partitions,
        parts=parts,
    )
    if (table.rows, _digest(table)) != (count(body["rows"]), int(digest(body["digest"]), 16)):
        raise ValueError(f"the counts or digests of the partitions of {folder} do not add up")
    return table


def _digest(table: SavedTable) -> int:
    return digest_sum(int(one.part.digest, 16) for one in table.parts)


def _part(body: Mapping[str, Any], folder: str, family: str | None) -> SavedPart:
    number = count(body["partition"])
    files = tuple(
        File(path=text(one["path"]), rows=count(one["rows"]), bytes=count(one["bytes"])) for one in body["files"]
    )
    if [file.path for file in files] != [names.part(folder, number, place) for place in range(len(files))]:
        raise ValueError(f"the files of partition {number} of {folder} have other names")
    part = Part(
        table=folder,
        family=family,
        rows=count(body["rows"]),
        digest=digest(body["digest"]),
        files=files,
        state_bytes=count(body["state_bytes"]),
    )
    if part.rows != sum(file.rows for file in files):
        raise ValueError(f"the rows of the files of partition {number} of {folder} do not add up")
    return SavedPart(number, part)


def _columns(body: list[dict[str, Any]] | None) -> Columns:
    return tuple((text(one["name"]), text(one["type"]), _flag(one["nullable"])) for one in body or ())


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{str(value)[:100]!r} is not true or false")
    return value
