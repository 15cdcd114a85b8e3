"""A stateful operator that counts and adds values by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update

ROWS = pa.schema([("key", pa.int64()), ("at", pa.int64()), ("value", pa.int64())])


STATE = pa.schema([("count", pa.int64()), ("total", pa.int64())])


OUTPUT = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("total", pa.int64())])


def totals_of(rows: pa.Table, state: pa.Table) -> dict[int, tuple[int, int]]:
    totals = {row["key"]: (row["count"], row["total"]) for row in state.to_pylist()}
    for row in rows.to_pylist():
        count, total = totals.get(row["key"], (0, 0))
        totals[row["key"]] = (count + 1, total + row["value"])
    return totals


def totals_table(totals: dict[int, tuple[int, int]]) -> pa.Table:
    rows = [{"key": key, "count": count, "total": total} for key, (count, total) in totals.items()]
    return pa.Table.from_pylist(rows, OUTPUT)


def add_up(rows: pa.Table, state: pa.Table) -> Update:
    table = totals_table(totals_of(rows, state))
    return Update(table, table)


def adding(update: Callable[..., Any] = add_up, **others: Any) -> StatefulOperator:
    declared: dict[str, Any] = {"keys": ["key"], "order_by": ["at"], "state": STATE, "output": OUTPUT}
    return StatefulOperator(**{**declared, **others}, update=update)


def rows_of(*rows: tuple[int | None, int]) -> dict[str, list[Any]]:
    return {"key": [k for k, _ in rows], "at": list(range(len(rows))), "value": [v for _, v in rows]}
