"""A Python job whose code has changed continues on a migrated state root, with a checkpoint that a claim has made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, Host, StatefulOperator, Update, start
from statekeeper.statestore.storage import open_storage
from tests.support.dumped import dumped
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark
ROWS = pa.schema([("k", pa.string()), ("x", pa.int64())])
COUNTS = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


def counted(rows: pa.Table, state: pa.Table) -> dict[str, int]:
    counts = dict(zip(state["k"].to_pylist(), state["n"].to_pylist(), strict=True))
    for key in rows["k"].to_pylist():
        counts[key] = counts.get(key, 0) + 1
    return {key: counts[key] for key in dict.fromkeys(rows["k"].to_pylist())}


def before(rows: pa.Table, state: Mapping[str, pa.Table]) -> Update:
    """Count the rows of each key, and keep a second store that the changed code does not have."""
    counts = counted(rows, state["counts"])
    new = pa.table({"k": list(counts), "n": list(counts.values())}, schema=OUTPUT)
    gone = pa.table({"k": list(counts), "text": [""] * len(counts)})
    return Update(output=new, state={"counts": new, "gone": gone})


def after(rows: pa.Table, state: Mapping[str, pa.Table]) -> Update:
    """Count the rows of each key, and keep its largest number in a store of its own."""
    counts = counted(rows, state["counts"])
    new = pa.table({"k": list(counts), "n": list(counts.values())}, schema=OUTPUT)
    held = pa.concat_tables([rows.select(["k", "x"]), state["most"].select(["k", "x"])])
    most = held.group_by("k").aggregate([("x", "max")]).rename_columns(["k", "x"])
    sides = pa.array(["new"] * len(counts))
    return Update(output=new, state={"most": most, "counts": new.append_column("side", sides)})


OLD = StatefulOperator(
    ["k"], ["x"], state={"counts": COUNTS, "gone": pa.schema([("text", pa.string())])}, output=OUTPUT, update=before
)
NEW = StatefulOperator(
    ["k"],
    ["x"],
    state={"most": pa.schema([("x", pa.int64())]), "counts": COUNTS.append(pa.field("side", pa.string()))},
    output=OUTPUT,
    update=after,
)


@dataclass(frozen=True)
class Job:
    """A job below `folder`; its inputs are tables in `tables`."""

    session: SparkSession
    tables: Path
    folder: Path
    operator: StatefulOperator
    names: tuple[str, ...]

    @property
    def root(self) -> str:
        return str(self.folder / "root")

    def feed(self, **rows: list[tuple[str, int]]) -> None:
        for name in self.names:
            keys, numbers = zip(*rows.get(name, []), strict=True) if rows.get(name) else ((), ())
            table = pa.table({"k": list(keys), "x": list(numbers)}, schema=ROWS)
            deltalake.write_deltalake(self.tables / name, table, mode="append")

    def run(self, checkpoint: str = "checkpoint", sink: Path | None = None) -> None:
        start(
            self.operator,
            inputs={name: self.session.readStream.format("delta").load(str(self.tables / name)) for name in self.names},
            root=self.root,
            checkpoint=str(self.folder / checkpoint),
            sink=DeltaSink(str(sink or self.folder / "sink")),
            partitions=2,
            key_groups=8,
            host=Host(str(self.folder / "host")),
            trigger={"availableNow": True},
        ).await_termination()


def test_a_changed_job_with_another_input_continues_like_a_twin(delta_session: SparkSession, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    old = Job(delta_session, tables, tmp_path / "old", OLD, ("orders", "returns"))
    new = Job(delta_session, tables, tmp_path / "new", NEW, ("claims", "orders", "returns"))
    blueprint = Job(delta_session, tmp_path / "few", tmp_path / "blueprint", NEW, new.names)
    twin = Job(delta_session, tables, tmp_path / "twin", NEW, new.names)
    new.feed(orders=[("a", 1), ("b", 5)], returns=[("a", 2)])
    new.feed(orders=[("c", 3)], returns=[("b", 4), ("b", 9)])
    old.run()
    blueprint.feed(claims=[("x", 1)])
    blueprint.run()
    given = ("migrate", old.root, blueprint.root, new.root, "--allow-dropped-state", "--partitions", "3")
    scratch = str(tmp_path / "scratch")
    plan = statekeeper(*given, "--scratch", scratch)
    assert "source 0 is new: it starts at its own beginning" in plan
    assert "the state of operator 1 (gone) of the old query is dropped: 3 rows" in plan
    statekeeper(*given, "--apply", "--confirm-stopped", "--scratch", scratch)
    statekeeper("claim", new.root, "--checkpoint", str(new.folder / "made"), "--apply", "--confirm-stopped")
    new.feed(claims=[("d", 7), ("a", 8)], orders=[("a", 6)])
    new.run("made", sink=old.folder / "sink")
    twin.run()
    assert counts(old) == counts(twin)
    assert state(new, 1, "n") == state(twin, 1, "n") == {"a": 4, "b": 3, "c": 1, "d": 1}
    # The added store has what came later, and the added column is null until the next row of its key.
    assert state(new, 0, "x") == {"a": 8, "d": 7}
    assert state(new, 1, "side") == {"a": "new", "b": None, "c": None, "d": "new"}
    clean(open_storage(new.root), tmp_path)


def counts(job: Job) -> dict[str, int]:
    """The newest count of each key in the sink, which has no batch twice."""
    table = deltalake.DeltaTable(job.folder / "sink").to_pyarrow_table()
    assert table.num_rows == len(set(map(str, table.to_pylist())))
    newest = table.group_by("k").aggregate([("n", "max")])
    return dict(zip(newest["k"].to_pylist(), newest["n_max"].to_pylist(), strict=True))


def state(job: Job, operator: int, column: str) -> dict[str, Any]:
    found = dumped(job.root)
    return {one["key"]["k"]: one["value"][column] for one in found if one["store"].startswith(f"state/{operator}/")}
