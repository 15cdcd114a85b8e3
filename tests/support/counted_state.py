"""State with a schema: counts by name and day."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from statekeeper.statestore.format.state_rows import encode_keys, encode_values, key_schema
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.root.columns import StoreSchema

KEY = pa.schema([("name", pa.string()), ("day", pa.int32())])


VALUE = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])


SCHEMA = StoreSchema("default", spark_schema_json(key_schema(KEY)), spark_schema_json(VALUE))


def key(name: str) -> bytes:
    [found] = encode_keys(np.array([len(name)]), pa.Table.from_pylist([{"name": name, "day": 7}], KEY)).to_pylist()
    return bytes(found)


def value(n: int) -> bytes:
    [found] = encode_values(pa.Table.from_pylist([{"n": n, "tags": ["x"] * n}], VALUE)).to_pylist()
    return bytes(found)


def changes(**counts: int | None) -> dict[bytes, bytes | None]:
    return {key(name): None if n is None else value(n) for name, n in counts.items()}


def counts(rows: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(row["store"], row["key"]["name"], row["value"]["n"]) for row in rows]
