"""The first commit of a Delta table, as bytes. Pure. Source: the Delta transaction log protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from statekeeper.statestore.format.types import children, spark_schema_json
from statekeeper.statestore.maintenance.savepoints.record import Begun, File

_LOCAL_TIME = "timestampNtz"


def encode_commit(folder: str, schema: pa.Schema, files: Iterable[File], begun: Begun) -> bytes:
    """Encode the commit of a new table with these files. The same savepoint gives the same bytes."""
    has_local_times = any(map(_has_local_times, schema))
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if has_local_times:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": [_LOCAL_TIME],
            "writerFeatures": [_LOCAL_TIME],
        }
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": begun.begun_at_ms, "operation": "WRITE", "operationParameters": {}}},
        {"protocol": protocol},
        {
            "metaData": {
                "id": str(uuid.uuid5(uuid.UUID(begun.run), folder)),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": spark_schema_json(schema),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": begun.begun_at_ms,
            }
        },
        *(
            {
                "add": {
                    "path": file.path.rpartition("/")[2],
                    "partitionValues": {},
                    "size": file.bytes,
                    "modificationTime": begun.begun_at_ms,
                    "dataChange": True,
                    "stats": json.dumps({"numRecords": file.rows}),
                }
            }
            for file in files
        ),
    ]
    return "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions).encode()


def _has_local_times(field: pa.Field) -> bool:
    is_local = pa.types.is_timestamp(field.type) and field.type.tz is None
    return is_local or any(map(_has_local_times, children(field.type)))
