"""Calls every verb of the command line in this process, and captures its output."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from click.testing import CliRunner, Result

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.cli import main

_USAGE = 2
_EXIT_CODES = frozenset({0, 1, 3, 4, 10, 11, 12, 13})

WRITERS = ("gc", "snapshot", "repair", "switch", "unpack")
"""The verbs that change a checkpoint."""


@dataclass(frozen=True)
class Call:
    """One call of a verb. `may_be_usage`: exit code 2 is valid for some contents of the checkpoint."""

    verb: str
    arguments: tuple[str, ...]
    may_be_usage: bool = False


def run(verb: str, root: Path, *options: object) -> Result:
    """Call a verb. Waiting for a root to be quiet takes no time."""
    with mock.patch.object(SystemClock, "sleep"):
        return CliRunner().invoke(main, [verb, str(root), *map(str, options)])


def is_typed(call: Call, result: Result) -> bool:
    """Whether a verb ended with an exit code that it documents, and not with a traceback."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return False
    return result.exit_code in _EXIT_CODES or (call.may_be_usage and result.exit_code == _USAGE)


def readers(chance: random.Random, scratch: Path, store: str) -> Iterator[Call]:
    """The verbs that only read, each once; the output for people or for programs."""
    at = ("--scratch", str(scratch))
    yield Call("inspect", (*_output(chance),))
    yield Call("inspect --lineage", ("--lineage", store, *_output(chance)), may_be_usage=True)
    yield Call("audit", _output(chance))
    yield Call("audit --deep", ("--deep", *at, *_output(chance)))
    yield Call("dump", (*at, "--output", chance.choice(("table", "jsonl"))))
    yield Call("diff", (*at, "--output", chance.choice(("table", "json"))), may_be_usage=True)
    yield Call("gc, the plan", ("--retain", "1", "--grace", "0s", "--verbose", *_output(chance)))
    yield Call("gc --orphans, the plan", ("--retain", "2", "--grace", "0s", "--orphans", *_output(chance)))
    yield Call("snapshot --dry-run", ("--all", "--dry-run", *_output(chance)))
    yield Call("switch, the plan", ("--to", chance.choice(("v1", "v2")), *at, "--workers", "1", *_output(chance)))
    yield Call("repair, the plan", _output(chance))


def writer(verb: str, chance: random.Random, scratch: Path, to: str) -> Call:
    """A verb that changes the checkpoint, applied. `to`: the structure that a switchover leads to."""
    at = ("--scratch", str(scratch), "--workers", "1")
    if verb == "gc":
        orphans = ("--orphans", "--confirm-stopped") if chance.random() < 0.5 else ()
        return Call(verb, ("--retain", "1", "--grace", "0s", "--mode", "full", "--apply", *orphans, *_output(chance)))
    if verb == "snapshot":
        at_head = ("--at-head", "--confirm-stopped") if chance.random() < 0.5 else ("--all",)
        return Call(verb, ("--mode", "full", *at_head, *at, *_output(chance)))
    if verb == "unpack":
        return Call(verb, ("--mode", "full", *_output(chance)))
    if verb == "repair":
        return Call(verb, ("--apply", "--confirm-stopped", *_output(chance)))
    return Call(verb, ("--to", to, "--apply", "--confirm-stopped", *at, *_output(chance)))


ABORT = Call("switch --abort", ("--abort", "--confirm-stopped"))
"""Takes back a switchover that ended halfway."""


def _output(chance: random.Random) -> tuple[str, ...]:
    return ("--output", "json") if chance.random() < 0.5 else ()


def called(call: Call, root: Path) -> Result:
    """The result of a call."""
    return run(re.split("[ ,]", call.verb)[0], root, *call.arguments)
