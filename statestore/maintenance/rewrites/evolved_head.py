"""The commit of a schema evolution: the newest commit of an own root and the files that describe the columns are rewritten.

The order is

    _statekeeper/binding.json           the run of the evolution: a job that was running starts no batch
    commits/N                           the point of no return: it names the new snapshots
    _statekeeper/schemas/N.json         the new columns, valid from batch N on
    state/<operator>/0/_metadata/schema the new columns, for Spark's reader

No job starts, because the journal is open. The journal has the former contents; `put_back` restores them in reverse order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from statekeeper.statestore import binding
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.journal_parts import SchemaChange
from statekeeper.statestore.maintenance.switchover.commit import new_commit, rewrite_commit
from statekeeper.statestore.storage import Storage, read_or_none
from statekeeper.statestore.switch_journal import Begun


def rewrite(storage: Storage, begun: Begun) -> None:
    """Rewrite the files, or those that an interrupted run did not rewrite. Raises as `rewrite_commit`."""
    bound = _bound(begun)
    if read_or_none(storage, names.commits(begun.batch)) != new_commit(begun):
        _replace(storage, names.BINDING, binding.encode_binding(replace(bound, evolution=begun.run)))
        rewrite_commit(storage, begun, begun.batch)
    later = names.later_schema(begun.batch)
    stores = binding.stores_at(storage, begun.batch)
    values = {store.name: store.value_json for store in stores}
    after = {**values, **{name: change.after for name, change in begun.schemas.items()}}
    _replace(storage, later, json.dumps(after, sort_keys=True).encode())
    _describe(storage, begun, lambda change: change.after)


def put_back(storage: Storage, begun: Begun) -> None:
    """Restore the former contents of the files."""
    assert begun.replaced is not None
    _describe(storage, begun, lambda change: change.before)
    later = names.later_schema(begun.batch)
    if later in begun.replaced:
        _replace(storage, later, begun.replaced[later].encode())
    else:
        storage.delete([later])
    _replace(storage, names.commits(begun.batch), begun.commit.encode())
    _replace(storage, names.BINDING, begun.replaced[names.BINDING].encode())


def _bound(begun: Begun) -> binding.Binding:
    assert begun.replaced is not None
    return binding.parse_binding(begun.replaced[names.BINDING].encode())


def _describe(storage: Storage, begun: Begun, of: Callable[[SchemaChange], str]) -> None:
    """Write the schemas that Spark's reader uses."""
    for operator, store in enumerate(_bound(begun).stores):
        if store.name in begun.schemas:
            body = operators.encode_schema(store.key_json, of(begun.schemas[store.name]))
            _replace(storage, names.state_schema(operator), body)


def _replace(storage: Storage, path: str, body: bytes) -> None:
    if read_or_none(storage, path) != body:
        storage.replace(path, body)
