"""The failover drill of docs/how-to/mirror-a-checkpoint.md, with the commands of its text in their order."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.format.structure import Structure
from tests.support.native import ONLY_CHANGELOGS, configured
from tests.support.twins import statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mirror-a-checkpoint.md"
MIRRORED, LOST, ROWS = 2, 4, 6
"""The newest batch of the mirror, the batch during which the source vanishes, and all batches. Each has one row."""


def commands() -> list[str]:
    """The commands of the steps, and the statements for a Delta table."""
    text = PAGE.read_text().partition("{ #drill }")[2].partition("{ #jobs }")[0]
    return re.findall(r"(?:`|^ {4})((?:statekeeper|DESCRIBE|RESTORE) [^`\n]+)", text, re.MULTILINE)


class Query:
    """Removes duplicates of the numbers in files, a file each batch. A batch deletes the checkpoint if a file says so."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self.folder, self.source = spark, folder, folder / "source"
        self.table, self.by_key = folder / "table", dict[int, int]()
        self.source.mkdir(parents=True)

    def run(self, checkpoint: Path, *, until: int = ROWS, to_table: bool = True) -> None:
        """Write the files before `until`, and process them."""
        doomed = self.folder / "doomed"
        for number in range(len(list(self.source.iterdir())), until):
            path = self.source / f"{number}.json"
            path.write_text(f'{{"number":{number}}}\n' * 2)
            os.utime(path, (number + 1, number + 1))

        @F.udf("long")  # type: ignore[untyped-decorator]
        def read(number: int) -> int:
            if number == LOST and doomed.exists():
                shutil.rmtree(doomed.read_text())
                Path(doomed.read_text()).write_text("the bucket does not exist")
                doomed.unlink()
            return number

        def keep(rows: DataFrame, batch: int) -> None:
            self.by_key.update({row.number: batch for row in rows.collect()})

        with configured(self._spark, {**ONLY_CHANGELOGS, **Structure.V2.conf, "spark.sql.shuffle.partitions": "2"}):
            rows = self._spark.readStream.schema("number long").option("maxFilesPerTrigger", 1)
            unique = rows.json(str(self.source)).select(read("number").alias("number")).dropDuplicates(["number"])
            writer = unique.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
            query = writer.format("delta").start(str(self.table)) if to_table else writer.foreachBatch(keep).start()
            query.awaitTermination()

    def rows(self) -> list[int]:
        return sorted(row.number for row in self._spark.read.format("delta").load(str(self.table)).collect())

    def state(self, checkpoint: Path) -> list[tuple[int, int]]:
        found = self._spark.read.format("statestore").load(str(checkpoint)).select("key.number", "partition_id")
        return sorted(tuple(row) for row in found.collect())


@pytest.mark.parametrize("to_table", [True, False], ids=["a Delta table", "a sink by key"])
def test_each_step_of_the_failover_drill_works_as_it_is_written(
    spark: SparkSession, tmp_path: Path, *, to_table: bool
) -> None:
    mirror, inspect, audit, restore, history, clone, next_of_clone, next_of_mirror, again = commands()
    places = {name: tmp_path / "query" / name for name in ("SRC", "DST", "NEW", "OTHER")}

    def run(command: str, exit_code: int = 0) -> str:
        words = command.split()[1:]
        return statekeeper(*(str(places.get(word, word)) for word in words), exit_code=exit_code)

    query = Query(spark, tmp_path / "query")
    for until in (MIRRORED, MIRRORED + 1):
        query.run(places["SRC"], until=until, to_table=to_table)
        run(mirror)
    shutil.copytree(places["SRC"], tmp_path / "of another day")
    (query.folder / "doomed").write_text(str(places["SRC"]))
    with pytest.raises(StreamingQueryException):
        query.run(places["SRC"], to_table=to_table)
    assert places["SRC"].is_file()
    assert run(inspect).startswith(f"batch {MIRRORED}, version {MIRRORED + 1}")
    run(audit)
    primary = "NEW" if to_table else "DST"
    if to_table:
        assert query.rows() == list(range(LOST)), "the table has a batch that the mirror lacks"
        table = f"delta.`{query.table}`"
        versions = spark.sql(history.replace("orders", table)).collect()
        (of_batch,) = [row.version for row in versions if row.operationParameters.get("epochId") == str(MIRRORED)]
        spark.sql(restore.replace("orders", table).replace(" N", f" {of_batch}"))
        run(clone)
    query.run(places[primary], to_table=to_table)
    twin = Query(spark, tmp_path / "twin")
    twin.run(tmp_path / "twin" / "checkpoint", to_table=to_table)
    assert query.state(places[primary]) == twin.state(tmp_path / "twin" / "checkpoint")
    if to_table:
        assert query.rows() == twin.rows() == list(range(ROWS))
        run(next_of_clone)
    else:
        assert query.by_key == twin.by_key
        run(next_of_mirror)
        places["SRC"].unlink()
        shutil.copytree(tmp_path / "of another day", places["SRC"])
        assert "mirror_started" in run(f"{again} --output json", exit_code=13)
    run("statekeeper audit OTHER")
