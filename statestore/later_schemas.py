"""The value schemas that a root has from a later batch on.

_statekeeper/schemas/<batch>.json   store name -> the value schema from that batch on, in Spark's JSON. After other changes
                                    than columns added at the end, an object: "value" has the schema, and "sources" has for
                                    each column the place of the column before, or null for an added column
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statekeeper.statestore.declared_columns import ColumnChange
from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format import names
from statekeeper.statestore.format.json_object import json_object
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json
from statekeeper.statestore.storage import Storage

Sources = tuple[int | None, ...]


@dataclass(frozen=True)
class LaterSchema:
    """The value schema of one store from a batch on. `sources`: as in the file; None if columns were added at the end."""

    value_json: str
    sources: Sources | None = None

    def change_from(self, store: str, before: str) -> ColumnChange:
        """Return the change from the schema before, for a batch that rewrites the rows. Raises `ValueError` if `sources`
        names a column that it does not have."""
        kept, columns = _width(before), _width(self.value_json)
        sources = self.sources or tuple(place if place < kept else None for place in range(columns))
        if any(source is not None and source >= kept for source in sources):
            raise ValueError("places of columns that the schema before does not have")
        return ColumnChange(store=store, before=before, after=self.value_json, sources=sources)


OlderSchemas = Mapping[int, Mapping[str, str]]
"""The value schemas (store name -> Spark's JSON) before a change, by the batch that changed them."""

LaterSchemas = Mapping[int, Mapping[str, LaterSchema]]
"""Batch -> store name -> its schema from that batch on, in the order of the batches."""


def encode(values: Mapping[str, str], changes: Iterable[ColumnChange]) -> bytes:
    """Encode the file of a batch that changes columns. `values`: the schemas of all stores, after the changes."""
    body: dict[str, object] = dict(values)
    for change in changes:
        if LaterSchema(change.after).change_from(change.store, change.before) != change:
            body[change.store] = {"value": change.after, "sources": list(change.sources)}
    return json.dumps(body, sort_keys=True).encode()


def read(storage: Storage) -> LaterSchemas:
    """Read the files of all batches. Raises `CorruptFile`."""
    found = {}
    for entry in storage.list(names.SCHEMAS):
        batch = names.parse_batch(entry.path.removesuffix(".json"))
        if batch is not None:
            found[batch] = parse(storage.read(entry.path), entry.path)
    return dict(sorted(found.items()))


def parse(data: bytes, path: str) -> Mapping[str, LaterSchema]:
    """Parse the file of one batch. Raises `CorruptFile`."""
    body = json_object(data, path)
    try:
        return {name: _parsed(one) for name, one in body.items()}
    except BAD_VALUES as error:
        raise CorruptFile(
            "has invalid schemas; the root cannot be opened", path=path, hint="restore the file from a backup"
        ) from error


def _parsed(body: object) -> LaterSchema:
    if not isinstance(body, dict):
        return LaterSchema(str(body))
    sources = body["sources"]
    if not isinstance(sources, list) or not all(one is None or (type(one) is int and one >= 0) for one in sources):
        raise ValueError("no places of columns")
    kept = [one for one in sources if one is not None]
    if kept != sorted(set(kept)) or len(sources) != _width(str(body["value"])):
        raise ValueError("other places of columns than the schema has")
    return LaterSchema(str(body["value"]), tuple(sources))


def _width(schema_json: str) -> int:
    return len(parsed_json(schema_json)["fields"])
