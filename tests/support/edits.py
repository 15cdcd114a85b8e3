"""Edits checkpoints like `statekeeper edit`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.executors import LocalExecutor
from statekeeper.statestore.maintenance.rewrites import edits
from statekeeper.statestore.maintenance.rewrites.edits import Edit, EditPlan
from statekeeper.statestore.maintenance.rewrites.engine import Machine
from statekeeper.statestore.storage import Storage
from tests.support import runs
from tests.support.dumped import dumped

FOR_SPARK = Spark.V4_2


def goal(operator: int = 0, **texts: str) -> Edit:
    """Return the goal of `--delete` for each text."""
    options = ["--operator", str(operator)]
    for name, value in texts.items():
        options += ["--delete", f"{name}={value}"]
    return Edit(operator=operator, texts=texts, options=tuple(options))


def planned(storage: Storage, edit: Edit, scratch: Path, spark: Spark | None = FOR_SPARK) -> EditPlan:
    here = LocalExecutor(clock=SystemClock(), scratch=scratch, workers=1)
    facts = edits.gather(storage, edit, spark, executor=here, scratch=scratch, workers=1)
    return edits.plan(facts, edit, spark, workers=1)


def apply(storage: Storage, edit: Edit, scratch: Path, *, clock: Clock | None = None) -> str:
    """Plan and execute, without the wait for a quiet checkpoint. Return the id of the run."""
    plan = planned(storage, edit, scratch)
    if plan.refusals:
        raise RefusedAsUnsafe("; ".join(plan.refusals))
    run = RandomIds().fresh() if plan.half_done is None else plan.half_done.begun.run
    machine = Machine(scratch=scratch, clock=clock or SystemClock(), ids=RandomIds(), workers=1)
    runs.rewrite(storage, plan, lambda _: None, run=run, holder="a test", machine=machine)
    return run


def undo(storage: Storage, run: str, *, clock: Clock | None = None) -> None:
    now = clock or SystemClock()
    runs.undo_rewrite(
        storage, run, lambda _: None, RewriteKind.EDIT, run=RandomIds().fresh(), holder="a test", clock=now
    )


def rows(root: object) -> list[str]:
    """Every row at the newest batch as text, with its store, in order."""
    return sorted(json.dumps(row, sort_keys=True) for row in dumped(root))


def table(path: Path, columns: Mapping[str, Any]) -> str:
    """Write a Parquet table, and return its path."""
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table(columns), path)
    return str(path)


def row_table(path: Path, dumped_rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows, as dump shows them, as a table for --upsert. Return its path."""
    keys = dumped_rows[0]["key"].keys()
    columns = [
        {**row["key"], **{f"value.{name}" if name in keys else name: one for name, one in row["value"].items()}}
        for row in dumped_rows
    ]
    return table(path, {name: [_instants(row[name]) for row in columns] for name in columns[0]})


def _instants(value: Any) -> Any:
    """Convert texts of dump that are instants, at any depth."""
    if isinstance(value, dict):
        return {name: _instants(one) for name, one in value.items()}
    if isinstance(value, str) and value.endswith("Z") and value[:2] == "20":
        return dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value
