"""The columns of one store of a state root."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from statekeeper.statestore.format.state_rows import PREFIX_COLUMNS


@dataclass(frozen=True)
class StoreSchema:
    """One named store: Spark's JSON of its value schema and of its key schema, which starts with the key group.

    prefix_columns  the first key columns, which are encoded on their own: the key group, and the time in an index of times

    The operator id is its index in the binding: Spark resolves V2 ids only for the store `default` of an operator.
    """

    name: str
    key_json: str
    value_json: str
    prefix_columns: int = PREFIX_COLUMNS


def schema_digest(stores: tuple[StoreSchema, ...]) -> str:
    """Compute a digest of the schemas."""
    body = json.dumps([[store.name, store.key_json, store.value_json] for store in stores])
    return hashlib.sha256(body.encode()).hexdigest()
