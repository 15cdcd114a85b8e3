"""Every entry point has every guard: the command line, Dagster and Python refuse the same, and change nothing then.

A case is a verb and the way in which it is called. Without an obstacle it changes files; with any one of the obstacles
that are listed for the verb it must not.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from assets.definitions import build
from assets.partitions import QUERY_SET
from statestore.cli import main
from statestore.clock import SystemClock
from statestore.errors import RefusedAsUnsafe, StatekeeperError
from statestore.format import names
from statestore.format.structure import Structure
from statestore.maintenance import config, lease, passes
from statestore.maintenance.config import Policies
from statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import Fault
from tests.support.maintainers import MAINTAINER, QUIET_SECONDS
from tests.support.structures import as_sparks
from tests.support.switching import die_at, take_snapshots

BY = MAINTAINER
CONFIGURATION = """
[roots.flights]
url = "root"
mode = "{mode}"
snapshot = {{ changelogs = 1 }}
retention = {{ versions = 3, grace = "0s" }}
"""


@dataclass(frozen=True)
class World:
    """A copy of one of the checkpoints that were `made`, and the configuration that names it `flights`."""

    made: Path
    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def storage(self) -> Storage:
        return open_storage(str(self.root))

    @property
    def policies(self) -> Policies:
        return config.load(self.configuration).find("flights").policies

    @property
    def configuration(self) -> Path:
        return self.folder / "statekeeper.toml"

    def contents(self) -> dict[str, bytes]:
        """Return all files except leases and the history of maintenance."""
        own = (names.LEASES, names.HISTORY)
        return {e.path: self.storage.read(e.path) for e in self.storage.list("") if not e.path.startswith(own)}

    def command(self, *arguments: str) -> None:
        result = CliRunner().invoke(main, ["--config", str(self.configuration), *arguments], obj=BY)
        assert not result.exception or isinstance(result.exception, SystemExit), result.output

    @cached_property
    def definitions(self) -> dg.Definitions:
        return build(
            {"STATEKEEPER_CONFIG": str(self.configuration), "STATEKEEPER_SCRATCH": str(self.folder / "scratch")},
            quiet_seconds=QUIET_SECONDS,
        )

    def launch(self, job: str, asset: str, **ops: object) -> None:
        definitions = self.definitions
        run_config = {"ops": {asset: {"config": ops}}} if ops else {}
        with dg.DagsterInstance.ephemeral() as instance:
            instance.add_dynamic_partitions(QUERY_SET, ["flights"])
            resolved = definitions.resolve_job_def(job) if job else definitions.resolve_implicit_global_asset_job_def()
            resolved.execute_in_process(
                run_config,
                partition_key="flights",
                instance=instance,
                raise_on_error=False,
                asset_selection=[dg.AssetKey(asset)],
            )


def snapshot_by_python(world: World, *, stopped: bool) -> None:
    prepared = passes.snapshot.plan(world.storage, world.policies, clock=BY.clock)
    passes.snapshot.execute(world.storage, prepared, BY, scratch=world.folder / "scratch")


def retention_by_python(world: World, *, stopped: bool) -> None:
    prepared = passes.retention.plan(world.storage, world.policies, clock=BY.clock)
    passes.retention.execute(world.storage, prepared, BY)


def switch_by_python(world: World, *, stopped: bool) -> None:
    scratch = world.folder / "scratch"
    prepared = passes.switch.plan(world.storage, world.policies, Structure.V1, None, scratch=scratch)
    run = BY.ids.fresh()
    done = passes.switch.execute(world.storage, prepared, BY, lambda _: None, run=run, stopped=stopped, scratch=scratch)
    for refusal in done.plan.refusals:
        raise RefusedAsUnsafe(refusal)


def abort_by_python(world: World, *, stopped: bool) -> None:
    run = BY.ids.fresh()
    passes.switch.abort(world.storage, world.policies, BY, lambda _: None, run=run, stopped=stopped)


def repair_by_python(world: World, *, stopped: bool) -> None:
    prepared = passes.repair.plan(world.storage, world.policies, None)
    passes.repair.execute(world.storage, prepared, BY, run=BY.ids.fresh(), stopped=stopped)


def undo_by_python(world: World, *, stopped: bool) -> None:
    undone = repaired(world)
    passes.repair.undo(world.storage, world.policies, undone, BY, run=BY.ids.fresh(), stopped=stopped)


def repaired(world: World) -> str:
    """The run of the repair in this checkpoint."""
    parsed = (names.parse_quarantined(entry.path) for entry in world.storage.list(names.QUARANTINE))
    (run,) = {place[0] for place in parsed if place and place[1]}
    return run


def confirmed(stopped: bool) -> list[str]:
    return ["--confirm-stopped"] if stopped else []


Attempt = Callable[..., None]
ATTEMPTS: dict[tuple[str, str], Attempt] = {
    ("snapshot", "Python"): snapshot_by_python,
    ("snapshot", "CLI"): lambda world, stopped: world.command("snapshot", "flights"),
    ("snapshot", "Dagster"): lambda world, stopped: world.launch("", "snapshot"),
    ("retention", "Python"): retention_by_python,
    ("retention", "CLI"): lambda world, stopped: world.command("gc", "flights", "--apply"),
    ("retention", "Dagster"): lambda world, stopped: world.launch("", "retention"),
    ("switch", "Python"): switch_by_python,
    ("switch", "CLI"): lambda world, stopped: world.command(
        "switch", "flights", "--to", "v1", "--apply", *confirmed(stopped)
    ),
    ("switch", "Dagster"): lambda world, stopped: world.launch(
        "switch_checkpoint", "checkpoint_format", to="V1", do="APPLY", confirm_stopped=stopped
    ),
    ("abort", "Python"): abort_by_python,
    ("abort", "CLI"): lambda world, stopped: world.command("switch", "flights", "--abort", *confirmed(stopped)),
    ("abort", "Dagster"): lambda world, stopped: world.launch(
        "switch_checkpoint", "checkpoint_format", do="ABORT", confirm_stopped=stopped
    ),
    ("repair", "Python"): repair_by_python,
    ("repair", "CLI"): lambda world, stopped: world.command("repair", "flights", "--apply", *confirmed(stopped)),
    ("undo", "Python"): undo_by_python,
    ("undo", "CLI"): lambda world, stopped: world.command(
        "repair", "flights", "--undo", repaired(world), *confirmed(stopped)
    ),
}


@contextmanager
def another_maintainer(world: World) -> Iterator[None]:
    with lease.held(world.storage, "gc", run="another", holder="another", clock=SystemClock()):
        yield


@contextmanager
def mode_observe(world: World) -> Iterator[None]:
    world.configuration.write_text(CONFIGURATION.format(mode="observe"))
    yield


@contextmanager
def mode_snapshots(world: World) -> Iterator[None]:
    world.configuration.write_text(CONFIGURATION.format(mode="snapshots"))
    yield


@contextmanager
def half_switched(world: World) -> Iterator[None]:
    journal = Path(names.SWITCHOVERS)
    shutil.copytree(world.made / "abort" / journal, world.root / journal)
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
    newest = max((world.root / "state" / "0" / "1").glob("11_*.changelog"))
    newest.unlink()
    yield


OF_ALL = (another_maintainer, mode_observe)
OBSTACLES: dict[str, tuple[Callable[..., object], ...]] = {
    "snapshot": (*OF_ALL, half_switched),
    "retention": (*OF_ALL, mode_snapshots, half_switched, a_changelog_is_missing),
    "switch": (*OF_ALL, mode_snapshots, nobody_confirms, the_query_runs, a_changelog_is_missing),
    "abort": (*OF_ALL, mode_snapshots, nobody_confirms, the_query_runs),
    "repair": (*OF_ALL, mode_snapshots, half_switched, nobody_confirms, the_query_runs),
    "undo": (*OF_ALL, mode_snapshots, half_switched, nobody_confirms, the_query_runs),
}


def begin_a_switch(storage: Storage, folder: Path) -> None:
    die_at(
        storage,
        Structure.V1,
        folder / "scratch",
        lambda request: request.path == names.switchover(1, "cleared"),
        Fault.BEFORE,
    )
    storage.delete([entry.path for entry in storage.list(names.LEASES)])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each verb a checkpoint of Spark's that gives it something to do."""
    folder = tmp_path_factory.mktemp("made")
    checkpoint = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    for _ in range(3):
        checkpoint.grow(3)
        take_snapshots(checkpoint.storage, folder / "scratch")
    checkpoint.grow(3)
    as_sparks(checkpoint)
    for verb in OBSTACLES:
        shutil.copytree(folder / "root", folder / verb)
    begin_a_switch(open_storage(str(folder / "abort")), folder)
    for verb in ("repair", "undo"):
        for log in (names.commits(11), names.offsets(11)):
            (folder / verb / log).unlink()
    storage = open_storage(str(folder / "undo"))
    prepared = passes.repair.plan(storage, Policies(), None)
    passes.repair.execute(storage, prepared, BY, run=BY.ids.fresh(), stopped=True)
    return folder


def begin(world: World, verb: str) -> None:
    shutil.rmtree(world.root, ignore_errors=True)
    shutil.copytree(world.made / verb, world.root)
    world.configuration.write_text(CONFIGURATION.format(mode="full"))


@pytest.mark.parametrize(("verb", "entry"), ATTEMPTS, ids=[f"{verb} by {entry}" for verb, entry in ATTEMPTS])
def test_every_entry_point_has_every_guard(made: Path, tmp_path: Path, verb: str, entry: str) -> None:
    attempt = ATTEMPTS[verb, entry]
    world = World(made, tmp_path)
    begin(world, verb)
    before = world.contents()
    attempt(world, stopped=True)
    assert world.contents() != before, "without an obstacle it does something"
    passed = []
    for obstacle in OBSTACLES[verb]:
        begin(world, verb)
        with obstacle(world):
            before = world.contents()
            with pytest.raises(StatekeeperError) if entry == "Python" else nullcontext():
                attempt(world, stopped=obstacle is not nobody_confirms)
            after = world.contents()
        if {path: body for path, body in after.items() if not path.endswith(".tmp")} != before:
            passed.append(obstacle.__name__)
    assert passed == [], f"{verb} by {entry} changes files in spite of these"
