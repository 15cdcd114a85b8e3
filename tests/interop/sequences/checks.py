"""The checks after a step: the audit against Spark, rows and state against the twin, and the printed commands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from py4j.protocol import Py4JNetworkError

from statekeeper.statestore.cli import main
from tests.interop.sequences.commands import commands
from tests.interop.sequences.worlds import Failure, NativeWorld, Told, World, called

LOOKS = ("audit", "inspect", "dump", "diff", "lease")
FINDINGS, REJECTED = 3, 13
SPARK_IS_GONE = (ConnectionError, Py4JNetworkError)


@dataclass(frozen=True)
class Look:
    """The audit of a checkpoint."""

    findings: tuple[dict[str, Any], ...]
    restart: int | None

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [one for one in self.findings if one["severity"] == "error"]

    def __str__(self) -> str:
        shown = [f"{one['code']}: {one['file']} {one['problem']} -> {one['action']}" for one in self.findings[:4]]
        return "\n".join([f"restart from batch {self.restart}, {len(self.findings)} findings", *shown])


@dataclass(frozen=True)
class Start:
    """The result of a start of Spark on a copy, with one more input file. `error`: None if it processed the batch."""

    error: str | None
    failure: Failure | None = None


def audited(world: World, root: str | None = None, *, deep: bool = False) -> Look:
    told = called("audit", root or world.root, *(["--deep"] if deep else []), "--output", "json", *world.options)
    if told.exit_code not in (0, FINDINGS):
        raise Failure("audit", str(told))
    shown = json.loads(told.stdout)
    return Look(tuple(shown["findings"]), shown["restart"]["batch"])


def started(world: World, counts: Counter[str]) -> Start:
    """Start Spark on a copy of the checkpoint."""
    counts["starts of Spark on a copy"] += 1
    with world.trial():
        try:
            world.run(1)
        except Failure as failure:
            return Start(None, failure)
        except SPARK_IS_GONE:
            raise
        except Exception as error:
            return Start(f"{type(error).__name__}: {str(error)[:400]}")
        try:
            world.require_state(world.history.entry)
        except Failure as failure:
            return Start(None, failure)
    return Start(None)


def require_sound(world: World, counts: Counter[str], *, spark: bool = True) -> None:
    """Require a clean audit, the state of the twin, and a start of Spark with the twin's rows and state."""
    look = audited(world)
    if look.findings:
        for one in look.findings:
            follow(world, one["action"], counts)
        raise Failure(f"audit not clean: {look.findings[0]['code']}", str(look))
    if look.restart != world.history.newest:
        raise Failure("restart", f"the audit names batch {look.restart}, the newest is {world.history.newest}")
    world.require_state(world.history.entry)
    if spark:
        start = started(world, counts)
        if start.error is not None:
            raise Failure("audit clean, Spark fails", start.error)
        if start.failure is not None:
            raise start.failure


def require_sound_copy(world: World, root: str, batch: int, counts: Counter[str]) -> None:
    """Require the same of a clone, a mirror or a savepoint at a batch. The world stays where it is."""
    look = audited(world, root)
    if look.findings:
        raise Failure(f"copy not clean: {look.findings[0]['code']}", f"{root}\n{look}")
    if look.restart != batch:
        raise Failure("copy at another batch", f"{root}: restart from {look.restart} and not from {batch}")
    with world.trial():
        was = world.root
        world.at(root)
        world.history = world.history.rewound(batch)
        try:
            world.require_state(world.history.entry)
            # The copy itself is restored: a mirror is updated later.
            start = started(world, counts)
        finally:
            world.at(was)
    if start.error is not None:
        raise Failure("copy clean, Spark fails", start.error)
    if start.failure is not None:
        raise start.failure


def require_views(world: World, counts: Counter[str]) -> None:
    """Require that Spark's own reader shows the twin's state. Only for a state that no verb has changed."""
    moment = world.history.entry.moment
    if isinstance(world, NativeWorld):
        world.require_visible_rows()
    if isinstance(world, NativeWorld) and not moment.lineage and moment.files:
        counts["comparisons by Spark's reader"] += 1
        found, expected = world.state_by_spark(), world.twin.state_by_spark(moment.files)
        if found != expected:
            views = [view for view in expected if found.get(view) != expected[view]]
            raise Failure("Spark's reader shows another state", f"{views}")


def completed(arguments: Sequence[str]) -> list[str]:
    """A command as a person completes it after its plan: with --apply and the confirmation."""
    options = _options_of(arguments[0])
    more = []
    acts = {"--apply", "--abort", "--undo", "--list", "--break"}
    if "--apply" in options and not acts & set(arguments):
        more.append("--apply")
    if "--confirm-stopped" in options and "--confirm-stopped" not in arguments and arguments[0] != "gc":
        more.append("--confirm-stopped")
    return [*arguments, *more]


def follow(world: World, text: str, counts: Counter[str], *, then: Sequence[object] = ()) -> list[list[str]]:
    """Run the commands of a text in their order on a copy, and require that each works; afterwards `then`.

    Return the commands."""
    found = commands(text, places(world))
    if not found and not then:
        return found
    with world.trial():
        for arguments in found:
            counts["printed commands"] += 1
            run_printed(world, arguments, text)
        if then:
            counts["rejected commands after the printed one"] += 1
            told = called(*then)
            if told.exit_code:
                raise Failure("still rejected after the printed command", f"{text}\n{found}\n{told}")
    return found


def run_printed(world: World, arguments: list[str], text: str) -> Told:
    """Run a printed command as it stands; a plan, also with --apply. Require that it works."""
    options = _options_of(arguments[0])
    if world.sink and "--file-sink" in options and not {"--file-sink", "--undo", "--abort"} & set(arguments):
        # A checkpoint does not name the sink. The plan asks for it.
        arguments = [*arguments, "--file-sink", world.sink]
    told = called(*arguments, *scratch_of(world, arguments))
    if arguments[0] in LOOKS:
        if told.exit_code not in (0, FINDINGS):
            raise Failure("printed command", f"{text}\n{told}")
        return told
    applied = completed(arguments)
    if "--apply" in applied and "--apply" not in arguments and told.exit_code in (0, FINDINGS):
        told = called(*applied, *scratch_of(world, arguments))
    elif told.exit_code == REJECTED and "--mode" in told.output and "--mode" not in arguments:
        # The mode of a native query is a decision of its owner, and the rejection names the option.
        told = called(*applied, "--mode", "full", *scratch_of(world, arguments))
    if told.exit_code:
        raise Failure("printed command", f"{text}\n{told}")
    return told


def _options_of(verb: str) -> set[str]:
    return {name for one in main.commands[verb].params if isinstance(one, click.Option) for name in one.opts}


def scratch_of(world: World, arguments: Sequence[str]) -> list[str]:
    return world.options if "--scratch" in _options_of(arguments[0]) and "--scratch" not in arguments else []


def places(world: World) -> dict[str, str]:
    """The values of the placeholders in printed commands."""
    found = {"ROOT": world.root, "SOURCE": world.root, "DESTINATION": world.another_root("destination")}
    if world.is_job:
        found["CHECKPOINT"] = world.trees()[1].url
    return found
