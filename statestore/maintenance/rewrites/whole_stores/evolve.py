"""The part of a plan that only a schema evolution has: its groups of stores, and the reasons that block it. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, SchemaChange
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.format.names import DEFAULT_STORE, StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine.commit import is_rewritten, rewrite_commit
from statekeeper.statestore.maintenance.rewrites.engine.model import StoppedQuery
from statekeeper.statestore.maintenance.rewrites.evolution import Evolve, EvolvedRows, evolution_of, require_untimed
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import RewriteFacts, StoreGroup
from statekeeper.statestore.root import binding
from statekeeper.statestore.root.new_columns import NewColumns
from statekeeper.statestore.storage import Storage, read_or_none


def evolutions(facts: RewriteFacts, goal: Evolve) -> Mapping[str, NewColumns]:
    """Compare the changes with the present columns. Returns the evolution of each changed store by its name; none while the
    root cannot be evolved at all, or while another rewrite is half done.

    Raises `SchemaMismatch` for an unknown store, and as `evolution_of`.
    """
    half_done = facts.stopped.half_done
    if any(of_root(facts.stopped)) or (half_done is not None and half_done.begun.rows != goal.digest):
        return {}
    stores = {store.name: store for store in facts.schemas}
    for name in goal.stores:
        if stores and name not in stores:
            raise SchemaMismatch(
                f"the root has no store {name}; it has: {', '.join(stores)}; nothing was changed",
                hint="the only store of an operator has the name default; to see the stores, run: statekeeper inspect ROOT",
            )
    for name, changes in goal.stores.items():
        require_untimed(facts.schemas, name, changes)
    return {name: evolution_of(stores[name], changes) for name, changes in goal.stores.items() if stores}


def evolved_groups(facts: RewriteFacts, evolved: Mapping[str, NewColumns]) -> Iterator[StoreGroup]:
    """Yield the stores to rewrite. Each partition becomes the partition with its number."""
    for operator in facts.operators:
        if operator.name in evolved:
            sources = tuple(one for one in facts.stopped.stores if one.store.operator == operator.operator)
            yield StoreGroup(
                operator=operator.operator,
                name=DEFAULT_STORE,
                sources=sources,
                targets=tuple(StorePath(operator.operator, one.store.partition) for one in sources),
                conversion=EvolvedRows(evolved[operator.name]),
            )


def of_root(stopped: StoppedQuery) -> Iterator[str]:
    """Yield why the columns of this checkpoint cannot be changed by this verb."""
    if stopped.batch is None:
        return
    if stopped.origin is Origin.NATIVE:
        yield (
            "the checkpoint is that of a native Spark query, and evolve changes only state roots of jobs on `pipelines`. "
            "Spark itself accepts other names of value columns at the start of the query. It rejects added, dropped and "
            "widened columns (STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE), except in transformWithState with Avro encoding"
        )
    elif stopped.structure is Structure.V1:
        yield (
            "the root has structure V1, in which the new snapshots would have the names of the present ones; first run: "
            "statekeeper switch ROOT --to v2"
        )


def rewrite(storage: Storage, begun: Begun) -> None:
    """Rewrite the files, or those that an interrupted run did not rewrite. Raises as `rewrite_commit`."""
    bound = _bound(begun)
    if not is_rewritten(storage, begun):
        _replace(storage, names.BINDING, binding.encode_binding(replace(bound, evolution=begun.run)))
        rewrite_commit(storage, begun, begun.batch)
    later = names.later_schema(begun.batch)
    stores = binding.stores_at(storage, begun.batch)
    values = {store.name: store.value_json for store in stores}
    after = {**values, **{name: change.after for name, change in begun.schemas.items()}}
    _replace(storage, later, json.dumps(after, sort_keys=True).encode())
    _describe(storage, begun, lambda change: change.after)


def restore(storage: Storage, begun: Begun) -> None:
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
