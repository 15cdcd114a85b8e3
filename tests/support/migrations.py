"""A query, the changed query that keeps its state, and comparisons of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.native import NativeQuery, Operator, rows
from tests.support.twins import SHUFFLE_PARTITIONS, statekeeper

BEFORE, AFTER = 3, 2
"""Batches of the old query, and of the changed one after the migration."""


class RecordedQuery(NativeQuery):
    """Records its output as rows, too. `checkpoint`: below `folder`; queries with one folder read the same input."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        operator: Operator,
        confs: Mapping[str, str],
        checkpoint: str = "checkpoint",
    ) -> None:
        super().__init__(spark, folder, operator, {SHUFFLE_PARTITIONS: "2", **confs})
        self.checkpoint = folder / checkpoint
        self.rows: dict[int, list[Row]] = {}

    def with_sink(self, rows: DataFrame) -> DataStreamWriter:
        def keep(frame: DataFrame, batch: int) -> None:
            self.rows[batch] = frame.collect()
            self.outputs[batch] = Counter(map(str, self.rows[batch]))

        return rows.writeStream.foreachBatch(keep)

    def values(self, batch: int, columns: Sequence[str]) -> Counter[tuple[object, ...]]:
        """The output of a batch in some columns."""
        return Counter(tuple(row[column] for column in columns) for row in self.rows[batch])


@dataclass(frozen=True)
class Migrated:
    """The old query, which nothing changes, and the changed query on the migrated checkpoint. Both read the same input."""

    old: RecordedQuery
    new: RecordedQuery
    shown: str

    def go_on(self) -> tuple[int, ...]:
        """Run both over further batches, and return the numbers of the batches with rows."""
        self.new.batches = self.old.batches
        self.new.run(AFTER)
        self.old.run(0)
        return tuple(batch for batch in self.new.rows if self.new.rows[batch])


def migrate(
    spark: SparkSession,
    folder: Path,
    before: Operator,
    after: Operator,
    *options: str,
    confs: Mapping[str, str] | None = None,
    new_confs: Mapping[str, str] | None = None,
) -> Migrated:
    """Run a query, make a blueprint of the changed one, and migrate. Neither checkpoint changes."""
    old = RecordedQuery(spark, folder / "query", before, confs or {})
    old.run(BEFORE)
    blueprint = RecordedQuery(spark, folder / "blueprint", after, new_confs or confs or {})
    blueprint.run(1)
    new = RecordedQuery(spark, folder / "query", after, new_confs or confs or {}, "migrated")
    files = [contents(old.checkpoint), contents(blueprint.checkpoint)]
    shown = command(folder, old, blueprint, new, *options)
    assert files == [contents(old.checkpoint), contents(blueprint.checkpoint)]
    return Migrated(old, new, shown)


def command(folder: Path, old: NativeQuery, blueprint: NativeQuery, new: NativeQuery, *options: str) -> str:
    """Execute a migration by the command, and return its plan."""
    given = ("migrate", old.root, blueprint.root, new.root, *options, "--scratch", str(folder))
    shown = statekeeper(*given)
    statekeeper(*given, "--apply", "--confirm-stopped")
    return shown


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def inputs(batches: Iterable[int], side: str = "left") -> list[dict[str, Any]]:
    """The rows of an input in these batches."""
    return [row for batch in batches for row in rows(batch, side).to_pylist()]
