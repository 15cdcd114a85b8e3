"""Clones, mirrors and rewinds of a query with several named file sources (Spark 4.2): Spark reads each file once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.format import file_source, names
from statekeeper.statestore.format.logs import parse_offsets
from statekeeper.statestore.storage import open_storage
from tests.support.native import ONLY_CHANGELOGS, configured
from tests.support.twins import statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3000)]

CONFS = {
    **ONLY_CHANGELOGS,
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.shuffle.partitions": "1",
}
SIDES = ("zeta", "alpha")
"""In the order of the query, which is not that of the names."""


def add(folder: Path, number: int, *sides: str) -> None:
    for side in sides:
        (folder / side).mkdir(exist_ok=True)
        (folder / side / f"{number}.json").write_text(f'{{"k":"{side} {number}"}}\n')


def run(spark: SparkSession, folder: Path, checkpoint: Path, sides: tuple[str, str] = SIDES) -> dict[int, list[str]]:
    """Read all new files. Return the keys in each batch; each file has one key."""
    found: dict[int, list[str]] = {}
    with configured(spark, CONFS):
        left, right = (
            spark.readStream.schema("k string").format("json").name(side).load(str(folder / side)) for side in sides
        )
        query = (
            left.union(right)
            .groupBy("k")
            .agg(F.count("*").alias("n"))
            .writeStream.outputMode("update")
            .foreachBatch(lambda frame, batch: found.update({batch: [f"{row.k}: {row.n}" for row in frame.collect()]}))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return found


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("batch", [3, 1])
def test_spark_reads_each_file_once_from_a_clone_of_several_named_sources(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, version: str
) -> None:
    monkeypatch.setitem(CONFS, "spark.sql.streaming.offsetLog.formatVersion", version)
    checkpoint, clone = tmp_path / "checkpoint", tmp_path / "clone"
    done: dict[int, list[str]] = {}
    files = Counter[str]()
    for number, sides in enumerate((SIDES, ("alpha",), SIDES, ("alpha",), SIDES)):
        add(tmp_path, number, *sides)
        files.update(f"{side} {number}: 1" for side in sides)
        if number < 4:
            done.update(run(spark, tmp_path, checkpoint))
    assert sorted(done) == [0, 1, 2, 3]
    storage = open_storage(str(checkpoint))
    log = parse_offsets(storage.read(names.offsets(3)), names.offsets(3))
    assert (log.source_metadata is not None) is (version == "2")
    assert sorted(str(file_source.position(offset)) for offset in log.by_source.values()) == ["1", "3"]
    statekeeper("clone", str(checkpoint), str(clone), "--batch", str(batch), "--confirm-stopped")
    after = run(spark, tmp_path, clone)
    assert min(after) == batch + 1
    read = Counter(key for number, keys in done.items() if number <= batch for key in keys)
    read.update(key for keys in after.values() for key in keys)
    assert read == files


@pytest.mark.parametrize("version", ["1", "2"])
def test_spark_continues_from_a_mirror_and_after_a_rewind_of_several_named_sources(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Each batch after the rewind reads the files that it read before; so does the query of the mirror."""
    monkeypatch.setitem(CONFS, "spark.sql.streaming.offsetLog.formatVersion", version)
    checkpoint, mirror = tmp_path / "checkpoint", tmp_path / "mirror"
    done: dict[int, list[str]] = {}
    for number, sides in enumerate((SIDES, ("alpha",), SIDES, ("alpha",), SIDES)):
        add(tmp_path, number, *sides)
        done.update(run(spark, tmp_path, checkpoint))
        if number == 3:
            statekeeper("mirror", str(checkpoint), str(mirror), "--confirm-stopped")
    assert run(spark, tmp_path, mirror) == {4: done[4]}
    told = statekeeper("rewind", str(checkpoint), "--to-batch", "1", "--apply", "--confirm-stopped")
    [undo] = re.findall(r"--undo ([0-9a-f-]{36})", told)[:1]
    statekeeper("rewind", str(checkpoint), "--undo", undo, "--confirm-stopped")
    assert run(spark, tmp_path, checkpoint) == {}
    statekeeper("rewind", str(checkpoint), "--to-batch", "1", "--apply", "--confirm-stopped")
    after = [row for rows in run(spark, tmp_path, checkpoint).values() for row in rows]
    assert sorted(after) == sorted(row for batch in (2, 3, 4) for row in done[batch])


@pytest.mark.parametrize("version", ["1", "2"])
def test_named_sources_keep_their_positions_in_a_migration(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """With offsets of v2, one source is replaced; those of v1 do not contain the names, so that the sources must stay."""
    monkeypatch.setitem(CONFS, "spark.sql.streaming.offsetLog.formatVersion", version)
    checkpoint, new = tmp_path / "checkpoint", tmp_path / "new"
    for number in range(3):
        add(tmp_path, number, *SIDES)
        run(spark, tmp_path, checkpoint)
    other = tmp_path / "other"
    other.mkdir()
    add(other, 0, *SIDES, "beta")
    changed = ("beta", "zeta")
    run(spark, other, other / "changed", changed)
    run(spark, other, other / "same")
    given = ("migrate", str(checkpoint), str(other / "changed"), str(new))
    add(tmp_path, 0, "beta")
    add(tmp_path, 3, *SIDES, "beta")
    if version == "2":
        shown = statekeeper(*given)
        assert "source beta is new" in shown
        assert "source alpha of the old query is gone" in shown
        statekeeper(*given, "--apply", "--confirm-stopped")
        read = [row for rows in run(spark, tmp_path, new, changed).values() for row in rows]
        assert sorted(read) == ["beta 0: 1", "beta 3: 1", "zeta 3: 1"]
        return
    assert "keep the sources with their names and their order" in statekeeper(*given, exit_code=3)
    statekeeper("migrate", str(checkpoint), str(other / "same"), str(new), "--apply", "--confirm-stopped")
    read = [row for rows in run(spark, tmp_path, new).values() for row in rows]
    assert sorted(read) == ["alpha 3: 1", "zeta 3: 1"]
