"""The flights job: a feeder that lets flights depart, and a stateful query that writes a fact for each, and a row for each
aircraft that is grounded.

var/flights/departures    input, Delta, one day of arrivals a commit
var/flights/facts         output, Delta: one row per flight
var/flights/grounded      output, Delta: one row per aircraft that has not departed for 36 hours
var/flights/checkpoint    the streaming query's own checkpoint
var/flights/state         the state root
var/flights/aircraft      the state as a table, Delta: one row per aircraft; Dagster publishes it
var/flights/spark.log     what Spark says
var/flights/local         this host's scratch copies of the state; can be deleted at any time
var/flights/statekeeper.toml    how the state is looked after; written once, then yours to change
var/flights/dagster       Dagster's home; can be deleted when nothing runs
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from statekeeper.pipelines.batch.progress import BatchReport, Observer, Phase
from statekeeper.pipelines.flights import facts, grounded
from statekeeper.pipelines.flights.feeder import Feeder
from statekeeper.pipelines.flights.root_figures import root_figures
from statekeeper.pipelines.flights.status import Status
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import Batch
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.pipelines.startup.query import StatefulQuery, start
from statekeeper.pipelines.startup.session import require_java, spark_session, without_jars
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.host import Host
from statekeeper.resources.launcher.platform import PORT, Platform, started
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError, UnsupportedEnvironment
from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.storage import open_storage

FACTS, GROUNDED = "facts", "grounded"
"""The outputs of the job."""

_PARTITIONS = 4
_FED_AHEAD = 8
_POLL_SECONDS = 0.2
_EACH_MINUTE = "* * * * *"

_CONFIGURATION = """\
# How the state of the flights job is looked after, by Dagster and by the command:
#     statekeeper --config {path} audit flights
# Small numbers, so that there is something to see after a minute. For a job of yours leave them out.

[roots.flights]
url = "state"
snapshot = {{ changelogs = 8 }}
retention = {{ versions = 8, grace = "20s" }}

# The state as a Delta table, for SQL:
#     statekeeper --config {path} publish flights
[roots.flights.tables.aircraft]
url = "aircraft"
"""


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes, all below one folder."""

    folder: Path

    @property
    def departures(self) -> str:
        return str(self.folder / "departures")

    @property
    def facts(self) -> str:
        return str(self.folder / "facts")

    @property
    def grounded(self) -> str:
        return str(self.folder / "grounded")

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    @property
    def state(self) -> str:
        return str(self.folder / "state")

    @property
    def spark_log(self) -> Path:
        return self.folder / "spark.log"

    @property
    def local(self) -> str:
        return str(self.folder / "local")

    @property
    def dagster(self) -> Path:
        return self.folder / "dagster"

    def configuration(self) -> Path:
        """How the state is looked after; written when it is not there."""
        path = self.folder / CONFIGURATION_FILE
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(_CONFIGURATION.format(path=path))
        return path


def update(rows: pa.Table, state: pa.Table) -> Update:
    """The update function of the job, for the operator."""
    of_flights, flown = facts.update(rows, state)
    return Update({FACTS: of_flights, GROUNDED: None}, flown, timers=grounded.timers(flown))


