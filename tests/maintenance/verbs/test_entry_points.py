"""The command line, Dagster and Python refuse the same: each verb that writes, called in each way, with each obstacle.

A case is a verb. Without an obstacle, each way of calling it changes files. With an obstacle that blocks it, its plan and
its execution show the same refusals in each way, and change nothing. An obstacle that does not block the verb adds no
refusal to its plan.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner

from statekeeper.assets.launches import for_launchpad
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli import main
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance import verbs as package
from statekeeper.statestore.maintenance.verbs import contract, rewind, rewrite
from statekeeper.statestore.maintenance.verbs.claim import Claim
from statekeeper.statestore.maintenance.verbs.clone import Clone
from statekeeper.statestore.maintenance.verbs.contract import Run, Verb, perform, prepare
from statekeeper.statestore.maintenance.verbs.drill import Drill
from statekeeper.statestore.maintenance.verbs.edit import Edit
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
from statekeeper.statestore.maintenance.verbs.mirror import Mirror
from statekeeper.statestore.maintenance.verbs.optimize import Optimize
from statekeeper.statestore.maintenance.verbs.publish import Publish
from statekeeper.statestore.maintenance.verbs.repair import Repair
from statekeeper.statestore.maintenance.verbs.retention import Retention
from statekeeper.statestore.maintenance.verbs.savepoint import Remove, SaveFiles, SaveRows
from statekeeper.statestore.maintenance.verbs.snapshot import Snapshot
from statekeeper.statestore.maintenance.verbs.start_drill import StartDrill
from statekeeper.statestore.maintenance.verbs.switch import Switch
from statekeeper.statestore.maintenance.verbs.unpack import Unpack
from tests.support.dagster_runs import materializations
from tests.support.entry_points import (
    DELETED,
    HALF_RESCALED,
    HALF_SWITCHED,
    OWNER,
    SAVED_ROWS,
    Bases,
    Obstacle,
    World,
    a_changelog_is_missing,
    a_rewrite_is_half_done,
    another_maintainer,
    mode_observe,
    mode_snapshots,
    nobody_confirms,
    the_query_runs,
)
from tests.support.maintainers import MAINTAINER as BY

Options = Callable[[World], list[str]]
Launch = tuple[str, str, Callable[[World], Mapping[str, Any]]]

IN_A_PLAN: tuple[Obstacle, ...] = (
    mode_observe,
    mode_snapshots,
    another_maintainer,
    a_rewrite_is_half_done,
    a_changelog_is_missing,
)
"""A plan can see these. The confirmation of a person and the quiet of the checkpoint belong to the execution."""

REVERSAL: tuple[Obstacle, ...] = (mode_observe, mode_snapshots, another_maintainer, nobody_confirms, the_query_runs)
WRITES: tuple[Obstacle, ...] = (*REVERSAL, a_rewrite_is_half_done)
REWRITES: tuple[Obstacle, ...] = (*WRITES, a_changelog_is_missing)
READS_STOPPED: tuple[Obstacle, ...] = (
    another_maintainer,
    nobody_confirms,
    the_query_runs,
    a_rewrite_is_half_done,
    a_changelog_is_missing,
)
COPIES: tuple[Obstacle, ...] = (another_maintainer, a_rewrite_is_half_done, a_changelog_is_missing)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A verb in each of its forms.

    base        the checkpoint, a folder of `Bases`
    verb        in Python
    command     on the command line; `plans`, `acts`: the options with which it plans and acts, None without a plan
    launch      its job, its asset and its configuration in Dagster; None if Dagster does not have the verb. A job without a
                name is on a schedule, and acts at once
    blocked_by  the obstacles that block it
    """

    base: str = "native"
    verb: Callable[[World], Verb[Any, Any, Any]]
    command: Options
    plans: tuple[str, ...] | None = ()
    acts: tuple[str, ...] = ("--apply",)
    launch: Launch | None = None
    blocked_by: tuple[Obstacle, ...]

    @property
    def has_plan_in_dagster(self) -> bool:
        return self.launch is not None and bool(self.launch[0]) and self.plans is not None


def by_hand(verb: str, **config: Any) -> Launch:
    return f"{verb}_checkpoint", "checkpoint_format" if verb == "switch" else verb, lambda world: config


