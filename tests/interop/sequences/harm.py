"""Damage to one file on a copy: the audit must agree with Spark, and the command that it prints must help."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from random import Random

from statekeeper.statestore.format import names
from tests.interop.sequences import checks
from tests.interop.sequences.checks import Look, Start, audited, run_printed
from tests.interop.sequences.commands import commands
from tests.interop.sequences.worlds import Failure, World, called

_STATE = re.compile(r"state/\d+/\d+/(.*/)?\d+(_[0-9a-f-]+)?\.(changelog|zip|delta|snapshot)")
_SOURCE = re.compile(r"sources/\d+/(\d+)")


def harm(world: World, chance: Random, counts: Counter[str]) -> str:
    """Damage a file of a copy, and compare the audit with Spark's start."""
    kind, path, how = _chosen(world, chance)
    counts[f"damage: {kind} {how}"] += 1
    tree = world.tree()
    keeps_checksum = chance.random() < 0.3
    data = _damaged(tree.files()[path], how, chance)
    with world.trial():
        tree.put(path, data, keeps_checksum=keeps_checksum)
        try:
            way = _require_agreement(world, counts)
        except Failure as failure:
            raise Failure(f"{failure.kind}, {kind} {how}", f"{path} {how}: {failure}") from failure
    if way is None or chance.random() < 0.5:
        return f"{path} {how}, on a copy"
    tree.put(path, data, keeps_checksum=keeps_checksum)
    _take(world, way, counts)
    world.undo, world.mirror_is_behind = None, True
    return f"{path} {how}, and {' '.join(way[0])}"


def _chosen(world: World, chance: Random) -> tuple[str, str, str]:
    """Return the kind of a file, its path, and the damage."""
    found = sorted(world.tree().files())
    newest = world.history.newest
    of_kind = {
        "newest offsets": [names.offsets(newest)],
        "newest commit": [names.commits(newest)],
        "offsets before": [names.offsets(newest - 1)],
        "older commit": [names.commits(batch) for batch in range(newest)],
        "older offsets": [names.offsets(batch) for batch in range(newest - 1)],
        "source log": [path for path in found if _SOURCE.fullmatch(path)],
        "changelog": [path for path in found if _STATE.fullmatch(path) and path.endswith((".changelog", ".delta"))],
        "snapshot": [path for path in found if _STATE.fullmatch(path) and path.endswith((".zip", ".snapshot"))],
        "description": [path for path in found if "_metadata" in path or "_stateSchema" in path or path == "metadata"],
    }
    present = {kind: [path for path in paths if path in found] for kind, paths in of_kind.items()}
    kind = chance.choice([kind for kind, paths in present.items() if paths])
    path = chance.choice(present[kind])
    ways = ("missing", "empty", "torn") if "." not in path else ("missing", "torn", "flipped")
    if kind == "newest commit" and (world.is_job or newest == 0):
        # A root without its newest commit is a root whose newest batch was interrupted. Only the query has the commit.
        # Without any commit, no batch has ended.
        ways = ways[1:]
    if kind == "newest offsets" and newest == 0:
        # Without any offsets, Spark does not continue the query: it begins a new one.
        ways = ways[1:]
    return kind, path, chance.choice(ways)


