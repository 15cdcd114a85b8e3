"""A night in a company: fifty checkpoints of five teams, ten kinds of damage, and processes that are killed at random.

    python -m tests.faults.company_night --minutes 30 --seed 7 [--through dagster|watch] [--small] [--folder FOLDER]

The company has its own Dagster project and instance, with runs, partitions, ticks and a run that seems to hang. The fleet
is maintained through it, or through a resident process. Half of the healthy queries commit batches all night. Each damage
must be told once, to the right team only, with the file and a next command that works. All other queries must be maintained
when the night is over, and nothing of the company may have changed.

A message is sent once more, with the same id, if its sender was killed before it recorded the answer. The night kills some
senders at this moment. It counts messages by their ids, and shows the repetitions.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorType, TickData, TickStatus
from dagster._core.test_utils import create_run_for_test

from statekeeper.assets.partitions import QUERY_TAG
from statekeeper.resources.launcher.children import Children, Command
from statekeeper.resources.worker import BEAT_TAG, HOLDER_TAG
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rounds import metrics
from statekeeper.statestore.maintenance.rounds.visit import Status, Visit, visit
from statekeeper.statestore.maintenance.verbs import config
from statekeeper.statestore.maintenance.verbs.contract import Run
from statekeeper.statestore.storage import open_storage
from tests.support import companies
from tests.support.checkpoints import Checkpoint
from tests.support.maintainers import MAINTAINER
from tests.support.unpacked import unpacked

TEAMS = ("payments", "ads", "crm", "search", "rides")
FLEET = "streams"
LONG_TAIL = 5
ARCHIVES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
REPOSITORY = Path(__file__).parents[2]
_OF_DAMAGES = {(TEAMS[0], 0): "v2-transformWithState", (TEAMS[-1], 0): "v2-repartitioned"}
"""Native queries whose damage needs a snapshot."""
UNREADABLE = "unreadable root"
_NEXT = re.compile(r"Next: (statekeeper .+)$", re.DOTALL)
_LOOK_SECONDS = 0.5


# -- the messages ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """A message as it was received. `channel`: the path of the URL."""

    at_seconds: float
    channel: str
    body: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.body.get("id") or f"{self.at_seconds}")

    @property
    def subject(self) -> str:
        return str(self.body.get("subject", ""))

    @property
    def change(self) -> str:
        return f"{self.body.get('before')} -> {self.body.get('status')}"


class Inbox:
    """An HTTP server that records each message. `arrived` is called before it answers."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.arrived: Callable[[Message], None] = lambda message: None
        inbox = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                message = Message(time.time(), self.path.strip("/"), body)
                inbox.messages.append(message)
                inbox.arrived(message)
                with suppress(OSError):  # its sender may have been killed
                    self.send_response(200)
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Inbox]:
        made = cls()
        threading.Thread(target=made._server.serve_forever, daemon=True).start()
        try:
            yield made
        finally:
            made._server.shutdown()
            made._server.server_close()


# -- the queries -------------------------------------------------------------------------------------------------------


@dataclass
class Query:
    """A checkpoint of a team. `job`: what writes it, None for a native query, which is recorded and does not run."""

    name: str
    team: str
    folder: Path
    job: Checkpoint | None = None
    grows: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def newest(self) -> int:
        """The newest version in its commit log."""
        commits = [int(one.name) for one in (self.folder / "commits").iterdir() if one.name.isdigit()]
        return max(commits) + 1


@dataclass(frozen=True)
class Shape:
    """The size of a night.

    per_team        queries of each team
    seconds         until the last kill
    batch_seconds   time between two batches of a query that grows
    kill_seconds    the least and the longest time between two kills
    told_kills      share of messages whose sender is killed before it gets the answer
    most_kills      of both kinds each; None: no limit
    slowest_repair  whether also damages are repaired that are looked at again after a minute
    """

    per_team: int = 10
    seconds: float = 1800.0
    batch_seconds: float = 15.0
    kill_seconds: tuple[float, float] = (15.0, 45.0)
    told_kills: float = 0.3
    watch_seconds: int = 5
    sweep_seconds: int = 60
    slowest_repair: bool = True
    settle_seconds: float = 1500.0
    most_kills: int | None = None


