"""Migration of a large state to a changed query, compared with reading the input again through the changed query."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.measure import Spread, Table, ratio, verdict
from benchmarks.native_state import of, run_query, write_input
from benchmarks.peak import Peak, peak_of
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
from statekeeper.statestore.storage import open_storage
from tests.support.maintainers import MAINTAINER

KEYS = 1_000_000
ROWS_OF_A_KEY = 10
PARTITIONS = 8
ADDED = ("max(value) AS most",)
_LEAST_SPEEDUP = 1.0


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark in rounds."""
    session = spark_session("benchmark", master="local[2]", conf={"spark.driver.memory": "4g"})
    session.sparkContext.setLogLevel("ERROR")
    again, migrated = list[float](), list[Peak]()
    confs = of(Provider.ROCKSDB, PARTITIONS)
    try:
        with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
            folder = Path(name)
            write_input(session, folder / "input", KEYS * ROWS_OF_A_KEY, KEYS)
            write_input(session, folder / "few", 1_000, 1_000)
            run_query(session, folder / "input", folder / "old", confs)
            run_query(session, folder / "few", folder / "blueprint", confs, ADDED)
            for number in range(options.rounds):
                again.append(run_query(session, folder / "input", folder / f"again-{number}", confs, ADDED))
                migrated.append(peak_of(__name__, "migrate", name, str(number)))
    finally:
        session.stop()
    return [_table(again, migrated)]


def _table(again: list[float], migrated: list[Peak]) -> Table:
    ours = [peak.seconds for peak in migrated]
    speedup = ratio([[seconds] for seconds in again], [[seconds] for seconds in ours])
    rows = KEYS * ROWS_OF_A_KEY
    return Table(
        title=f"An added aggregate for a state of {KEYS:,} keys in {PARTITIONS} partitions, local disk",
        columns=["", "seconds", "rows per second", "peak MiB", "speed, ratio to Spark"],
        rows=[
            [f"Spark 4.2, {rows:,} input rows again", *_times(rows, again), "-", "1.0x"],
            [
                f"statekeeper migrate, {KEYS:,} rows of state",
                *_times(KEYS, ours),
                f"{max(peak.peak_mib for peak in migrated):.0f}",
                speedup.shown(2, "x"),
            ],
        ],
        targets=[verdict("speed of the migration", speedup, at_least=_LEAST_SPEEDUP)],
        notes=[
            f"{len(again)} {'round' if len(again) == 1 else 'rounds'}. A key has a count and a sum, and gets a maximum. "
            f"The input has {ROWS_OF_A_KEY} rows for each key: with more rows, reading it again takes longer, and the "
            "migration does not.",
            "Spark: a warm JVM, local[2], with a heap of 4 GiB, and one batch of Parquet files on local disk.",
            "Statekeeper: all steps of the verb except the five seconds in which a checkpoint must be idle, in a new "
            "process, without its imports: the audits, the read-back of each snapshot, and the comparison of all rows.",
        ],
    )


def _times(rows: int, seconds: list[float]) -> tuple[str, str]:
    return Spread.of(seconds).shown(1), f"{rows / Spread.of(seconds).median:,.0f}"


def migrate(folder: str, number: str) -> None:
    """Migrate in a process of its own."""
    scratch = Path(folder) / f"scratch-{number}"
    run = Run(storage=open_storage(f"{folder}/old"), by=MAINTAINER, scratch=scratch, stopped=True)
    perform(prepare(Migrate(blueprint=f"{folder}/blueprint", destination=f"{folder}/new-{number}"), run))
