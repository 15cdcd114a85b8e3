"""The state schemas of a Python job as they were at an earlier batch. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from statekeeper.statestore import binding
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.storage import Storage


def rows_at(storage: Storage, batch: int, paths: Collection[str]) -> Mapping[str, bytes]:
    """Return the state schemas that a later batch has extended, by path, with their bytes as of `batch`.

    `paths`: those of the root. Requests: the binding, the later schemas, and one for each store. Raises `CorruptFile`,
    `ObjectMissing`, `StorageError`.
    """
    found: dict[str, bytes] = {}
    for operator, store in enumerate(binding.stores_at(storage, batch)):
        path = names.state_schema(operator)
        body = operators.encode_schema(store.key_json, store.value_json)
        if path in paths and storage.read(path) != body:
            found[path] = body
    return found
