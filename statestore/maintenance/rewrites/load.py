"""Matches the tables of a savepoint with the stores of a checkpoint, and states why a load is blocked. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from statekeeper.statestore.contents import Layout
from statekeeper.statestore.counts import counted
from statekeeper.statestore.errors import StatekeeperError
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.key_groups import KeyGroups
from statekeeper.statestore.format.partition_keys import PartitionRule
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.plans import Incoming, Load, OperatorFacts, RewriteFacts, StoreGroup
from statekeeper.statestore.maintenance.savepoints.saved import Columns, Saved, SavedTable, columns_of
from statekeeper.statestore.origin import Origin

ROWS_PER_SECOND = 20_000
"""Measured with two workers on two cores that other processes used too: a million rows of an aggregation."""

_COPIES = 3
"""A row is on local disk at most this many times: in the spool, in its target, and in the snapshot that is read back."""
_ROW_BYTES = 32
"""Upper bound of what RocksDB adds to a row."""


def incoming(facts: RewriteFacts, goal: Load, operator: OperatorFacts, store: str) -> tuple[Incoming, ...]:
    """Return the tables of a store, those that match."""
    layout, rules = operator.layouts.get(store), operator.rules[store]
    if not isinstance(layout, Layout) or isinstance(rules, StatekeeperError):
        return ()
    tables = _tables(goal.saved)
    found = []
    for family, rows in layout.families.items():
        table = tables.get((operator.operator, store, family))
        if table is None or any(_differences(table, rows)):
            continue
        is_own = isinstance(rules, KeyGroups)
        rule: PartitionRule | None = None if isinstance(rules, KeyGroups) else rules[family]
        found.append(
            Incoming(
                table=table,
                layout=rows,
                rule=rule,
                key_groups=KeyGroups(facts.key_groups) if is_own and facts.key_groups else None,
            )
        )
    return tuple(found)


def local_bytes(group: StoreGroup) -> int:
    """Return an upper bound of the local disk of a group: its rows, and all files, because each worker holds one."""
    rows = sum(one.table.state_bytes + _ROW_BYTES * one.table.rows for one in group.incoming)
    return _COPIES * rows + sum(one.table.file_bytes for one in group.incoming)


def of_load(facts: RewriteFacts, goal: Load) -> Iterator[str]:
    """Yield the reasons that block a load."""
    stopped, saved = facts.stopped, goal.saved
    if stopped.conf.provider is Provider.HDFS_BACKED:
        yield (
            "load does not support Spark's default provider: first move the query to RocksDB with: statekeeper convert "
            "ROOT --to rocksdb"
        )
        return
    if saved.origin is not stopped.origin:
        kinds = {Origin.OWN: "the state root of a job on `pipelines`", Origin.NATIVE: "a native query"}
        yield f"the savepoint is of {kinds[saved.origin]}, but the checkpoint is of {kinds[stopped.origin]}"
        return
    if stopped.origin is Origin.OWN and stopped.structure is Structure.V1:
        yield (
            "the root has structure V1, in which the new snapshots would have the names of the present ones; first run: "
            "statekeeper switch ROOT --to v2"
        )
    if facts.filled is not None and not goal.replaces_state and stopped.half_done is None:
        yield f"{facts.filled}: to replace all rows of the checkpoint, add --replace-state"
    written = sum(table.state_bytes + _ROW_BYTES * table.rows for table in saved.tables)
    if facts.free_at_root is not None and written > facts.free_at_root:
        yield (
            f"the new snapshots need up to {written:,} bytes, but {facts.free_at_root:,} are free where the checkpoint is"
        )
    yield from _of_stores(facts, saved)


def _of_stores(facts: RewriteFacts, saved: Saved) -> Iterator[str]:
    tables = _tables(saved)
    for operator in facts.operators:
        described = f"operator {operator.operator} ({operator.name or 'unnamed'})"
        for store in operator.stores:
            layout, rules = operator.layouts.get(store), operator.rules[store]
            if not isinstance(layout, Layout):
                yield f"{described}, store {store}: {layout.what if layout is not None else 'its schema is unknown'}"
                continue
            if isinstance(rules, StatekeeperError):
                yield rules.what
            for family, rows in layout.families.items():
                place = f"{described}, store {store}{'' if family is None else f', family {family}'}"
                table = tables.pop((operator.operator, store, family), None)
                if table is None:
                    yield f"{place}: the savepoint has no table of it"
                    continue
                yield from (f"{place}: {reason}" for reason in _of_table(table, operator, rows))
    for table in tables.values():
        yield (
            f"the savepoint has {counted(table.rows, 'row')} of operator {table.operator} "
            f"({table.operator_name or 'unnamed'}), store {table.store}"
            f"{'' if table.family is None else f', family {table.family}'}, which the checkpoint does not have"
        )


def _of_table(table: SavedTable, operator: OperatorFacts, rows: Family) -> Iterator[str]:
    if table.problem is not None:
        yield f"the savepoint has bytes instead of typed columns: {table.problem}"
        return
    # The tables of an own root have the name of Statekeeper's operator; its stores are matched by number.
    is_own = any(isinstance(rules, KeyGroups) for rules in operator.rules.values())
    if not is_own and table.operator_name and operator.name and table.operator_name != operator.name:
        yield f"the savepoint has the operator {table.operator_name}"
    yield from _differences(table, rows)


def _differences(table: SavedTable, rows: Family) -> Iterator[str]:
    for part, saved, present in (("key", table.key, rows.key), ("value", table.value, rows.value)):
        columns = columns_of(present)
        if not _fits(saved, columns):
            yield f"the {part} has the columns {_shown(saved)} in the savepoint, and {_shown(columns)} in the checkpoint"


def _fits(saved: Columns, present: Columns) -> bool:
    """Return whether the columns are equal. A column without nulls also fits one that allows them."""
    if [(name, kind) for name, kind, _ in saved] != [(name, kind) for name, kind, _ in present]:
        return False
    return all(
        nullable or not saved_nullable for (_, _, saved_nullable), (_, _, nullable) in zip(saved, present, strict=True)
    )


def _shown(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}{'' if nullable else ' not null'}" for name, kind, nullable in columns) or "none"


def _tables(saved: Saved) -> dict[tuple[int, str, str | None], SavedTable]:
    return {table.place: table for table in saved.tables}