def goes_at_once(**case: Any) -> Case:
    return Case(plans=("--dry-run",), acts=(), **case)


def reversal(**case: Any) -> Case:
    return Case(plans=None, acts=(), **case)


CASES: dict[str, Case] = {
    "snapshot": goes_at_once(
        base="grown",
        verb=lambda world: Snapshot(),
        command=lambda world: ["snapshot", "flights"],
        launch=("", "snapshot", lambda world: {}),
        blocked_by=(mode_observe, another_maintainer, a_rewrite_is_half_done),
    ),
    "gc": Case(
        base="grown",
        verb=lambda world: Retention(),
        command=lambda world: ["gc", "flights"],
        launch=("", "retention", lambda world: {}),
        blocked_by=IN_A_PLAN,
    ),
    "optimize": Case(
        base="written",
        verb=lambda world: Optimize(destination=world.table),
        command=lambda world: ["optimize", "flights", world.table],
        launch=("", "sink_table", lambda world: {}),
        blocked_by=(mode_observe, mode_snapshots, another_maintainer, a_rewrite_is_half_done),
    ),
    "switch": Case(
        verb=lambda world: Switch(to=Structure.V1),
        command=lambda world: ["switch", "flights", "--to", "v1"],
        launch=by_hand("switch", to="V1"),
        blocked_by=REWRITES,
    ),
    "rescale": Case(
        verb=lambda world: rewrite.Rescale(partitions=3),
        command=lambda world: ["rescale", "flights", "--partitions", "3"],
        launch=by_hand("rescale", partitions=3),
        blocked_by=REWRITES,
    ),
    "convert": Case(
        base="HDFS-backed",
        verb=lambda world: rewrite.Convert(to=Provider.ROCKSDB, structure=Structure.V2),
        command=lambda world: ["convert", "flights", "--to", "rocksdb", "--structure", "v2"],
        launch=by_hand("convert", to="ROCKSDB", structure="V2"),
        blocked_by=REWRITES,
    ),
    "edit": Case(
        verb=lambda world: Edit(operator=0, delete={"k": DELETED}),
        command=lambda world: ["edit", "flights", "--operator", "0", "--delete", f"k={DELETED}"],
        launch=by_hand("edit", delete={"k": DELETED}),
        blocked_by=REWRITES,
    ),
    "load": Case(
        verb=lambda world: rewrite.Load(savepoint=world.base(SAVED_ROWS), replace_state=True),
        command=lambda world: ["load", world.base(SAVED_ROWS), "flights", "--replace-state"],
        launch=(
            "load_checkpoint",
            "load",
            lambda world: {"savepoint": world.base(SAVED_ROWS), "replace_state": True},
        ),
        blocked_by=REWRITES,
    ),
    "evolve": Case(
        base="job",
        verb=lambda world: rewrite.Evolve(schema_file=world.schema_file),
        command=lambda world: ["evolve", "flights", "--schema", world.schema_file],
        launch=("evolve_checkpoint", "evolve", lambda world: {"schema_file": world.schema_file}),
        blocked_by=REWRITES,
    ),
    "migrate": Case(
        verb=lambda world: Migrate(blueprint=world.base("native"), destination=world.copy, partitions=3),
        command=lambda world: ["migrate", "flights", world.base("native"), world.copy, "--partitions", "3"],
        launch=(
            "migrate_checkpoint",
            "migrate",
            lambda world: {"blueprint": world.base("native"), "destination": world.copy, "partitions": 3},
        ),
        blocked_by=READS_STOPPED,
    ),
    "abort": reversal(
        base=HALF_RESCALED,
        verb=lambda world: rewrite.Rollback(RewriteKind.RESCALE),
        command=lambda world: ["rescale", "flights", "--abort"],
        launch=by_hand("rescale", do="ABORT"),
        blocked_by=REVERSAL,
    ),
    "abort of a switchover": reversal(
        base=HALF_SWITCHED,
        verb=lambda world: rewrite.Rollback(RewriteKind.SWITCH),
        command=lambda world: ["switch", "flights", "--abort"],
        launch=by_hand("switch", do="ABORT"),
        blocked_by=REVERSAL,
    ),
    "undo": reversal(
        base="edited",
        verb=lambda world: rewrite.Revert(RewriteKind.EDIT, world.ended("edited")),
        command=lambda world: ["edit", "flights", "--undo", world.ended("edited")],
        launch=("edit_checkpoint", "edit", lambda world: {"do": "UNDO", "undo_run": world.ended("edited")}),
        blocked_by=WRITES,
    ),
    "repair": Case(
        base="damaged",
        verb=lambda world: Repair(),
        command=lambda world: ["repair", "flights"],
        blocked_by=WRITES,
    ),
    # The changelog of a batch that is rolled back is not needed.
    "rewind": Case(
        verb=lambda world: rewind.Rewind(batch=world.newest - 1),
        command=lambda world: ["rewind", "flights", "--to-batch", str(world.newest - 1)],
        blocked_by=WRITES,
    ),
    "undo of a rewind": reversal(
        base="rewound",
        verb=lambda world: rewind.Revert(of="rewind", undone=world.ended("rewound")),
        command=lambda world: ["rewind", "flights", "--undo", world.ended("rewound")],
        blocked_by=WRITES,
    ),
    "claim": Case(
        base="job",
        verb=lambda world: Claim(query_id=OWNER),
        command=lambda world: ["claim", "flights", "--query-id", OWNER],
        blocked_by=WRITES,
    ),
    "clone": goes_at_once(
        verb=lambda world: Clone(destination=world.copy),
        command=lambda world: ["clone", "flights", world.copy],
        launch=("clone_checkpoint", "clone", lambda world: {"destination": world.copy}),
        blocked_by=COPIES,
    ),
    "mirror": goes_at_once(
        verb=lambda world: Mirror(destination=world.copy),
        command=lambda world: ["mirror", "flights", world.copy],
        launch=("", "mirror", lambda world: {}),
        blocked_by=COPIES,
    ),
    "publish": goes_at_once(
        verb=lambda world: Publish(destination=world.copy),
        command=lambda world: ["publish", "flights", world.copy],
        launch=("", "state_table", lambda world: {}),
        blocked_by=COPIES,
    ),
    "drill": goes_at_once(
        base="grown",
        verb=lambda world: Drill(),
        command=lambda world: ["drill", "flights"],
        launch=("", "restore_drill", lambda world: {}),
        blocked_by=(another_maintainer, a_rewrite_is_half_done),
    ),
    "savepoint of files": goes_at_once(
        verb=lambda world: SaveFiles(destination=world.copy, label="noon"),
        command=lambda world: ["savepoint", "flights", world.copy, "--label", "noon"],
        launch=("savepoint_checkpoint", "savepoint", lambda world: {"destination": world.copy, "label": "noon"}),
        blocked_by=COPIES,
    ),
    "savepoint of rows": goes_at_once(
        verb=lambda world: SaveRows(destination=world.copy),
        command=lambda world: ["savepoint", "flights", world.copy, "--rows"],
        launch=("savepoint_checkpoint", "savepoint", lambda world: {"destination": world.copy, "keep": "PARQUET"}),
        blocked_by=COPIES,
    ),
    "deletion of a savepoint": Case(
        base="labeled",
        verb=lambda world: Remove(savepoint="noon", forget=True),
        command=lambda world: ["savepoint", "flights", "--delete", "noon", "--forget"],
        blocked_by=(mode_observe,),
    ),
    "unpack": goes_at_once(
        base="in batch logs",
        verb=lambda world: Unpack(),
        command=lambda world: ["unpack", "flights"],
        blocked_by=(mode_observe, a_rewrite_is_half_done),
    ),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture
def world(bases: Bases, tmp_path: Path) -> World:
    return World(bases, tmp_path)


@pytest.mark.parametrize("verb", CASES)
def test_without_an_obstacle_each_entry_point_changes_files(world: World, verb: str) -> None:
    case = CASES[verb]
    ways = (by_python, by_command, by_launch) if case.launch else (by_python, by_command)
    for way in ways:
        world.begin(case.base)
        before = world.contents()
        assert way(world, case) is None
        assert world.contents() != before, f"{way.__name__} did nothing"


@pytest.mark.parametrize(("verb", "obstacle"), [(verb, one) for verb in CASES for one in CASES[verb].blocked_by])
def test_each_entry_point_refuses_the_same_and_changes_nothing(world: World, verb: str, obstacle: Obstacle) -> None:
    case, stopped = CASES[verb], obstacle is not nobody_confirms
    world.begin(case.base, half_done=HALF_RESCALED if verb in ("switch", "undo") else HALF_SWITCHED)
    with obstacle(world):
        before = world.contents()
        expected = by_python(world, case, stopped=stopped)
        assert expected is not None
        assert world.contents() == before, "by Python"
        assert "ROOT" not in expected, "its command can be pasted"
        assert by_command(world, case, stopped=stopped) == expected
        assert world.contents() == before, "on the command line"
        if case.launch is not None:
            assert by_launch(world, case, stopped=stopped) == at_the_launchpad(world, expected)
            assert world.contents() == before, "in Dagster"


def _plans() -> Iterator[tuple[str, Obstacle]]:
    for verb, case in CASES.items():
        for obstacle in IN_A_PLAN if case.plans is not None else ():
            if case.base != "in batch logs" or obstacle is not a_changelog_is_missing:
                yield verb, obstacle


@pytest.mark.parametrize(("verb", "obstacle"), _plans())
def test_each_entry_point_shows_the_same_refusals_in_a_plan(world: World, verb: str, obstacle: Obstacle) -> None:
    case = CASES[verb]
    world.begin(case.base, half_done=HALF_RESCALED if verb == "switch" else HALF_SWITCHED)
    with obstacle(world):
        before = world.contents()
        expected = planned_by_python(world, case)
        assert bool(expected) == (obstacle in case.blocked_by), expected
        assert planned_by_command(world, case) == expected
        if case.has_plan_in_dagster:
            shown = [at_the_launchpad(world, text) for text in expected]
            is_red = obstacle is a_rewrite_is_half_done and case.launch and case.launch[1] not in ("clone", "savepoint")
            assert planned_by_launch(world, case) == ("is incomplete" if is_red else (shown or ["none"])[0])
        assert world.contents() == before


def test_no_entry_point_accepts_a_query_id_that_is_not_a_uuid(world: World) -> None:
    world.begin("native")
    before = world.contents()
    for verb in (Clone(destination=world.copy, query_id="orders"), rewind.Rewind(batch=0, query_id="orders")):
        with pytest.raises(RefusedAsUnsafe, match="'orders' is not a UUID"):
            prepare(verb, a_run(world, stopped=True))
    for command in (["clone", "flights", world.copy], ["rewind", "flights", "--to-batch", "0"]):
        given = ["--config", str(world.configuration), *command, "--query-id", "orders"]
        result = CliRunner().invoke(main, given, obj=BY)
        assert (result.exit_code, "'orders' is not a UUID" in result.stderr) == (2, True)
    launched = world.launch("clone_checkpoint", "clone", destination=world.copy, query_id="orders")
    assert "'orders' is not a UUID" in str(_failure(launched))
    assert world.contents() == before


def test_each_verb_and_each_launch_is_compared(world: World) -> None:
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    world.begin("native")
    compared = {type(case.verb(world)) for name, case in CASES.items() if name not in ("undo", "undo of a rewind")}
    concrete = {kind for kind in _below(contract.Verb) if not inspect.isabstract(kind)}
    of_product = {kind for kind in concrete if kind.__module__.startswith(package.__name__)}
    # Only the command line starts a query.
    assert of_product == {*compared, rewrite.Revert, rewind.Revert, StartDrill}
    launched = {case.launch[1] for case in CASES.values() if case.launch}
    executable = {
        key.to_user_string()
        for definition in world.definitions.assets or ()
        if isinstance(definition, dg.AssetsDefinition)
        for key in definition.keys
        if definition.is_executable
    }
    # The last two write elsewhere.
    reads = {"lineage", "deep_audit", "fleet_health", "history_table", "fleet_report"}
    assert executable - reads == launched


def _below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


# -- the entry points: the first refusal of an execution, and all of a plan -------------------------------------------


def a_run(world: World, *, stopped: bool) -> Run:
    return Run(
        storage=world.storage,
        policies=world.policies,
        by=replace(BY, holder="Python"),
        scratch=world.scratch,
        stopped=stopped,
    )


def by_python(world: World, case: Case, *, stopped: bool = True) -> str | None:
    try:
        done = perform(prepare(case.verb(world), a_run(world, stopped=stopped)))
    except StatekeeperError as error:
        return comparable(world, str(error))
    return next((comparable(world, str(error)) for error in done.refusals), None)


def planned_by_python(world: World, case: Case) -> list[str]:
    try:
        found = prepare(case.verb(world), a_run(world, stopped=False)).refusals
    except StatekeeperError as error:
        found = (error,)
    return [comparable(world, str(error)) for error in found]


def by_command(world: World, case: Case, *, stopped: bool = True) -> str | None:
    needs = nobody_confirms in case.blocked_by
    confirmed = ["--confirm-stopped"] if stopped and needs else []
    found = _called(world, [*case.command(world), *case.acts, *confirmed])
    return next(iter(found), None)


def planned_by_command(world: World, case: Case) -> list[str]:
    return _called(world, [*case.command(world), *(case.plans or ())])


def _called(world: World, arguments: list[str]) -> list[str]:
    """Return the refusals that the command shows in JSON."""
    arguments = ["--config", str(world.configuration), *arguments, "--output", "json"]
    result = CliRunner().invoke(main, arguments, obj=BY)
    assert not result.exception or isinstance(result.exception, SystemExit), result.output
    shown = json.loads(result.stdout)
    found = [shown["error"]] if "error" in shown else shown.get("refusals", [])
    texts = [one if isinstance(one, str) else one["error"] if "error" in one else _text(one) for one in found]
    return [comparable(world, text) for text in texts]


def _text(error: dict[str, Any]) -> str:
    where, hint = f"{error['path']}: " if error["path"] else "", f" -> {error['hint']}" if error["hint"] else ""
    return f"{where}{error['message']}{hint}"


def by_launch(world: World, case: Case, *, stopped: bool = True) -> str | None:
    assert case.launch is not None
    job, asset, config = case.launch
    given = {"do": "APPLY", "confirm_stopped": stopped, **config(world)} if job else {}
    if asset in ("clone", "savepoint"):
        del given["confirm_stopped"]
    result = world.launch(job, asset, **given)
    if result.success:
        return _refusal(world, result, asset)
    return comparable(world, _failure(result))


def _failure(result: dg.ExecuteInProcessResult) -> str:
    """Return the message of the failed step."""
    failed = next(event for event in result.all_events if event.is_step_failure).step_failure_data
    if failed.user_failure_data is not None:
        return str(failed.user_failure_data.description)
    assert failed.error is not None
    raised = failed.error.cause or failed.error
    return raised.message.partition(": ")[2].strip()


def planned_by_launch(world: World, case: Case) -> str:
    """Return the first refusal that the plan shows. If a blocking check ends the run: what it says."""
    assert case.launch is not None
    job, asset, config = case.launch
    result = world.launch(job, asset, **config(world))
    if result.success:
        return _refusal(world, result, asset) or "none"
    (red,) = (one for one in result.get_asset_check_evaluations() if not one.passed and one.blocking)
    return "is incomplete" if "is incomplete" in str(red.description) else str(red.description)


def _refusal(world: World, result: dg.ExecuteInProcessResult, asset: str) -> str | None:
    (made,) = materializations(result, asset)
    shown = made.metadata["refusal"].value
    return None if shown == "none" else comparable(world, str(shown))


def comparable(world: World, text: str) -> str:
    """Return a text of any entry point in one form: the root by its name, and without times that differ."""
    text = text.replace(f"--config {world.configuration} ", "").replace("statekeeper.statestore.base.errors.", "")
    text = re.sub(rf"(statekeeper [^.;]*?){re.escape(world.storage.url)}", r"\1flights", text)
    return re.sub(r"[\d,.]+ s\b", "some s", text)


def at_the_launchpad(world: World, text: str) -> str:
    """Return a text with launches and the keys of the launchpad instead of commands and options of the command line."""
    fleet = Fleet(config_file=str(world.configuration), scratch=str(world.scratch), worker=Worker())
    text = re.sub(r"(statekeeper [^.;]*?)\bflights\b", r"\1ROOT", text)
    return comparable(world, for_launchpad(text, fleet.open("flights")))