def on_timer(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
    """The timer function of the job, for the operator."""
    del batch
    return Update({FACTS: None, GROUNDED: grounded.report(keys, state)})


OPERATOR = StatefulOperator(
    keys=facts.KEYS,
    order_by=facts.ORDER,
    state=facts.STATE_SCHEMA,
    output={FACTS: facts.OUTPUT_SCHEMA, GROUNDED: grounded.OUTPUT_SCHEMA},
    update=update,
    # The flights come in the order of `event_at`, so none is late.
    event_time="event_at",
    timers="event",
    on_timer=on_timer,
    ttl=grounded.FORGOTTEN_AFTER,
)


def start_query(
    session: SparkSession,
    places: Places,
    observer: Observer,
    *,
    log: LogLayout = LogLayout.BATCH,
    writer: Writer = Writer.AUTO,
) -> StatefulQuery:
    """The streaming query over the departures. `log` and `writer`: as in `start` and `DeltaSink`."""
    departures = (
        session.readStream.format("delta")
        # Without a starting version Spark begins with a snapshot of the table, whose files it takes in another order.
        .option("startingVersion", 1)
        .option("maxFilesPerTrigger", 1)
        .load(places.departures)
    )
    return start(
        OPERATOR,
        departures,
        root=places.state,
        checkpoint=places.checkpoint,
        sink={FACTS: DeltaSink(places.facts, writer=writer), GROUNDED: DeltaSink(places.grounded, writer=writer)},
        partitions=_PARTITIONS,
        log=log,
        host=Host(places.local),
        observer=observer,
        trigger={"processingTime": "0 seconds"},
        name="flights",
    )


class _Consumed:
    """Passes what happens on, and remembers how many days the query has read, `days` of them in earlier runs."""

    def __init__(self, days: int, *inner: Observer) -> None:
        self._inner = inner
        self.days = days

    def phase(self, batch: int, phase: Phase) -> None:
        for observer in self._inner:
            observer.phase(batch, phase)

    def finished(self, report: BatchReport) -> None:
        self.days = report.batch + 1
        for observer in self._inner:
            observer.finished(report)


def run(
    places: Places,
    *,
    batches: int | None,
    console: Console,
    observers: Sequence[Observer] = (),
    make_feeder: Callable[[str], Feeder] = Feeder,
    make_query: Callable[[SparkSession, Places, Observer], StatefulQuery] = start_query,
    platform: Platform | None = None,
    stop: threading.Event | None = None,
    started_at: float | None = None,
) -> int:
    """Feed and run until all flights have departed, so many batches are done, or Ctrl-C. Returns the exit code.

    `observers` are told what happens, after the status; `make_feeder` is given the place of the departures. With a
    `platform` it stays after the last flight, to be looked at, until Ctrl-C. `stop` is what Ctrl-C sets, when somebody
    has waited for it already. `started_at`: Unix time from which the elapsed time counts; the default is now.
    """
    require_java()
    stop, ended = stop or threading.Event(), threading.Event()
    _stop_on_signals(stop)
    clock = SystemClock()
    status = Status(
        console,
        clock,
        started_at=started_at,
        stop_after=batches,
        root=partial(root_figures, open_storage(places.state)),
        beside=platform.figures if platform else tuple,
    )
    # Losing schedule: a run ends when all that was fed is read. To the next one nothing would be consumed, so that its
    # feeder waits for the query, and the query, which has no batch to run again, for the feeder.
    newest = catalog.newest_batch(open_storage(places.checkpoint))
    consumed = _Consumed(0 if newest is None else newest + 1, status, *observers)
    with status:
        feeder = make_feeder(places.departures)
        feeder.feed(1)
        status.step(f"Spark starts; the first time it fetches Delta's jars; its log is {places.spark_log}")
        session = _session(places.spark_log)
        # PySpark has put a handler of its own there, which cancels the running batch's jobs.
        _stop_on_signals(stop)
        feeding = threading.Thread(
            target=feeder.run_ahead, args=(ended, lambda: consumed.days, _FED_AHEAD), name="feeder", daemon=True
        )
        query = make_query(session, places, consumed)
        try:
            feeding.start()
            while not (stop.is_set() or status.wanted_batches_are_done.is_set() or consumed.days >= feeder.days):
                if query.await_termination(_POLL_SECONDS):
                    break
                status.print_figures()
        finally:
            ended.set()
            status.stopping()
            if platform is not None and (stop.is_set() or batches is not None):
                platform.children.begin_to_end()
            query.stop()
            feeding.join()
            # Where the JVM has died there is nothing left to stop, and what killed it is on its way up already.
            with contextlib.suppress(Py4JError, OSError):
                session.stop()
    status.print_summary(
        lambda: (
            f"{consumed.days} of {feeder.days} days; state in {places.state}, outputs in {places.facts} and "
            f"{places.grounded}"
        )
    )
    if platform is not None and batches is None and not stop.is_set():
        console.print(f"all flights have departed; Dagster stays at {platform.page} until Ctrl-C")
        while not stop.wait(_POLL_SECONDS):
            status.print_figures()
    return 0


def _session(log: Path) -> SparkSession:
    known_bytes = log.stat().st_size if log.exists() else 0
    try:
        with _stderr_into(log):
            return spark_session("flights", master="local[2]")
    except UnsupportedEnvironment as error:
        said = log.read_bytes()[known_bytes:].decode(errors="replace")
        raise (without_jars(said) or UnsupportedEnvironment(error.what, path=str(log), hint=error.hint)) from error


@contextlib.contextmanager
def _stderr_into(log: Path) -> Iterator[None]:
    """Let processes started meanwhile, the JVM and its workers, write what they say into a file: the terminal is the
    status's."""
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _stop_on_signals(stop: threading.Event) -> None:
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code of the error's class, 0 when all is well."""
    parser = argparse.ArgumentParser(prog="make run", description="Run the flights job; run it again to go on.")
    parser.add_argument("--batches", type=int, help="stop after so many batches (default: all flights)")
    parser.add_argument("--no-ui", action="store_true", help="only the terminal, nobody looks after the state")
    parser.add_argument("--port", type=int, default=PORT, help="of Dagster's UI (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path("var/flights"), help="where all lies (default: %(default)s)"
    )
    parser.add_argument("--started", type=float, help="Unix time from which the elapsed time counts (default: now)")
    chosen = parser.parse_args(arguments)
    console = Console()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=console)])
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    places = Places(chosen.folder)
    try:
        if chosen.no_ui:
            return run(places, batches=chosen.batches, console=console, started_at=chosen.started)
        require_java()
        # Before anything is started: an ignored SIGINT would be handed on to Dagster's processes.
        stop = threading.Event()
        _stop_on_signals(stop)
        with started(places.dagster, places.configuration(), port=chosen.port, health_cron=_EACH_MINUTE) as platform:
            return run(
                places,
                batches=chosen.batches,
                console=console,
                platform=platform,
                stop=stop,
                started_at=chosen.started,
            )
    except StatekeeperError as error:
        console.print(Text.assemble((error.code, "red"), ": ", str(error)), soft_wrap=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