class World:
    """The folder of the company: its queries, and the files of its teams."""

    def __init__(self, folder: Path, shape: Shape, url: str) -> None:
        self.folder, self.shape, self.url = folder, shape, url
        self.teams = folder / "teams"
        self.teams.mkdir(parents=True)
        self.queries: dict[str, Query] = {}
        self._make_queries()
        for team in TEAMS:
            self.file(team).write_text(self._configuration(team))

    def file(self, team: str) -> Path:
        return self.teams / f"{team}.toml"

    def _configuration(self, team: str) -> str:
        text = f"""
[defaults]
team = "{team}"
owner = "{team}@example.com"
mode = "full"
snapshot = {{ changelogs = {LONG_TAIL} }}
retention = {{ versions = 3, grace = "5s" }}

[policies."{team}*"]
labels = {{ tier = "1" }}

[teams.{team}]
webhook = "{self.url}/{team}"
"""
        if team == TEAMS[0]:
            text += f'\n[teams.default]\nwebhook = "{self.url}/default"\n'
        if team != TEAMS[-1]:
            return f'{text}\n[parents.{team}]\nurl = "{self.folder}/data/{team}/*/checkpoint"\nforget_after = "1d"\n'
        for one in self.queries.values():
            if one.team == team:
                text += f'\n[roots.{one.name}]\nurl = "{one.folder}"\n'
        return f'{text}\n[roots.rides-refunds]\nurl = "{self.folder}/data/rides/refunds/checkpoint"\n'

    def _make_queries(self) -> None:
        archives = sorted(one for one in ARCHIVES.glob("spark-*.zip") if "-hdfs-" not in one.name)
        structures = [(Structure.V2, False), (Structure.V1, False), (Structure.V2, True)]
        bases: list[Checkpoint] = []
        for number, (structure, in_batch_logs) in enumerate(structures):
            base = self.folder / "bases" / str(number)
            made = Checkpoint(
                open_storage(str(base / "checkpoint")), base / "host", structure=structure, in_batch_logs=in_batch_logs
            )
            made.grow(3)
            bases.append(made)
        native = self.shape.per_team * 2 // 5 or 1
        for at_team, team in enumerate(TEAMS):
            for number in range(self.shape.per_team):
                of_team = f"q{number:02}"
                place = self.folder / "data" / team / of_team
                name = f"{team}-{of_team}" if team == TEAMS[-1] else f"{team}.{of_team}"
                query = Query(name, team, place / "checkpoint")
                if number < native:
                    # Both structures in each team, and the damage of an id needs V2.
                    mine = [one for one in archives if ("-v2-" in one.name) == (number % 2 == 0)]
                    archive = mine[(at_team + 5 * (number // 2)) % len(mine)]
                    if (team, number) in _OF_DAMAGES:
                        archive = ARCHIVES / f"spark-4.2.0-{_OF_DAMAGES[team, number]}.zip"
                    unpacked(archive, place)
                else:
                    base = bases[(number - native) % 3]
                    query.job = base.copied_to(open_storage(str(query.folder)), place / "host")
                    query.grows = (number - native) % 3 != 1 or number < native + 3
                self.queries[name] = query

    # -- batches --------------------------------------------------------------------------------------------------------

    def write(self, ended: threading.Event) -> None:
        """Commit batches of the queries that grow, until the night is over."""
        while not ended.is_set():
            growing = [one for one in self.queries.values() if one.grows]
            for one in growing:
                if ended.wait(self.shape.batch_seconds / len(growing)):
                    return
                self.commit(one, 1)

    def commit(self, query: Query, batches: int) -> None:
        with query.lock:
            if query.job is not None and query.grows:
                query.job.grow(batches)


# -- damages -----------------------------------------------------------------------------------------------------------


@dataclass
class Damage:
    """A kind of damage of one query, or of the file of a team.

    plant     makes the damage, and returns the part of the message that names the file; None: not yet possible
    at        share of the night after which it is planted
    repair    makes it good, after the share `repaired` of the night; 1: in the morning, after its next command was run
    """

    kind: str
    team: str
    subject: str
    plant: Callable[[], str | None]
    at: float = 0.0
    repair: Callable[[], None] | None = None
    repaired: float = 0.0
    status: str = "ERROR"
    names: str = ""
    planted_seconds: float | None = None
    repaired_seconds: float | None = None


def damages_of(world: World) -> list[Damage]:
    """The ten damages of a night."""
    native = world.shape.per_team * 2 // 5 or 1
    lost = world.folder / "lost"
    lost.mkdir()

    def name(team: str, number: int) -> str:
        return f"{team}-q{number:02}" if team == TEAMS[-1] else f"{team}.q{number:02}"

    def store(query: Query) -> Path:
        return query.folder / "state" / "0" / "1"

    def newest(query: Query, suffix: str) -> Path | None:
        found = [one for one in store(query).glob(f"*{suffix}") if not one.name.startswith(".")]
        return max(found, key=lambda one: int(re.split(r"[_.]", one.name)[0]), default=None)

    def missing_changelog() -> str | None:
        query = world.queries[name("payments", native)]
        with query.lock:
            query.grows = False
            found = newest(query, ".changelog")
            assert found is not None
            found.rename(lost / found.name)
            return found.name

    def found_changelog() -> None:
        query = world.queries[name("payments", native)]
        [one] = lost.glob("*.changelog")
        one.rename(store(query) / one.name)

    def truncated_changelog() -> str | None:
        query = world.queries[name("ads", native + 1)]
        with query.lock:
            assert query.job is not None
            # Its job stops when it has so many batches that the query is due.
            query.grows = False
            while True:
                query.job.grow(1)
                found = newest(query, ".changelog")
                assert found is not None
                found.write_bytes(found.read_bytes()[:20])
                # Race: a visit took a snapshot of this version before.
                if _newest_snapshot(query) < query.newest:
                    break
            query.job.grow(LONG_TAIL)
            return found.name

    def missing_table() -> str | None:
        [lost_table] = (world.queries[name("rides", 0)].folder / "state/0/2/SSTs").glob("[0-9]*.sst")
        lost_table.unlink()
        return lost_table.name

    def damaged_snapshot() -> str | None:
        found = sorted(world.queries[name("payments", 0)].folder.glob("state/0/[0-9]*/[0-9]*.zip"))
        replaced(found[-1], b"\0" * found[-1].stat().st_size)
        return found[-1].name

    def log_of(query: Query) -> Path:
        return query.folder / "commits" / str(query.newest - 1)

    def replaced(path: Path, data: bytes) -> None:
        path.write_bytes(data)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def unreadable_commit() -> str | None:
        log = log_of(world.queries[name("ads", 0)])
        replaced(log, b"v1\n{")
        return f"commits/{log.name}"

    def unknown_id() -> str | None:
        log = log_of(world.queries[name("crm", 0)])
        body, count = re.subn(rb'\[\["[^"]+"', b'[["00000000-0000-4000-8000-000000000000"', log.read_bytes(), count=1)
        assert count == 1, log
        replaced(log, body)
        return "00000000-0000-4000-8000-000000000000"

    def wrong_metadata() -> str | None:
        file = world.queries[name("search", 0)].folder / "state" / "0" / "_metadata"
        [found] = [one for one in (file / "metadata", *file.glob("v2/[0-9]*")) if one.is_file()][:1]
        replaced(found, b"a file of another program\n")
        return "state/0/_metadata"

    def unreadable_root() -> str | None:
        query = world.queries[name("payments", native + 1)]
        with query.lock:
            query.grows = False
            query.folder.rename(lost / "checkpoint")
            query.folder.symlink_to(query.folder)
        return str(query.folder)

    def readable_root() -> None:
        query = world.queries[name("payments", native + 1)]
        query.folder.unlink()
        (lost / "checkpoint").rename(query.folder)

    valid = world.file("rides").read_text()

    def invalid_table() -> str | None:
        new = f'{valid}\n[roots.rides-tips]\nurl = "tips"\nretension = 1\n'
        replace_file(world.file("rides"), new)
        return "retension"

    return [
        Damage(
            "missing changelog",
            "payments",
            name("payments", native),
            missing_changelog,
            repair=found_changelog,
            repaired=0.15 if world.shape.slowest_repair else 1.0,
        ),
        Damage("truncated changelog", "ads", name("ads", native + 1), truncated_changelog, at=0.3),
        Damage("missing SST file", "rides", name("rides", 0), missing_table),
        Damage("damaged snapshot", "payments", name("payments", 0), damaged_snapshot),
        Damage("unreadable commit", "ads", name("ads", 0), unreadable_commit),
        Damage("commit with an unknown id", "crm", name("crm", 0), unknown_id),
        Damage("file of another program", "search", name("search", 0), wrong_metadata),
        Damage(
            UNREADABLE,
            "payments",
            name("payments", native + 1),
            unreadable_root,
            at=0.3,
            repair=readable_root,
            repaired=0.7 if world.shape.slowest_repair else 1.0,
        ),
        Damage("expected and absent", "rides", "rides-refunds", lambda: "no committed batch", status="WARN"),
        Damage(
            "invalid table",
            "rides",
            f"roots.rides-tips in {world.file('rides')}",
            invalid_table,
            at=0.2,
            repair=lambda: replace_file(world.file("rides"), valid),
            repaired=0.6,
        ),
    ]


def replace_file(path: Path, text: str) -> None:
    """Replace a file in one step, as an editor does."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


# -- the maintainers ---------------------------------------------------------------------------------------------------


class Maintainer(ABC):
    """The processes that maintain the fleet."""

    name: str

    def __init__(self, world: World) -> None:
        self.world = world
        self.kills: Counter[str] = Counter()

    @abstractmethod
    def running(self) -> Any:
        """A context in which the processes run, and are started again when they die."""

    kinds: tuple[str, ...]
    """The kinds of processes that are killed."""

    @abstractmethod
    def processes(self, kind: str) -> list[int]:
        """The running processes of a kind. The first kind sends messages."""

    @abstractmethod
    def visited(self) -> Mapping[str, float]:
        """The time of the newest visit of each query, since the epoch."""

    def foreign(self) -> list[str]:
        """Sentences on things of the company that changed."""
        return []

    def kill(self, kind: str, process: int, *, why: str = "") -> None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            self.kills[f"{kind}{why}"] += 1


def _environment() -> dict[str, str]:
    found = {**os.environ, "DAGSTER_DISABLE_TELEMETRY": "yes", "PYTHONUNBUFFERED": "1"}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


class Watch(Maintainer):
    """The resident process."""

    name = "watch"
    kinds = ("resident",)

    @property
    def state(self) -> Path:
        return self.world.folder / "memory.json"

    @contextmanager
    def running(self) -> Iterator[None]:
        shape = self.world.shape
        command = [sys.executable, "-m", "statekeeper", "--config", str(self.world.teams), "maintain", "--all"]
        command += ["--watch", f"{shape.watch_seconds}s", "--sweep", f"{shape.sweep_seconds}s"]
        command += ["--state", str(self.state), "--fleet", FLEET]
        log = self.world.folder / "logs" / "resident.log"
        with Children([Command("resident", command, log)], _environment(), SystemClock()) as children:
            self._children = children
            yield

    def processes(self, kind: str) -> list[int]:
        return [process for name, process in self._children.process_ids().items() if name == kind]

    def visited(self) -> Mapping[str, float]:
        try:
            body = json.loads(self.state.read_text())
        except FileNotFoundError:
            return {}
        return {name: one["visited_seconds"] for name, one in body["queries"].items()}


PROJECT = f"""
from pathlib import Path

import dagster as dg
from assets import clicks_stream, report, snapshot
from pipelines import changelog_tail, each_five_minutes, maintain_query, nightly_sweep, prune_history, ticks
from resources import Warehouse
from statekeeper.dagster import build_definitions

HERE = Path(__file__).parent

defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[clicks_stream, report, snapshot],
        jobs=[maintain_query, prune_history],
        schedules=[nightly_sweep, each_five_minutes],
        sensors=[changelog_tail, ticks],
        resources={{"fleet": Warehouse(name="cars"), "notifier": Warehouse(name="mail")}},
    ),
    build_definitions(
        HERE / "teams",
        name="{FLEET}",
        alerts={{"webhook": "env:ALERTS"}},
        scratch=HERE / "scratch",
        health_cron="*/2 * * * *",
    ),
)
"""

MORE_PIPELINES = """

@dg.schedule(job=prune_history, cron_schedule="*/5 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def each_five_minutes() -> dg.RunRequest:
    return dg.RunRequest()

@dg.sensor(job=prune_history, minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING)
def ticks() -> dg.SkipReason:
    return dg.SkipReason("a sensor of the company that ticks")
"""


_OF_COMPANY = ("ticks", "changelog_tail", "each_five_minutes", "nightly_sweep")


class Dagster(Maintainer):
    """The company's instance: a code server, a daemon, and the runs."""

    name = "dagster"
    kinds = ("run", "daemon", "code server")

    def __init__(self, world: World) -> None:
        super().__init__(world)
        folder = world.folder
        for package, code in {
            "assets": companies.ASSETS,
            "resources": companies.RESOURCES,
            "pipelines": companies.PIPELINES + MORE_PIPELINES,
        }.items():
            (folder / package).mkdir()
            (folder / package / "__init__.py").write_text(code)
        (folder / "project.py").write_text(PROJECT)
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "dagster.yaml").write_text(companies.HOME)
        self._recorded: dict[str, str] = {}
        self._ticks: list[int] = []

    @property
    def instance(self) -> dg.DagsterInstance:
        return self._instance

    @contextmanager
    def running(self) -> Iterator[None]:
        folder, short = self.world.folder, tempfile.mkdtemp(prefix="night-")
        server, workspace = Path(short) / "code", folder / "workspace.yaml"
        workspace.write_text(f'load_from:\n  - grpc_server: {{socket: "{server}", location_name: company}}\n')
        environment = {**_environment(), "DAGSTER_HOME": str(self.home), "ALERTS": f"{self.world.url}/alerts"}
        code = ["--python-file", str(folder / "project.py"), "--working-directory", str(folder)]
        code += ["--location-name", "company"]
        programs = Path(sys.executable).parent
        commands = [
            Command(
                "code server",
                [sys.executable, "-m", "dagster", "api", "grpc", "--socket", str(server), *code],
                folder / "logs" / "code-server.log",
            ),
            Command(
                "daemon",
                [str(programs / "dagster-daemon"), "run", "--workspace", str(workspace)],
                folder / "logs" / "daemon.log",
                after=server,
            ),
        ]
        with dg.DagsterInstance.from_config(str(self.home)) as self._instance:
            self._record_foreign()
            with Children(commands, environment, SystemClock()) as self._children:
                _wait("the code server", server.exists, 180)
                for kind in ("sensor", "schedule"):
                    _wait(f"a started {kind}", lambda kind=kind: self._started(kind, workspace, environment), 240)
                yield
            self._end_runs()
        shutil.rmtree(short, ignore_errors=True)

    def _started(self, kind: str, workspace: Path, environment: Mapping[str, str]) -> bool:
        command = [sys.executable, "-m", "dagster", kind, "start", "--start-all", "--workspace", str(workspace)]
        done = subprocess.run(
            [*command, "--location", "company"], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stdout[-500:], done.stderr[-800:])
        return done.returncode == 0

    def _end_runs(self) -> None:
        """Runs outlive a code server that was killed."""
        for process in self._runs().values():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _runs(self) -> dict[str, int]:
        """The processes of the started runs of the fleet, by the ids of the runs."""
        query = """SELECT run_id, value FROM run_tags JOIN runs USING (run_id)
            WHERE key = ? AND status = 'STARTED' AND pipeline_name LIKE ?"""
        found: dict[str, int] = {}
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(f"file:{self.home}/history/runs.db?mode=ro", uri=True)) as storage,
        ):
            for run_id, holder in storage.execute(query, (HOLDER_TAG, f"{FLEET}_%")):
                host, _, process = holder.partition(", ")[0].rpartition(":")
                if host == socket.gethostname() and _is_run(int(process)):
                    found[run_id] = int(process)
        return found

    def processes(self, kind: str) -> list[int]:
        if kind == "run":
            return list(self._runs().values())
        return [process for name, process in self._children.process_ids().items() if name == kind]

    def visited(self) -> Mapping[str, float]:
        key = dg.AssetKey([FLEET, "commit_log"])
        found: dict[str, float] = {}
        for name in self.world.queries:
            filters = dg.AssetRecordsFilter(key, asset_partitions=[name])
            records = self._instance.fetch_observations(filters, limit=1).records
            if records:
                found[name] = records[0].timestamp
        return found

    # -- what the company has ------------------------------------------------------------------------------------------

    def _record_foreign(self) -> None:
        """Runs, partitions and ticks of the company, some with the names that those of the fleet have."""
        ended, started = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.STARTED
        self._keys = sorted(["clicks", "north", *list(self.world.queries)[:5]])
        self._instance.add_dynamic_partitions("streaming_query", self._keys)
        dead = {HOLDER_TAG: f"{socket.gethostname()}:1, Dagster run x", BEAT_TAG: "2026-03-01T03:00:00Z"}
        for job in ("maintain_query", "report", f"{FLEET}_maintain_queries"):
            for status in (ended, started):
                run = create_run_for_test(self._instance, job, status=status, tags={QUERY_TAG: "clicks", **dead})
                self._recorded[run.run_id] = str(run.status)
        for name in ("ticks", "changelog_tail"):
            tick = TickData("theirs", name, InstigatorType.SENSOR, TickStatus.SKIPPED, time.time(), selector_id=name)
            self._ticks.append(self._instance.create_tick(tick).tick_id)

    def foreign(self) -> list[str]:
        found = []
        for run_id, status in self._recorded.items():
            run = self._instance.get_run_by_id(run_id)
            if run is None:
                found.append(f"the foreign run {run_id} was deleted")
            elif str(run.status) != status:
                found.append(f"the foreign run {run_id} of {run.job_name} was {status} and is {run.status}")
        if (keys := sorted(self._instance.get_dynamic_partitions("streaming_query"))) != self._keys:
            found.append(f"the foreign partitions were {self._keys} and are {keys}")
        ours = set(self._instance.get_dynamic_partitions(f"{FLEET}_streaming_query"))
        if missing := self.world.queries.keys() - ours:
            found.append(f"the queries {sorted(missing)} have no partition")
        left = [one.tick_id for name in ("ticks", "changelog_tail") for one in self._instance.get_ticks("theirs", name)]
        if sorted(left) != sorted(self._ticks):
            found.append(f"the foreign ticks were {self._ticks} and are {left}")
        for state in self._instance.all_instigator_state():
            if state.name in _OF_COMPANY and not state.is_running:
                found.append(f"the foreign {state.name} is {state.status.value}")
            if state.name == "ticks" and not self._instance.get_ticks(state.instigator_origin_id, state.selector_id):
                found.append("the foreign sensor has no tick")
        return found