def _damaged(data: bytes, how: str, chance: Random) -> bytes | None:
    if how == "missing":
        return None
    if how == "flipped" and data:
        position = chance.randrange(len(data))
        return data[:position] + bytes([data[position] ^ (1 << chance.randrange(8))]) + data[position + 1 :]
    return data[: len(data) // 2] if how == "torn" else b""


def _require_agreement(world: World, counts: Counter[str]) -> list[list[str]] | None:
    """Return the printed commands that let Spark start again; None if it starts without them, or if none does."""
    look = audited(world, deep=True)
    start = _started(world, counts)
    is_right = start.error is None and start.failure is None
    if not is_right and not look.errors:
        what = start.error or str(start.failure)
        raise Failure("audit without error, Spark fails", f"{what}\n{look}")
    if is_right and look.restart is None:
        raise Failure("audit finds no restart, Spark starts", str(look))
    ways = [
        way
        for finding in (look.errors or look.findings)[:2]
        if (way := _advised(world, finding, look, counts, is_needed=not is_right)) is not None
    ]
    if is_right:
        return None
    if not ways and not world.is_job:
        _require_no_way(world, look, counts)
    return ways[0] if ways else None


def _started(world: World, counts: Counter[str]) -> Start:
    """Start Spark on a copy: a batch whose commit is lost may run again, and the next one must be right."""
    counts["starts of Spark on a copy"] += 1
    with world.trial():
        entry, newest = world.history.entry, world.history.newest
        try:
            found = world.run_spark(entry, 1)
        except checks.SPARK_IS_GONE:
            raise
        except Exception as error:
            return Start(f"{type(error).__name__}: {str(error)[:400]}")
        world.history = world.history.appended(entry.next())
        try:
            if newest + 1 not in found:
                raise Failure("batches", f"Spark ran the batches {sorted(found)} and not {newest + 1}")
            repeated = {batch: one for batch, one in world.history.batches.items() if batch in found}
            world.require_rows(found, {**repeated, newest + 1: world.history.entry})
            world.require_state(world.history.entry)
        except Failure as failure:
            return Start(None, failure)
    return Start(None)


def _advised(
    world: World, finding: dict[str, str], look: Look, counts: Counter[str], *, is_needed: bool
) -> list[list[str]] | None:
    """Follow the advice of a finding on a copy. Return its commands, if Spark starts after them."""
    printed = [one for one in commands(finding["action"], checks.places(world)) if one[0] not in checks.LOOKS]
    if not printed:
        return None
    with world.trial():
        _take(world, printed, counts, finding["action"])
        now = audited(world, deep=True)
        same = [one for one in now.findings if (one["code"], one["file"]) == (finding["code"], finding["file"])]
        if same:
            raise Failure("advice does not resolve its finding", f"{printed}\n{same[0]}\nbefore: {look}")
        if not is_needed:
            return printed
        start = _started(world, counts)
        if start.error is None and start.failure is None:
            return printed
        if not now.errors:
            raise Failure("audit clean after its advice, Spark fails", f"{printed}\n{start}\n{now}")
    return None


def _take(world: World, printed: list[list[str]], counts: Counter[str], text: str = "") -> None:
    """Run printed commands, and change the model as they change the checkpoint."""
    for arguments in printed:
        counts["printed commands"] += 1
        told = run_printed(world, arguments, text)
        if arguments[0] != "rewind":
            continue
        world.history = world.history.rewound(int(arguments[arguments.index("--to-batch") + 1]))
        if world.is_job:
            for more in commands(told.output, checks.places(world)):
                if "--query-id" in more:
                    run_printed(world, more, told.output)


def _require_no_way(world: World, look: Look, counts: Counter[str]) -> None:
    """No printed command helps: then no rewind must work that loses no committed batch but the newest."""
    for batch in _earlier(world):
        with world.trial():
            told = _rewound_to(world, batch)
            if told:
                continue
            world.history = world.history.rewound(batch)
            start = _started(world, counts)
            if start.error is None and start.failure is None:
                raise Failure("no way is printed", f"rewind --to-batch {batch} works\n{look}")


def _earlier(world: World) -> Iterator[int]:
    history = world.history
    if history.newest - 1 in history.batches and history.newest - 1 >= history.floor:
        yield history.newest - 1


def _rewound_to(world: World, batch: int) -> int:
    told = called(
        "rewind",
        world.root,
        "--to-batch",
        batch,
        "--apply",
        "--confirm-stopped",
        "--keep-query-id",
        *world.sink_options,
        *world.options,
    )
    return told.exit_code
