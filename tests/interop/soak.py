"""Runs and restarts a Spark query while Statekeeper takes snapshots and deletes files.

    python -m tests.interop.soak [--batches 500] [--restarts 5]

It tests structures V1 and V2, each with changelogs only, and with Spark's snapshots and clean-up at the same time. It
compares the output of each batch and the final state with sums computed in Python. Spark's log shows which snapshots Spark
loaded at its starts; those of Statekeeper count.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner
from pyspark.sql import SparkSession

from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main as command
from statekeeper.statestore.contents.chain import look_at_snapshot
from statekeeper.statestore.storage import open_storage
from tests.support.native import FORMAT, OPERATORS, STATE_STORE, NativeQuery, rows, views

PARTITIONS = 4
HYBRID = {f"{STATE_STORE}minDeltasForSnapshot": "10", "spark.sql.streaming.minBatchesToRetain": "20"}
_LOADED = re.compile(r"RocksDBFileManager .* partitionId=(\d+),.*: Loading checkpoint files for version (\d+)")
_LOGGER = "org.apache.spark.sql.execution.streaming.state"
_RETAINED = "20"
_FEWEST = 50
"""Least number of Statekeeper's snapshots that Spark loads in a run of the default length."""


@dataclass
class Maintenance:
    """Takes snapshots and deletes files in a loop until the block ends. `failures`: the output of verbs that failed."""

    root: str
    scratch: str
    passes: int = 0
    failures: list[str] = field(default_factory=list)
    is_ours: dict[tuple[int, int], bool] = field(default_factory=dict)
    """By partition and version, of each snapshot that was ever seen."""

    def __enter__(self) -> Maintenance:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="maintenance")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._end.wait(1.0):
            self._verb("snapshot", "--changelogs", "5", "--mode", "snapshots", "--scratch", self.scratch)
            self.look()
            self._verb("gc", "--retain", _RETAINED, "--grace", "0s", "--mode", "full", "--apply")
            self.passes += 1

    def look(self) -> None:
        """Record the writer of each snapshot that exists."""
        storage = open_storage(self.root)
        for store, files in catalog.files(storage).items():
            for version in files.snapshots:
                if (store.partition, version.version) not in self.is_ours:
                    facts = look_at_snapshot(storage, store, version, files)
                    self.is_ours[(store.partition, version.version)] = facts.is_ours

    def _verb(self, verb: str, *arguments: str) -> str:
        done = CliRunner().invoke(command, [verb, self.root, *arguments])
        # Before the first batch there is no checkpoint (10). Exit code 3 means findings, here warnings.
        if done.exit_code not in (0, 3, 10):
            self.failures.append(f"{verb}: {done.output.strip()[-500:]}")
        return done.output


def expected(batches: int) -> tuple[dict[int, Counter[str]], Counter[tuple[str, int, int]]]:
    """Return the expected output of each batch, and the final state."""
    seen: dict[str, list[int]] = {}
    outputs = {}
    for batch in range(batches):
        touched = set()
        for row in rows(batch).to_pylist():
            seen.setdefault(row["k"], []).append(row["x"])
            touched.add(row["k"])
        outputs[batch] = Counter(f"Row(k={k!r}, n={len(seen[k])}, total={sum(seen[k])})" for k in touched)
    return outputs, Counter((k, len(x), sum(x)) for k, x in seen.items())


def loaded(log: Path, since_bytes: int) -> set[tuple[int, int]]:
    """Partition and version of each snapshot that Spark says it has loaded, but for the empty one."""
    with log.open("rb") as file:
        file.seek(since_bytes)
        text = file.read().decode(errors="replace")
    return {(int(partition), int(version)) for partition, version in _LOADED.findall(text) if version != "0"}


def soak(
    spark: SparkSession, log: Path, folder: Path, confs: Mapping[str, str], batches: int, restarts: int
) -> dict[str, int]:
    """One query; the figures of it. Raises `AssertionError` where something is not as it should be."""
    confs = {"spark.sql.shuffle.partitions": str(PARTITIONS), **confs}
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], confs)
    each = -(-batches // (restarts + 1))
    ours = 0
    with Maintenance(str(query.checkpoint), str(folder / "scratch")) as maintenance:
        for _ in range(restarts + 1):
            before = log.stat().st_size
            query.run(each)
            ours += sum(maintenance.is_ours.get(one, False) for one in loaded(log, before))
    total = each * (restarts + 1)
    outputs, state = expected(total)
    assert query.outputs == outputs, "what was put out is not what should have been"
    [held] = views(query).values()
    assert Counter((row.key[0], row.value[0], row.value[1]) for row in held) == state, "the state is another"
    assert not maintenance.failures, maintenance.failures[:3]
    return {
        "batches": total,
        "passes": maintenance.passes,
        "snapshots of ours": sum(maintenance.is_ours.values()),
        "of ours loaded by Spark": ours,
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--restarts", type=int, default=5)
    chosen = parser.parse_args()
    log = Path(tempfile.mkdtemp(prefix="soak-log-")) / "spark.log"
    with log.open("wb") as said:
        os.dup2(said.fileno(), 2)  # the JVM's, too
    spark = spark_session("soak", master="local[2]", conf={f"{STATE_STORE}maintenanceInterval": "2s"})
    assert spark._jvm is not None
    log4j = spark._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_LOGGER, log4j.Level.INFO)
    ours = 0
    for structure in ("1", "2"):
        for name, confs in {"changelogs only": {}, "hybrid": HYBRID}.items():
            with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
                figures = soak(spark, log, Path(folder), {FORMAT: structure, **confs}, chosen.batches, chosen.restarts)
            ours += figures["of ours loaded by Spark"]
            print(f"V{structure}, {name}: {', '.join(f'{n:,} {what}' for what, n in figures.items())}", flush=True)
    print(f"{ours} snapshots of ours were loaded by Spark")
    return 0 if ours >= _FEWEST else 1


if __name__ == "__main__":
    sys.exit(main())
