"""A state root with several value columns, written without Spark like a job does, and its evolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.contents.rows import contents_at, layout
from statekeeper.statestore.contents.rows import opened as open_store
from statekeeper.statestore.format import batch_log
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_rows import encode_keys, encode_values
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine import Machine
from statekeeper.statestore.maintenance.rewrites.evolution import Evolve, parse_changes
from statekeeper.statestore.maintenance.rewrites.whole_stores import RewritePlan
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.state_root import Pending, Ready
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.state_store import BatchLogPart, StateStore, StoreAddress
from tests.support import runs
from tests.support.keyed_roots import KEYS, group_of
from tests.support.rescales import planned
from tests.support.roots import QUERY, outer, store
from tests.support.roots import opened as opened_root

NAMES = ("counts", "sums")
OLD = pa.schema(
    [
        pa.field("count", pa.int32(), nullable=False),
        pa.field("total", pa.float32()),
        pa.field("note", pa.string()),
    ]
)
NEW = pa.schema(
    [
        pa.field("count", pa.int64(), nullable=False),
        pa.field("amount", pa.float64()),
        pa.field("currency", pa.string(), nullable=False),
    ]
)
CHANGES = {
    "drop": ["note"],
    "rename": {"total": "amount"},
    "widen": {"count": "long", "total": "double"},
    "add": {"currency": {"type": "string", "nullable": False, "default": "EUR"}},
}
RENAME = '{"stores": {"counts": {"rename": {"value": "number"}}}}'
"""A schema file for the roots of `keyed_roots`."""
PLAIN = pa.schema([("sum", pa.int64())])


def goal(**stores: object) -> Evolve:
    return parse_changes({"stores": stores or {"counts": CHANGES}}, "a file", ("--schema", "changes.toml"))


def declared(*values: pa.Schema, names: Sequence[str] = NAMES) -> Binding:
    """The declaration of a job with the stores of these names."""
    schemas = tuple(store(one, KEYS, name) for name, one in zip(names, values, strict=True))
    return Binding(root_id="", query_id=QUERY, partitions=2, key_groups=16, stores=schemas)


def commit(
    storage: Storage,
    folder: Path,
    batch: int,
    *tables: pa.Table,
    in_batch_log: bool = False,
    names: Sequence[str] = NAMES,
    **bound: Any,
) -> None:
    """Commit a batch with the rows of each operator: a column `key`, and the value columns that the job declares. `bound`:
    other fields of the binding."""
    wanted = declared(*(table.drop_columns(["key"]).schema for table in tables), names=names)
    root = opened_root(storage, replace(wanted, **bound), batch)
    ready = root.begin(batch, outer(batch))
    assert isinstance(ready, Ready)
    assert not root.rewrites(batch)
    snapshots, ids, attempt = catalog.snapshots(storage), {}, RandomIds().fresh()
    part = BatchLogPart(batch_log.tag_of(attempt), 1 << 20) if in_batch_log else None
    members: dict[tuple[StorePath, VersionId], bytes] = {}
    for operator, table in enumerate(tables):
        groups = np.array([group_of(key, 16) for key in table["key"].to_pylist()], np.int32)
        keys, values = encode_keys(groups, table.select(["key"])), encode_values(table.drop_columns(["key"]))
        new = []
        for partition in range(2):
            mine = pa.array(groups * 2 // 16 == partition)
            place = ready.bases[operator][partition]
            address = StoreAddress(StorePath(operator, partition), folder / f"{operator}-{partition}")
            with StateStore.load(
                address,
                place,
                storage=storage,
                clock=SystemClock(),
                ids=RandomIds(),
                snapshots=snapshots.get(address.path, ()),
                batch_log=part,
            ) as held:
                held.put(keys.filter(mine), values.filter(mine))
                version = held.commit()
                new.append(str(version.mark))
                if held.member is not None:
                    members[address.path, version] = held.member
        ids[operator] = tuple(new)
    if in_batch_log:
        assert len(members) == 2 * len(tables)
        pending = Pending(
            batch=batch,
            attempt=attempt,
            root_id=root.binding.root_id,
            query_id=QUERY,
            sources=outer(batch).sources,
            schema=root.schema(),
            ids=ids,
            structure=Structure.V2,
        )
        root.write_pending(pending, members)
    root.commit(batch, ids)


def old_rows(*keys: str) -> pa.Table:
    """Rows of the first store before the evolution; every third value is null."""
    count = len(keys)
    total = [None if n % 3 == 2 else n + 0.1 for n in range(count)]
    columns = {"key": keys, "count": range(count), "total": total, "note": [f"note {n}" for n in range(count)]}
    return pa.table({name: list(values) for name, values in columns.items()}, schema=pa.schema([*KEYS, *OLD]))


def new_rows(old: pa.Table) -> pa.Table:
    """The same rows after the evolution."""
    arrays = [old["key"], old["count"], old["total"].cast(pa.float64()), pa.array(["EUR"] * old.num_rows)]
    return pa.Table.from_arrays(arrays, names=["key", *NEW.names]).cast(pa.schema([*KEYS, *NEW]))


def plain_rows(*keys: str) -> pa.Table:
    """Rows of the second store, which does not change."""
    return pa.table({"key": list(keys), "sum": list(range(len(keys)))}, schema=pa.schema([*KEYS, *PLAIN]))


def rows_of(storage: Storage, operator: int, scratch: Path, batch: int | None = None) -> list[Mapping[str, Any]]:
    """The rows of one operator at a batch, as `statekeeper dump` decodes them, by key."""
    contents = contents_at(storage, batch)
    assert contents is not None
    found: list[Mapping[str, Any]] = []
    for place in contents.stores:
        if place.operator == operator:
            of = layout(contents, place)
            with open_store(contents, place, of, scratch=scratch, clock=SystemClock(), ids=RandomIds()) as rows:
                for one in map(rows.decoded, rows.pairs()):
                    table = pa.Table.from_arrays(
                        [one.keys["key"], *one.values.columns], names=["key", *one.values.schema.names]
                    )
                    found += table.to_pylist()
    return sorted(found, key=lambda row: row["key"])


def by_key(table: pa.Table) -> list[Mapping[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["key"])


def evolve(storage: Storage, wanted: Evolve, scratch: Path, *, clock: Clock | None = None) -> str:
    """Plan and execute, without the wait for a quiet checkpoint. Return the id of the run."""
    return run(storage, planned(storage, wanted, scratch), scratch, clock=clock)


def run(storage: Storage, plan: RewritePlan, scratch: Path, *, clock: Clock | None = None) -> str:
    """Execute a plan. Return the id of the run."""
    if plan.refusals:
        raise RefusedAsUnsafe("; ".join(plan.refusals))
    run = RandomIds().fresh() if plan.half_done is None else plan.half_done.begun.run
    machine = Machine(scratch=scratch, clock=clock or SystemClock(), ids=RandomIds(), workers=1)
    runs.rewrite(storage, plan, lambda _: None, run=run, holder="a test", machine=machine)
    return run


def undo(storage: Storage, run: str) -> None:
    fresh, clock = RandomIds().fresh(), SystemClock()
    runs.undo_rewrite(storage, run, lambda _: None, RewriteKind.EVOLVE, run=fresh, holder="a test", clock=clock)
