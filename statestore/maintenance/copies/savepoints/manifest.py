"""The manifest of a savepoint with rows: its source, its tables and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from statekeeper.statestore.format import json_records
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.json_records import Count, Digest, Record
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.copies.savepoints.gather import RowsFacts
from statekeeper.statestore.maintenance.copies.savepoints.plan import RowsPlan
from statekeeper.statestore.maintenance.copies.savepoints.record import MANIFEST, Part, StoreRows
from statekeeper.statestore.maintenance.copies.savepoints.write import Table, digest_sum

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The totals of a savepoint. `untyped`: the folders of tables of bytes, each with the reason."""

    rows: int
    bytes: int
    tables: int
    digest: str
    untyped: Mapping[str, str]


def encode_manifest(
    gathered: RowsFacts, planned: RowsPlan, tables: Mapping[str, Table], done: Mapping[StorePath, StoreRows]
) -> bytes:
    """Encode the manifest. The same savepoint gives the same bytes."""
    partitions = Counter((store.operator, store.store) for store in planned.stores)
    described = [
        _table(table, list(_parts(folder, done)), partitions[table.operator, table.store])
        for folder, table in sorted(tables.items())
    ]
    bound = gathered.copied.binding
    body = {
        "format": _FORMAT,
        "source": planned.begun.source,
        "batch": planned.begun.batch,
        "version": planned.begun.batch + 1,
        "structure": planned.structure.value,
        "origin": gathered.contents.origin.value,
        "query_id": planned.query_id,
        "watermark_ms": gathered.watermark_ms,
        "late_watermark_ms": gathered.late_watermark_ms,
        "key_groups": None if bound is None else bound.key_groups,
        "spark": [spark.value for spark in gathered.contents.conf.written_by],
        "begun_at": datetime.fromtimestamp(planned.begun.begun_at_ms / 1000, UTC).isoformat().replace("+00:00", "Z"),
        "table_format": planned.begun.tables,
        "rows": sum(table["rows"] for table in described),
        "bytes": sum(table["bytes"] for table in described),
        "digest": f"{digest_sum(int(table['digest'], 16) for table in described):032x}",
        "tables": described,
    }
    return json_records.encoded(body, indent=1, ensure_ascii=False)


class _Table(Record):
    path: str
    problem: str | None


class _Totals(Record):
    """What `Summary` needs of a manifest."""

    rows: Count
    bytes: Count
    digest: Digest
    tables: tuple[_Table, ...]


def summary_of(manifest: bytes) -> Summary:
    """Parse the totals in a manifest. Raises `CorruptFile`."""
    found = json_records.decoded(_Totals, manifest, names.MANIFEST, MANIFEST)
    return Summary(
        rows=found.rows,
        bytes=found.bytes,
        tables=len(found.tables),
        digest=found.digest,
        untyped={table.path: table.problem for table in found.tables if table.problem is not None},
    )


def _parts(folder: str, done: Mapping[StorePath, StoreRows]) -> Iterable[tuple[int, Part]]:
    for store, rows in sorted(done.items()):
        for part in rows.parts:
            if part.table == folder:
                yield store.partition, part


def _table(table: Table, parts: list[tuple[int, Part]], partitions: int) -> dict[str, Any]:
    return {
        "path": table.folder,
        "operator_id": table.operator,
        "operator": table.operator_name,
        "store": table.store,
        "family": table.family,
        "problem": table.problem,
        "columns": table.columns,
        "types": {field.name: str(field.type) for field in table.schema},
        "key_schema": _schema(table, "key"),
        "value_schema": _schema(table, "value"),
        "partition_count": partitions,
        "rows": sum(part.rows for _, part in parts),
        "bytes": sum(file.bytes for _, part in parts for file in part.files),
        "digest": f"{digest_sum(int(part.digest, 16) for _, part in parts):032x}",
        "partitions": [
            {
                "partition": partition,
                "rows": part.rows,
                "digest": part.digest,
                "state_bytes": part.state_bytes,
                "files": [{"path": file.path, "rows": file.rows, "bytes": file.bytes} for file in part.files],
            }
            for partition, part in parts
        ],
    }


def _schema(table: Table, part: str) -> list[dict[str, Any]] | None:
    if table.rows is None:
        return None
    return [
        {"name": field.name, "type": str(field.type), "nullable": field.nullable}
        for field in (table.rows.key if part == "key" else table.rows.value)
    ]
