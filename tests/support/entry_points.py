"""A checkpoint with its configuration, the three ways in which a verb is called, and the obstacles that block a verb."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from statekeeper.assets.definitions import build
from statekeeper.assets.partitions import QUERY_SET
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.verbs import config
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.maintainers import MAINTAINER, QUIET_SECONDS

HALF_SWITCHED = "half-switched"
"""The folder of `made` with a checkpoint whose switchover is interrupted."""
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
        result = CliRunner().invoke(main, ["--config", str(self.configuration), *arguments], obj=MAINTAINER)
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


def confirmed(stopped: bool) -> list[str]:
    return ["--confirm-stopped"] if stopped else []


Attempt = Callable[..., None]
"""Calls a verb on a world; `stopped`: the person confirms that the query is stopped."""
Obstacle = Callable[[World], AbstractContextManager[None]]


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
    shutil.copytree(world.made / HALF_SWITCHED / journal, world.root / journal)
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
    (newest,) = (world.root / "state" / "0" / "1").glob(f"{(catalog.newest_batch(world.storage) or 0) + 1}_*.changelog")
    newest.unlink()
    yield


def begin(world: World, verb: str) -> None:
    shutil.rmtree(world.root, ignore_errors=True)
    shutil.copytree(world.made / verb, world.root)
    world.configuration.write_text(CONFIGURATION.format(mode="full"))


def assert_guarded(world: World, verb: str, attempt: Attempt, obstacles: Iterable[Obstacle], *, raises: bool) -> None:
    """Assert that the attempt changes files, and changes none while any one of the obstacles exists. `raises`: it then
    raises a typed error; else it reports it."""
    begin(world, verb)
    before = world.contents()
    attempt(world, stopped=True)
    assert world.contents() != before, "without an obstacle it does something"
    passed = []
    for obstacle in obstacles:
        begin(world, verb)
        with obstacle(world):
            before = world.contents()
            with pytest.raises(StatekeeperError) if raises else nullcontext():
                attempt(world, stopped=obstacle is not nobody_confirms)
            after = world.contents()
        if {path: body for path, body in after.items() if not path.endswith(".tmp")} != before:
            passed.append(obstacle.__name__)
    assert passed == [], f"{verb} changes files in spite of these"