def _is_run(process: int) -> bool:
    """Whether this process runs a run for a code server: the system may have given its id to another one."""
    with suppress(OSError):
        return "multiprocessing" in Path(f"/proc/{process}/cmdline").read_text(errors="replace")
    return False


def _wait(what: str, look: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not look():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not seen in {seconds:.0f} s")
        time.sleep(_LOOK_SECONDS)


# -- the night ---------------------------------------------------------------------------------------------------------


class Night:
    """Plants and repairs damages, kills processes, waits until the fleet is maintained, and judges."""

    def __init__(self, maintainer: Maintainer, inbox: Inbox, seed: int) -> None:
        self.maintainer, self.world, self.inbox = maintainer, maintainer.world, inbox
        self.chance = random.Random(seed)
        self.damages = damages_of(self.world)
        self.broken: list[str] = []
        self._may_kill = threading.Event()
        self._chances: dict[str, bool] = {}
        inbox.arrived = self._arrived

    def _arrived(self, message: Message) -> None:
        """Kill the sender of some messages before it gets the answer. A repetition gets its answer."""
        if message.channel not in TEAMS or not self._may_kill.is_set() or message.id in self._chances:
            return
        self._chances[message.id] = self.chance.random() < self.world.shape.told_kills
        most = self.world.shape.most_kills
        if self._chances[message.id] and (most is None or sum(self._chances.values()) <= most):
            kind = self.maintainer.kinds[0]
            for process in self.maintainer.processes(kind):
                self.maintainer.kill(kind, process, why=", before the answer to a message")

    def run(self) -> None:
        """The night."""
        for damage in self.damages:
            if damage.at == 0.0:
                self._plant(damage)
        ended = threading.Event()
        writer = threading.Thread(target=self.world.write, args=(ended,), name="jobs", daemon=True)
        with self.maintainer.running():
            writer.start()
            self._may_kill.set()
            self._storm()
            self._may_kill.clear()
            ended.set()
            writer.join()
            self._settle()
            self._judge()

    def _storm(self) -> None:
        shape, begun = self.world.shape, time.monotonic()
        next_kill = begun + self.chance.uniform(*shape.kill_seconds)
        kind = self.chance.choice(self.maintainer.kinds)
        kills = 0
        while (now := time.monotonic()) < begun + shape.seconds:
            share = (now - begun) / shape.seconds
            for damage in self.damages:
                if damage.planted_seconds is None and share >= damage.at:
                    self._plant(damage)
                due = damage.repair is not None and damage.repaired_seconds is None and share >= damage.repaired
                if due and self._is_told(damage):
                    assert damage.repair is not None
                    damage.repair()
                    damage.repaired_seconds = time.time()
                    self._say(f"repaired: {damage.kind}")
            # A run may begin only in a while.
            if now >= next_kill and (shape.most_kills is None or kills < shape.most_kills) and self._kill(kind):
                kills += 1
                kind = self.chance.choice(self.maintainer.kinds)
                next_kill = now + self.chance.uniform(*shape.kill_seconds)
            time.sleep(_LOOK_SECONDS / 2)

    def _plant(self, damage: Damage) -> None:
        names = damage.plant()
        if names is not None:
            damage.names, damage.planted_seconds = names, time.time()
            self._say(f"planted: {damage.kind} in {damage.subject}")

    def _is_told(self, damage: Damage) -> bool:
        return any(one.subject == damage.subject for one in self.inbox.messages)

    def _kill(self, kind: str) -> bool:
        """Kill a process of a kind, if one is running."""
        found = self.maintainer.processes(kind)
        if not found:
            return False
        time.sleep(self.chance.uniform(0.0, 2.0))
        self.maintainer.kill(kind, self.chance.choice(found))
        self._say(f"killed: {kind}")
        return True

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.maintainer.name}: {text}", flush=True)

    # -- the morning ----------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> list[Query]:
        damaged = {one.subject for one in self.damages}
        return [one for one in self.world.queries.values() if one.name not in damaged]

    def _settle(self) -> None:
        """Commit batches once more, and wait until all is maintained and told."""
        for query in self.healthy:
            self.world.commit(query, LONG_TAIL + 1)
        self._morning = time.time()
        self._say("the night is over")
        deadline = time.monotonic() + self.world.shape.settle_seconds
        left = self._unsettled()
        while left and time.monotonic() < deadline:
            time.sleep(2)
            if (now := self._unsettled()) != left:
                left = now
                self._say(f"not settled: {len(left)}: {'; '.join(left)[:300]}")
        self.settled_seconds = time.time() - self._morning
        self.broken += [f"{self.settled_seconds:,.0f} s after the night: {one}" for one in left]

    def _unsettled(self) -> list[str]:
        visited = self.maintainer.visited()
        found = []
        for query in self.healthy:
            newest = visited.get(query.name)
            # An idle query is maintained at its discovery, then by the schedule of the night.
            needs_one = query.grows or self.maintainer.name == "watch"
            if newest is None or (needs_one and newest < self._morning):
                found.append(f"{query.name} was not maintained")
            elif query.grows and _newest_snapshot(query) <= query.newest - LONG_TAIL:
                found.append(f"{query.name} has no snapshot of this morning")
        for damage in self.damages:
            changes = self._changes(damage)
            if damage.planted_seconds is None:
                found.append(f"{damage.kind} could not be planted in {damage.subject}")
            elif not changes:
                found.append(f"{damage.kind} of {damage.subject} was not told")
            elif damage.repaired_seconds is not None and not changes[-1].endswith("OK"):
                found.append(f"the repair of {damage.subject} was not told")
        return found

    def _changes(self, damage: Damage) -> list[str]:
        """What was told of a damage, without repetitions."""
        return [one.change for one in self._messages_of(damage.subject).values()]

    def _messages_of(self, subject: str) -> dict[str, Message]:
        found: dict[str, Message] = {}
        for one in list(self.inbox.messages):
            if one.subject == subject:
                found.setdefault(one.id, one)
        return found

    def _judge(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        # Only its next command reports that a checkpoint cannot be read, and then it is repaired for those of the others.
        for damage in sorted(self.damages, key=lambda one: one.kind != UNREADABLE):
            self._judge_damage(damage)
            if damage.kind == UNREADABLE and damage.repaired_seconds is None and damage.repair is not None:
                damage.repair()
        told = {one.subject for one in self.damages}
        for message in self.inbox.messages:
            if message.channel != "alerts" and message.subject not in told:
                self.broken.append(
                    f"the channel {message.channel} was told of {message.subject}: {message.body['text']}"
                )
            if message.channel in TEAMS and not message.body.get("id"):
                self.broken.append(f"the message on {message.subject} has no id")
        found = config.load(self.world.teams)
        for query in self.healthy:
            looked = self._looked(query, found)
            if looked.status is not Status.OK:
                self.broken.append(f"{query.name} is {looked.status.name}: {looked.text}")
            tail = metrics.gauges_of(looked).get("tail_changelogs", 0)
            if query.job is not None and tail > LONG_TAIL:
                self.broken.append(f"{query.name} has a tail of {tail:.0f} changelogs")
            if query.job is not None:
                try:
                    query.job.assert_right(self.world.folder / "fresh" / query.name)
                except AssertionError as error:
                    self.broken.append(f"the state of {query.name} is wrong: {error}")
        self.broken += self.maintainer.foreign()

    def _looked(self, query: Query, found: config.Configuration) -> Visit:
        root = found.find(query.name)
        run = Run(
            storage=open_storage(root.spec),
            policies=root.policies,
            by=MAINTAINER,
            scratch=self.world.folder / "scratch of the judge",
        )
        return visit(query.name, run, takes=False, deletes=False)

    def _judge_damage(self, damage: Damage) -> None:
        messages = self._messages_of(damage.subject)
        expected = [f"OK -> {damage.status}"]
        if damage.repaired_seconds is not None:
            expected.append(f"{damage.status} -> OK")
        changes = [one.change for one in messages.values()]
        if changes != expected:
            self.broken.append(f"{damage.kind} of {damage.subject}: the messages are {changes}, and not {expected}")
        received = [one for one in self.inbox.messages if one.subject == damage.subject]
        wrong = {one.channel for one in received if one.channel != damage.team}
        if wrong:
            self.broken.append(f"{damage.kind} of {damage.subject} was told to {sorted(wrong)}")
        bodies = {one.id: {k: v for k, v in one.body.items() if k not in ("is_repeated", "text")} for one in received}
        for one in received:
            same = {k: v for k, v in one.body.items() if k not in ("is_repeated", "text")}
            if same != bodies[one.id]:
                self.broken.append(f"two messages with the id {one.id} differ")
        expected_codes = (1,) if damage.kind == UNREADABLE and damage.repaired_seconds is None else (0, 3)
        code, delay = "", ""
        if messages:
            first = next(iter(messages.values()))
            delay = f"{first.at_seconds - max(damage.planted_seconds or 0.0, self._started):,.0f}"
            if damage.names not in str(first.body["problem"]):
                self.broken.append(f"{damage.kind}: the message does not name {damage.names}: {first.body['problem']}")
            if (command := _NEXT.search(str(first.body["problem"]))) is None:
                self.broken.append(f"{damage.kind}: the message has no next command: {first.body['problem']}")
            else:
                code = str(self._pasted(command[1], damage, expected_codes))
        again = len(received) - len(messages)
        self.rows.append((damage.kind, damage.subject, ", ".join(changes), str(again), delay, code))

    def _pasted(self, command: str, damage: Damage, expected: tuple[int, ...]) -> int:
        program, *arguments = shlex.split(command)
        assert program == "statekeeper"
        done = subprocess.run(
            [sys.executable, "-m", "statekeeper", *arguments],
            capture_output=True,
            text=True,
            cwd=self.world.folder,
            env=_environment(),
            check=False,
        )
        if done.returncode not in expected:
            said = f"{done.stdout[-300:]} {done.stderr[-300:]}"
            self.broken.append(f"{damage.kind}: `{command}` ended with {done.returncode}: {said}")
        return done.returncode

    @property
    def _started(self) -> float:
        return min((one.at_seconds for one in self.inbox.messages), default=0.0) - 1

    def table(self) -> str:
        lines = ["", f"{self.maintainer.name}: {len(self.world.queries)} queries, {len(self.damages)} kinds of damage"]
        line = "{:<26}{:<34}{:<24}{:>8}{:>8}{:>6}"
        lines.append(line.format("damage", "subject", "told", "repeated", "after s", "next"))
        for kind, subject, *rest in self.rows:
            lines.append(line.format(kind, subject.partition(" in /")[0], *rest))
        lines.append("")
        received = Counter(one.channel for one in self.inbox.messages)
        rows: dict[str, object] = {f"kills: {kind}": number for kind, number in sorted(self.maintainer.kills.items())}
        rows |= {f"messages to {channel}": number for channel, number in sorted(received.items())}
        rows["healthy queries"] = len(self.healthy)
        rows["  of them growing"] = sum(one.grows for one in self.healthy)
        rows["batches of all jobs"] = sum(len(q.job.versions) - 1 for q in self.world.queries.values() if q.job)
        rows["seconds until all was maintained"] = round(self.settled_seconds)
        rows["violations"] = len(self.broken)
        lines += [f"{name:<56}{number:>8}" for name, number in rows.items()]
        return "\n".join([*lines, "", *(f"BROKEN: {one}" for one in self.broken)])


def _newest_snapshot(query: Query) -> int:
    """The newest version of which each store has a snapshot."""
    stores = [one for one in (query.folder / "state" / "0").iterdir() if one.name.isdigit()]
    return min(max((int(re.split(r"[_.]", zip_.name)[0]) for zip_ in one.glob("*.zip")), default=0) for one in stores)


THROUGH: Mapping[str, type[Maintainer]] = {one.name: one for one in (Dagster, Watch)}

SMALL = Shape(
    per_team=3,
    seconds=10.0,
    batch_seconds=1.5,
    kill_seconds=(6.0, 7.0),
    told_kills=1.0,
    watch_seconds=1,
    sweep_seconds=4,
    slowest_repair=False,
    settle_seconds=90.0,
    most_kills=1,
)
"""A night for CI."""


def spend(through: str, folder: Path, shape: Shape, seed: int) -> Night:
    """Spend a night, and return it judged."""
    with Inbox.opened() as inbox:
        night = Night(THROUGH[through](World(folder, shape, inbox.url)), inbox, seed)
        night.run()
        return night


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of all nights together, until the last kill")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--through", choices=sorted(THROUGH), help="default: both, one after the other")
    parser.add_argument("--small", action="store_true", help="the night of CI")
    parser.add_argument("--folder", type=Path, help="a folder that is not there yet, kept at the end")
    chosen = parser.parse_args()
    nights = [chosen.through] if chosen.through else sorted(THROUGH)
    shape = SMALL if chosen.small else Shape(seconds=chosen.minutes * 60 / len(nights))
    parent = (chosen.folder or Path(tempfile.mkdtemp(prefix="statekeeper-night-"))).absolute()
    # Stopped from outside, it still ends its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broken = cases = 0
    for name in nights:
        night = spend(name, parent / name, shape, chosen.seed)
        print(night.table(), flush=True)
        broken += len(night.broken)
        cases += len(night.damages) + len(night.healthy)
    print(f"{cases} damages and healthy queries, {broken} violations")
    if broken:
        print(f"all is kept in {parent} (seed {chosen.seed})")
    elif chosen.folder is None:
        shutil.rmtree(parent)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
