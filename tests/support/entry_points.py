"""Checkpoints with their configuration, and the obstacles that block a verb."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.definitions import build
from statekeeper.assets.partitions import QUERY_SET
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rewrites.whole_stores import Rescale
from statekeeper.statestore.maintenance.verbs import config
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.rewind import Rewind
from statekeeper.statestore.maintenance.verbs.savepoint import SaveFiles
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import edits, evolved_roots, loads, rescales
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import SimulatedCrash
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import MAINTAINER, QUIET_SECONDS
from tests.support.sink_tables import WrittenRoot
from tests.support.structures import as_sparks
from tests.support.switching import Dying, begin_a_switch, take_snapshots
from tests.support.unpacked import unpacked

ARCHIVES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
ROCKSDB, HDFS_BACKED = ARCHIVES / "spark-4.2.0-v2-aggregation.zip", ARCHIVES / "spark-4.2.0-hdfs-aggregation.zip"

HALF_SWITCHED, HALF_RESCALED, SAVED_ROWS = "half switched", "half rescaled", "saved rows"
DELETED = "key 3"
OWNER = "0badc0de-0000-4000-8000-00000000000a"

CONFIGURATION = """
[roots.flights]
url = "root"
mode = "{mode}"
snapshot = {{ changelogs = 1 }}
retention = {{ versions = 3, grace = "0s" }}
mirror = {{ url = "copy" }}
tables.counts = {{ url = "copy" }}
sinks.rows = {{ url = "root/table" }}
"""


@dataclass(frozen=True)
class Bases:
    """Checkpoints that give verbs something to do. Each is made when a test needs it, and then copied."""

    folder: Path
    _made: set[str] = field(default_factory=set)

    def path(self, name: str) -> Path:
        if name not in self._made:
            self._makers[name](self, self.folder / name)
            shutil.rmtree(self.folder / name / names.LEASES, ignore_errors=True)
            self._made.add(name)
        return self.folder / name

    def storage(self, name: str) -> Storage:
        return open_storage(str(self.path(name)))

    def ended(self, name: str) -> str:
        """Return the id of the run that made a base."""
        self.path(name)
        return (self.folder / f"{name}.run").read_text()

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def _makers(self) -> dict[str, Callable[[Bases, Path], None]]:
        return {
            "native": lambda _, path: _unpack(ROCKSDB, path),
            "HDFS-backed": lambda _, path: _unpack(HDFS_BACKED, path),
            "grown": Bases._make_grown,
            "job": lambda _, path: KeyedRoot(
                open_storage(str(path)), path.with_suffix(".job"), partitions=2, key_groups=16
            ).grow(2),
            "written": lambda _, path: WrittenRoot(
                KeyedRoot(open_storage(str(path)), path.with_suffix(".job"), partitions=2, key_groups=4),
                open_storage(str(path / "table")),
            ).grow(2),
            "in batch logs": lambda _, path: Checkpoint(
                open_storage(str(path)), path.with_suffix(".job"), in_batch_logs=True
            ).grow(4),
            "damaged": Bases._make_damaged,
            "edited": Bases._make_edited,
            "rewound": Bases._make_rewound,
            "labeled": Bases._make_labeled,
            SAVED_ROWS: Bases._make_saved_rows,
            HALF_SWITCHED: Bases._make_half_switched,
            HALF_RESCALED: Bases._make_half_rescaled,
        }

    def _copy(self, name: str, path: Path) -> Storage:
        shutil.copytree(self.path(name), path)
        return open_storage(str(path))

    def _make_grown(self, path: Path) -> None:
        """Make a checkpoint with snapshots, whose old files can be deleted."""
        grown = Checkpoint(open_storage(str(path)), path.with_suffix(".job"))
        for _ in range(3):
            grown.grow(3)
            take_snapshots(grown.storage, self.scratch)
        grown.grow(3)
        as_sparks(grown)

    def _make_damaged(self, path: Path) -> None:
        """Make a checkpoint that has lost the logs of its newest batch, whose state can be repaired."""
        newest = newest_of(self._copy("native", path))
        for log in (names.commits(newest), names.offsets(newest)):
            (path / log).unlink()

    def _make_edited(self, path: Path) -> None:
        run = edits.apply(self._copy("native", path), edits.goal(k=DELETED), self.scratch)
        path.with_suffix(".run").write_text(run)

    def _make_rewound(self, path: Path) -> None:
        run = self._a_run(self._copy("native", path))
        perform(prepare(Rewind(batch=newest_of(run.storage) - 1), run))
        path.with_suffix(".run").write_text(run.id)

    def _make_labeled(self, path: Path) -> None:
        run = self._a_run(self._copy("native", path))
        perform(prepare(SaveFiles(destination=str(path.with_suffix(".saved")), label="noon"), run))
        shutil.rmtree(path.with_suffix(".saved"))

    def _make_saved_rows(self, path: Path) -> None:
        loads.savepoint(self.storage("native"), path)

    def _make_half_switched(self, path: Path) -> None:
        begin_a_switch(self._copy("native", path), Structure.V1, self.folder)

    def _make_half_rescaled(self, path: Path) -> None:
        """Make an edited checkpoint whose rescale is interrupted."""
        with pytest.raises(SimulatedCrash):
            rescales.rescale(Dying(self._copy("edited", path)), Rescale(3), self.scratch)

    def _a_run(self, storage: Storage) -> Run:
        policies = Policies(mode=config.Mode.FULL)
        return Run(storage=storage, policies=policies, by=MAINTAINER, scratch=self.scratch, stopped=True)


def _unpack(archive: Path, path: Path) -> None:
    shutil.move(unpacked(archive, path.with_suffix(".unpacked")), path)


def newest_of(storage: Storage) -> int:
    newest = catalog.newest_batch(storage)
    assert newest is not None
    return newest


@dataclass(frozen=True)
class World:
    """A copy of one of the bases, and the configuration that names it `flights`."""

    bases: Bases
    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def storage(self) -> Storage:
        return open_storage(str(self.root))

    @property
    def newest(self) -> int:
        return newest_of(self.storage)

    @property
    def copy(self) -> str:
        """The path of the destination of a copy."""
        return str(self.folder / "copy")

    @property
    def table(self) -> str:
        """The path of the table that the query writes."""
        return str(self.root / "table")

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def schema_file(self) -> str:
        """The path of a file with the columns that a schema evolution changes."""
        file = self.folder / "changes.json"
        file.write_text(json.dumps(json.loads(evolved_roots.RENAME)))
        return str(file)

    @property
    def policies(self) -> Policies:
        return config.load(self.configuration).find("flights").policies

    @property
    def configuration(self) -> Path:
        return self.folder / "statekeeper.toml"

    def base(self, name: str) -> str:
        return str(self.bases.path(name))

    def ended(self, name: str) -> str:
        return self.bases.ended(name)

    def begin(self, base: str, *, half_done: str = HALF_SWITCHED) -> None:
        """Copy a base. `half_done`: the base with the journal of `a_rewrite_is_half_done`."""
        for folder in (self.root, Path(self.copy)):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.bases.path(base), self.root)
        self.configure("full")
        (self.folder / "half-done").write_text(half_done)

    def configure(self, mode: str) -> None:
        self.configuration.write_text(CONFIGURATION.format(mode=mode))

    def contents(self) -> dict[str, bytes]:
        """Return all files of the root and of its copy, except leases and the history of maintenance."""
        found = {}
        for folder in (self.root, Path(self.copy)):
            storage = open_storage(str(folder))
            for entry in storage.list("") if folder.exists() else ():
                if not entry.path.startswith((names.LEASES, names.HISTORY)) and not entry.path.endswith(".tmp"):
                    found[f"{folder.name}/{entry.path}"] = storage.read(entry.path)
        return found

    @cached_property
    def definitions(self) -> dg.Definitions:
        return build(
            {"STATEKEEPER_CONFIG": str(self.configuration), "STATEKEEPER_SCRATCH": str(self.scratch)},
            quiet_seconds=QUIET_SECONDS,
        )

    def launch(self, job: str, asset: str, **ops: object) -> dg.ExecuteInProcessResult:
        """Launch an asset, in its job or by itself."""
        definitions = self.definitions
        run_config = {"ops": {asset: {"config": ops}}} if ops else {}
        with dg.DagsterInstance.ephemeral() as instance:
            instance.add_dynamic_partitions(QUERY_SET, ["flights"])
            resolved = definitions.resolve_job_def(job) if job else definitions.resolve_implicit_global_asset_job_def()
            return resolved.execute_in_process(
                run_config,
                partition_key="flights",
                instance=instance,
                raise_on_error=False,
                asset_selection=[dg.AssetKey(asset)],
            )


Obstacle = Callable[[World], AbstractContextManager[None]]


@contextmanager
def another_maintainer(world: World) -> Iterator[None]:
    with lease.held(world.storage, "gc", run="another", holder="another", clock=SystemClock()):
        yield


@contextmanager
def mode_observe(world: World) -> Iterator[None]:
    world.configure("observe")
    yield


@contextmanager
def mode_snapshots(world: World) -> Iterator[None]:
    world.configure("snapshots")
    yield


@contextmanager
def a_rewrite_is_half_done(world: World) -> Iterator[None]:
    other = world.bases.path((world.folder / "half-done").read_text())
    shutil.copytree(other / names.SWITCHOVERS, world.root / names.SWITCHOVERS, dirs_exist_ok=True)
    yield


@contextmanager
def nobody_confirms(world: World) -> Iterator[None]:
    yield


@contextmanager
def the_query_runs(world: World) -> Iterator[None]:
    """Append to a temporary file in the state folder until the block ends, and delete the file then."""
    path, ended = world.root / "state" / "0" / "0" / ".of the query.tmp", threading.Event()

    def write() -> None:
        while not ended.wait(0.01):
            with path.open("ab") as file:
                file.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
        path.unlink(missing_ok=True)


@contextmanager
def a_changelog_is_missing(world: World) -> Iterator[None]:
    """The audit reports an error: the newest version of a store has no file."""
    version, store = world.newest + 1, world.root / "state" / "0" / "1"
    lost = [*store.glob(f"{version}_*.changelog"), *store.glob(f"{version}.delta"), *store.glob(f"{version}.snapshot")]
    assert lost
    for file in lost:
        file.unlink()
    yield
