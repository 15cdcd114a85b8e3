"""The plan of a verb shows what blocks its execution: the same in Python, on the command line and in Dagster.

For each verb, `prepared.refusals` of its pass is the answer. The obstacles are those of `test_entry_points_of_rewrites.py`
that a plan can see: the confirmation of a person and the quiet of the checkpoint belong to the execution.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner

from statekeeper.assets.launches import for_launchpad
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import with_name
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance import verbs as package
from statekeeper.statestore.maintenance.rewrites.engine import Rescale
from statekeeper.statestore.maintenance.rewrites.evolution import parse_changes
from statekeeper.statestore.maintenance.verbs import contract
from statekeeper.statestore.storage import open_storage
from tests.support import edits, evolved_roots, loads, verbs
from tests.support.entry_points import (
    HALF_SWITCHED,
    Obstacle,
    World,
    a_changelog_is_missing,
    another_maintainer,
    begin,
    half_switched,
    mode_observe,
)
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import MAINTAINER as BY
from tests.support.switching import begin_a_switch
from tests.support.unpacked import unpacked

ARCHIVE = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
SAVEPOINT = "saved rows"
KEY = "key 3"
OWNER = "0badc0de-0000-4000-8000-00000000000a"

Plan = Callable[[World], Sequence[StatekeeperError]]
"""Plans a verb with the functions of Python; returns the refusals. May raise an error."""


def scratch(world: World) -> Path:
    return world.folder / "scratch"


def copied_to(world: World) -> str:
    return str(world.folder / "copy")


def newest(world: World) -> int:
    found = catalog.newest_batch(world.storage)
    assert found is not None
    return found


def changes(world: World) -> str:
    file = world.folder / "changes.json"
    file.write_text(evolved_roots.RENAME)
    return str(file)


def of_rewrite(goal: Callable[[World], Any]) -> Plan:
    def plan(world: World) -> Sequence[StatekeeperError]:
        return verbs.rewrite.plan(world.storage, world.policies, goal(world), scratch=scratch(world)).refusals

    return plan


PYTHON: dict[str, Plan] = {
    "snapshot": lambda world: (
        verbs.snapshot.plan(world.storage, world.policies, clock=BY.clock, take_all=True).refusals
    ),
    "gc": lambda world: verbs.retention.plan(world.storage, world.policies, clock=BY.clock).refusals,
    "switch": lambda world: (
        verbs.switch.plan(world.storage, world.policies, Structure.V1, None, scratch=scratch(world)).refusals
    ),
    "rescale": of_rewrite(lambda world: Rescale(3)),
    "edit": lambda world: (
        verbs.edit.plan(world.storage, world.policies, edits.goal(k=KEY), BY, scratch=scratch(world)).refusals
    ),
    "load": of_rewrite(lambda world: loads.goal(open_storage(str(world.made / SAVEPOINT)))),
    "evolve": of_rewrite(lambda world: parse_changes(json.loads(evolved_roots.RENAME), "a file")),
    "repair": lambda world: verbs.repair.plan(world.storage, world.policies, None).refusals,
    "rewind": lambda world: (
        verbs.rewind.plan(world.storage, world.policies, BY, newest(world) - 1, scratch=scratch(world)).refusals
    ),
    "claim": lambda world: verbs.claim.plan(world.storage, None, world.policies, BY, query_id=OWNER).refusals,
    "clone": lambda world: verbs.clone.plan(world.storage, open_storage(copied_to(world)), world.policies, BY).refusals,
    "mirror": lambda world: (
        verbs.mirror.plan(world.storage, open_storage(copied_to(world)), world.policies, BY).refusals
    ),
    "savepoint": lambda world: (
        verbs.savepoint.plan_rows(world.storage, open_storage(copied_to(world)), BY, policies=world.policies).refusals
    ),
}

COMMANDS: dict[str, Callable[[World], list[str]]] = {
    "snapshot": lambda world: ["snapshot", "flights", "--all", "--dry-run"],
    "gc": lambda world: ["gc", "flights"],
    "switch": lambda world: ["switch", "flights", "--to", "v1"],
    "rescale": lambda world: ["rescale", "flights", "--partitions", "3"],
    "edit": lambda world: ["edit", "flights", "--operator", "0", "--delete", f"k={KEY}"],
    "load": lambda world: ["load", str(world.made / SAVEPOINT), "flights", "--replace-state"],
    "evolve": lambda world: ["evolve", "flights", "--schema", changes(world)],
    "repair": lambda world: ["repair", "flights"],
    "rewind": lambda world: ["rewind", "flights", "--to-batch", str(newest(world) - 1)],
    "claim": lambda world: ["claim", "flights", "--query-id", OWNER],
    "clone": lambda world: ["clone", "flights", copied_to(world), "--dry-run"],
    "mirror": lambda world: ["mirror", "flights", copied_to(world), "--dry-run"],
    "savepoint": lambda world: ["savepoint", "flights", copied_to(world), "--rows", "--dry-run"],
}

LAUNCHES: dict[str, tuple[str, str, Callable[[World], dict[str, Any]]]] = {
    "switch": ("switch_checkpoint", "checkpoint_format", lambda world: {"to": "V1"}),
    "rescale": ("rescale_checkpoint", "rescale", lambda world: {"partitions": 3}),
    "edit": ("edit_checkpoint", "edit", lambda world: {"delete": {"k": KEY}}),
    "load": (
        "load_checkpoint",
        "load",
        lambda world: {"savepoint": str(world.made / SAVEPOINT), "replace_state": True},
    ),
    "evolve": ("evolve_checkpoint", "evolve", lambda world: {"schema_file": changes(world)}),
    "clone": ("clone_checkpoint", "clone", lambda world: {"destination": copied_to(world)}),
    "savepoint": (
        "savepoint_checkpoint",
        "savepoint",
        lambda world: {"destination": copied_to(world), "keep": "PARQUET"},
    ),
}
"""Name of the job, of its asset, and the configuration of each verb with a PLAN in Dagster."""

OBSTACLES: tuple[Obstacle, ...] = (mode_observe, another_maintainer, half_switched, a_changelog_is_missing)
DO_NOT_BLOCK = {
    # A copy in mode `observe` writes nothing into its source, so that another maintainer does not concern it. `switch`
    # completes the half-done switchover, and `snapshot` only adds files.
    ("snapshot", a_changelog_is_missing),
    ("switch", half_switched),
    ("repair", a_changelog_is_missing),
    ("rewind", a_changelog_is_missing),
    ("claim", a_changelog_is_missing),
    ("clone", mode_observe),
    ("mirror", mode_observe),
    ("savepoint", mode_observe),
}


def without_age(text: str) -> str:
    """The text without the age of the lease, which grows between two plans."""
    return re.sub(r"renewed [\d,]+ s ago", "renewed", text)


def by_python(world: World, verb: str) -> list[str]:
    try:
        return [without_age(str(error)) for error in PYTHON[verb](world)]
    except StatekeeperError as error:
        return [without_age(str(error))]


def by_command(world: World, verb: str) -> list[str]:
    return shown_by_command(world, verb)[0]


def shown_by_command(world: World, verb: str) -> tuple[list[str], int]:
    """The refusals that the plan shows, and its exit code."""
    arguments = ["--config", str(world.configuration), *COMMANDS[verb](world), "--output", "json"]
    if verb not in ("gc", "claim"):
        arguments += ["--scratch", str(scratch(world))]
    result = CliRunner().invoke(main, arguments, obj=BY)
    assert not result.exception or isinstance(result.exception, SystemExit), result.output
    shown = json.loads(result.stdout)
    found = [shown["error"]] if "error" in shown else shown["refusals"]
    texts = [one if isinstance(one, str) else one["error"] if "error" in one else as_text(one) for one in found]
    return list(map(without_age, texts)), result.exit_code


def as_text(error: dict[str, Any]) -> str:
    where, hint = f"{error['path']}: " if error["path"] else "", f" -> {error['hint']}" if error["hint"] else ""
    return f"{where}{error['message']}{hint}"


def by_launch(world: World, verb: str) -> tuple[str, int]:
    """The refusal that the plan shows, and the number of refusals. If a blocking check ends the run: its description."""
    job, asset, config = LAUNCHES[verb]
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("streaming_query", ["flights"])
        result = world.definitions.resolve_job_def(job).execute_in_process(
            {"ops": {asset: {"config": config(world)}}},
            partition_key="flights",
            instance=instance,
            raise_on_error=False,
        )
    if not result.success:
        (red,) = (one for one in result.get_asset_check_evaluations() if not one.passed and one.blocking)
        return str(red.description), 1
    shown = result.asset_materializations_for_node(asset)[0].metadata
    table = shown["figures"]
    assert isinstance(table, dg.TableMetadataValue)
    rows = {str(row.data["figure"]): row.data["value"] for row in table.records}
    return without_age(str(shown["refusal"].value)), int(str(rows["refusals"]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    origin = unpacked(ARCHIVE, folder / "origin")
    for verb in PYTHON:
        if verb in ("evolve", "claim"):
            root = KeyedRoot(open_storage(str(folder / verb)), folder / f"job of {verb}", partitions=2, key_groups=16)
            root.grow(2)
        else:
            shutil.copytree(origin, folder / verb)
    loads.savepoint(open_storage(str(origin)), folder / SAVEPOINT)
    newest = catalog.newest_batch(open_storage(str(folder / "repair")))
    assert newest is not None
    for log in (names.commits(newest), names.offsets(newest)):
        (folder / "repair" / log).unlink()
    shutil.copytree(origin, folder / HALF_SWITCHED)
    begin_a_switch(open_storage(str(folder / HALF_SWITCHED)), Structure.V1, folder)
    return folder


@pytest.mark.parametrize("obstacle", OBSTACLES, ids=lambda obstacle: obstacle.__name__)
@pytest.mark.parametrize("verb", PYTHON)
def test_a_plan_shows_the_same_refusals_in_python_on_the_command_line_and_in_dagster(
    made: Path, tmp_path: Path, verb: str, obstacle: Obstacle
) -> None:
    world = World(made, tmp_path)
    begin(world, verb)
    with obstacle(world):
        before = world.contents()
        expected = by_python(world, verb)
        assert bool(expected) == ((verb, obstacle) not in DO_NOT_BLOCK), expected
        config = str(world.configuration)
        pasteable = [with_name(text, "flights", before=("--config", config)) for text in expected]
        assert by_command(world, verb) == pasteable
        if verb in LAUNCHES:
            query = Fleet(config_file=config, scratch=str(scratch(world)), worker=Worker()).open("flights")
            told = [for_launchpad(text, query) for text in expected]
            shown = by_launch(world, verb)
            if obstacle is half_switched and verb not in ("clone", "savepoint"):
                # The check `nothing_left_half_switched` ends the run.
                assert "is incomplete" in shown[0]
                assert f"Next: {query.command('switch')} --to v1 --apply --confirm-stopped" in shown[0]
            else:
                assert shown == (told[0] if told else "none", len(told))
        assert world.contents() == before


def test_each_verb_with_a_plan_in_dagster_is_compared(made: Path, tmp_path: Path) -> None:
    world = World(made, tmp_path)
    begin(world, "rescale")
    launchable = {
        job.name.removesuffix("_checkpoint")
        for job in world.definitions.jobs or ()
        if job.name.endswith("_checkpoint") and job.name != "mirror_checkpoint"
    }
    assert launchable == {*LAUNCHES, "convert"}, "`convert` shares its code with `rescale`"


def test_each_verb_of_the_contract_is_compared() -> None:
    """Its plan here, or its execution in the tests of the entry points."""
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    concrete = {kind for kind in _below(contract.Verb) if not inspect.isabstract(kind)}
    of_product = {kind.__name__ for kind in concrete if kind.__module__.startswith(package.__name__)}
    compared = {"Retention" if verb == "gc" else "SaveRows" if verb == "savepoint" else verb.title() for verb in PYTHON}
    elsewhere = {
        "Convert": "shares its code with Rescale",
        "Abort": "executions of `--abort`",
        "Undo": "executions of `--undo`",
        "SaveFiles": "is a clone with a label",
        "Remove": "tests of labels",
        "Unpack": "tests of its command",
    }
    assert of_product == compared | elsewhere.keys()


def _below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def test_a_plan_that_nothing_blocks_has_no_refusals_and_exit_code_0(made: Path, tmp_path: Path) -> None:
    world = World(made, tmp_path)
    for verb in PYTHON:
        begin(world, verb)
        code = 3 if verb == "repair" else 0  # there is something to repair
        assert (verb, by_python(world, verb), shown_by_command(world, verb)) == (verb, [], ([], code))
