"""A stateful operator on a small stream: a Delta table with one file and one batch per commit, in one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from statekeeper.pipelines.batch.initial import Initial
from statekeeper.pipelines.batch.progress import BatchReport, Phase
from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.sinks.sink import DeltaSink, Sink
from statekeeper.pipelines.startup.query import StatefulQuery, start
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.host import Host
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import unpack
from statekeeper.statestore.storage import StorageSpec, open_storage
from tests.support import sparks_reader


class Seen:
    """Records the reports of the query. `at` is called at each phase and may raise."""

    def __init__(self, at: Callable[[int, Phase], None] | None = None) -> None:
        self.batches: list[BatchReport] = []
        self._at = at

    def phase(self, batch: int, phase: Phase) -> None:
        if self._at is not None:
            self._at(batch, phase)

    def finished(self, report: BatchReport) -> None:
        self.batches.append(report)


class Stream:
    """The table, and the folders of an operator on it: `root`, `checkpoint`, `facts`, `local`."""

    def __init__(self, session: SparkSession, folder: Path, schema: pa.Schema) -> None:
        self.session = session
        self.folder = folder
        self.table = str(folder / "input")
        self.root = folder / "root"
        self.checkpoint = folder / "checkpoint"
        self.facts = str(folder / "facts")
        self.schema = schema
        self.structure = Structure.V2
        self.log = LogLayout.STORES
        self.writer = Writer.SPARK
        # Version 0: the stream starts behind it.
        write_deltalake(self.table, schema.empty_table())

    def append(self, rows: pa.Table | Mapping[str, list[Any]]) -> None:
        """One commit, one file, one batch."""
        if not isinstance(rows, pa.Table):
            rows = pa.table(dict(rows), schema=self.schema)
        write_deltalake(self.table, rows, mode="append")

    def rows(self) -> DataFrame:
        reader = self.session.readStream.format("delta").option("startingVersion", 1).option("maxFilesPerTrigger", 1)
        return reader.load(self.table)

    def start(
        self,
        operator: StatefulOperator,
        *,
        rows: DataFrame | None = None,
        seen: Seen | None = None,
        sink: Sink | Mapping[str, Sink] | None = None,
        partitions: int | None = 2,
        tasks: int | None = None,
        host: Host | None = None,
        root: StorageSpec | None = None,
        initial: Initial | None = None,
        late: Sink | None = None,
    ) -> StatefulQuery:
        return start(
            operator,
            self.rows() if rows is None else rows,
            root=root or str(self.root),
            checkpoint=str(self.checkpoint),
            sink=sink or DeltaSink(self.facts, writer=self.writer),
            partitions=partitions,
            key_groups=8,
            tasks=tasks,
            structure=self.structure,
            log=self.log,
            initial=initial,
            late=late,
            host=host or Host(str(self.folder / "local")),
            observer=seen,
            trigger={"availableNow": True},
        )

    def run(self, operator: StatefulOperator, **how: Any) -> list[BatchReport]:
        """Process all input. Return the reports of the batches, or raise the error that stopped the query."""
        seen = how.pop("seen", None) or Seen()
        self.start(operator, seen=seen, **how).await_termination()
        return seen.batches

    def output(self) -> list[dict[str, Any]]:
        """All rows of the sink, sorted by their text."""
        if not DeltaTable.is_deltatable(self.facts):
            return []
        return sorted(DeltaTable(self.facts).to_pyarrow_table().to_pylist(), key=repr)

    def state(self, operator: int = 0, batch: int | None = None) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The state as Spark's own reader finds it: key columns without the key group -> value columns."""
        pairs = self.state_rows(operator, batch)
        rows = dict(pairs)
        assert len(rows) == len(pairs), "Spark found a key twice"
        return rows

    def state_rows(self, operator: int = 0, batch: int | None = None) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """The pairs of `state`, for keys that Python cannot hash."""
        if self.log is LogLayout.BATCH:
            storage = open_storage(str(self.root))
            list(unpack.execute(storage, unpack.plan(unpack.gather(storage, batch=batch))))
        where = {"operator": operator, "batch": batch, "structure": self.structure}
        rows = sparks_reader.state_rows(self.session, str(self.root), **where).collect()
        return [(tuple(row.key)[1:], tuple(row.value)) for row in rows]

    def changelogs(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob("state/*/*/*.changelog"))

    def committed(self) -> list[int]:
        return sorted(int(path.name) for path in (self.root / "commits").glob("[0-9]*"))


@contextmanager
def conf(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for the time of a block."""
    before = {key: session.conf.get(key, None) for key in values}
    for key, value in values.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)
