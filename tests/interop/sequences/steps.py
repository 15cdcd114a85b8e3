"""The steps of a sequence. A step chooses its details from the world as it is, so that it also runs without the others."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from unittest.mock import patch

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import common
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_sink import LogEntry
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from tests.interop.sequences import checks
from tests.interop.sequences.checks import audited, follow, require_sound_copy, started
from tests.interop.sequences.commands import commands
from tests.interop.sequences.harm import harm
from tests.interop.sequences.model import Entry, History
from tests.interop.sequences.worlds import Failure, NativeWorld, Told, World, called
from tests.support.edited_keys import leaves
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.switching import WRITES

STOPPED = "--confirm-stopped"
UNSUPPORTED = 12
IS_BEGUN = "a batch has begun"
NO_FAMILIES = ("join 3", "join 4", "transformWithState")
"""Operators with column families, which the default provider does not have."""


class NotNow(Exception):
    """The step has nothing to do in this world."""


@dataclass
class Played:
    """What a step may use: its world, its source of choices, and the counts of the run."""

    world: World
    chance: Random
    counts: Counter[str]
    known: Sequence[str] = ()

    @property
    def history(self) -> History:
        return self.world.history

    @property
    def entry(self) -> Entry:
        return self.world.history.entry


Step = Callable[[Played], str]


@dataclass(frozen=True)
class Change:
    """A verb that changes the checkpoint: its command, and the history after it.

    `after` is called when the command has ended. `why`: a reason for which the verb must be rejected, None if it must
    be accepted.
    """

    arguments: tuple[str, ...]
    after: Callable[[], History]
    why: str | None = None
    also: tuple[str, ...] = ()
    """The options of a run that is not aborted."""


# -- batches -----------------------------------------------------------------------------------------------------------


def batches(played: Played) -> str:
    number = played.chance.choice((1, 1, 2, 3))
    try:
        played.world.run(number)
    except (Failure, *checks.SPARK_IS_GONE):
        raise
    except Exception as error:
        raise Failure("Spark fails", f"{type(error).__name__}: {str(error)[:600]}") from error
    played.counts["batches"] += number
    return f"{number} batches, up to batch {played.history.newest}"


# -- verbs that change the checkpoint ------------------------------------------------------------------------------------


def _switch(played: Played) -> Change:
    entry = played.entry
    to = entry.structure.other
    why = None
    if entry.provider is Provider.HDFS_BACKED:
        why = "the default provider has no structure V2"
    if played.world.is_job and played.history.is_begun:
        why = IS_BEGUN
    return Change(
        ("switch", played.world.root, "--to", to.value),
        lambda: played.history.changed(replace(entry, structure=to)),
        why,
    )


def _rescale(played: Played) -> Change:
    entry, world = played.entry, played.world
    partitions = played.chance.choice([number for number in (1, 2, 3, 4, 5) if number != entry.partitions])
    rescaled = replace(entry, partitions=partitions)
    why = None
    if entry.provider is Provider.HDFS_BACKED:
        why = "rescale does not support the default provider"
    if world.is_job and entry.structure is Structure.V1:
        why = "the snapshots of a state root in V1 have the names of the present ones"
    if played.history.is_begun:
        if why is not None:
            raise NotNow
        why = IS_BEGUN
    return Change(
        ("rescale", world.root, "--partitions", str(partitions), *world.sink_options),
        lambda: played.history.changed(rescaled) if world.is_job else played.history.appended(rescaled),
        why,
    )


def _convert(played: Played) -> Change:
    entry, world = played.entry, played.world
    if world.is_job:
        return _switch(played)
    if entry.provider is Provider.HDFS_BACKED:
        structure = played.chance.choice([*Structure])
        converted = replace(entry, provider=Provider.ROCKSDB, structure=structure)
        arguments = ("convert", world.root, "--to", "rocksdb", "--structure", structure.value, *world.sink_options)
        why = IS_BEGUN if played.history.is_begun else None
        return Change(arguments, lambda: played.history.appended(converted), why)
    assert isinstance(world, NativeWorld)
    if entry.structure is Structure.V2 and played.history.is_begun:
        # Of two reasons, following one does not help.
        raise NotNow
    why = None
    if world.operator in NO_FAMILIES:
        why = "the default provider has no column families"
    elif entry.structure is Structure.V2:
        why = "the default provider has no structure V2"
    elif played.history.is_begun:
        why = IS_BEGUN
    converted = replace(entry, provider=Provider.HDFS_BACKED)
    return Change(
        ("convert", world.root, "--to", "hdfs", *world.sink_options), lambda: played.history.appended(converted), why
    )


def _load(played: Played) -> Change:
    entry, world = played.entry, played.world
    if not world.savepoints:
        _save_rows(played)
        if played.chance.random() < 0.5:
            batches(played)
            entry = played.entry
    folder, of = played.chance.choice(world.savepoints)
    why = None
    if entry.provider is Provider.HDFS_BACKED:
        why = "load does not support the default provider"
    if world.is_job and entry.structure is Structure.V1:
        why = "the snapshots of a state root in V1 have the names of the present ones"
    if played.history.is_begun:
        if why is not None:
            raise NotNow
        why = IS_BEGUN

    def after() -> History:
        world.require_state(of)
        same = of.moment == entry.moment
        loaded = entry if same else replace(entry, moment=world.forked(entry, {"load": of.moment}))
        return played.history.changed(loaded) if world.is_job else played.history.appended(loaded)

    return Change(("load", folder, world.root, "--replace-state", *world.sink_options), after, why)


def _edit(played: Played) -> Change:
    entry, world = played.entry, played.world
    found = world.a_key()
    if found is None:
        raise NotNow
    operator, key = found
    goal = [text for name, value in leaves(key).items() for text in ("--delete", f"{name}={value}")]
    why = None
    if entry.provider is Provider.HDFS_BACKED:
        why = "edit does not support the default provider"
    elif world.is_job and entry.structure is Structure.V1:
        why = "this release does not edit a state root in V1"
    elif world.is_job and played.history.is_begun:
        why = IS_BEGUN
    before = world.state()

    def after() -> History:
        left = world.state()
        if left - before or not before - left:
            raise Failure("edit", "the edit added rows or deleted none")
        moment = world.forked(entry, {"delete": key.get("key")})
        world.require_state(replace(entry, moment=moment))
        return played.history.changed(replace(entry, moment=moment))

    return Change(("edit", world.root, "--operator", str(operator), *goal), after, why)


CHANGES: Mapping[str, Callable[[Played], Change]] = {
    "switch": _switch,
    "rescale": _rescale,
    "convert": _convert,
    "load": _load,
    "edit": _edit,
}


def _changed(name: str) -> Step:
    def step(played: Played) -> str:
        change = CHANGES[name](played)
        before = played.history
        if played.chance.random() < 0.3:
            _require_plan(played, change)
        told = called(*change.arguments, "--apply", STOPPED, *played.world.options)
        if change.why is not None:
            _require_rejected(played, change, told)
            return f"{' '.join(change.arguments)}: rejected, as {change.why}"
        if told.exit_code:
            _rejected_wrongly(played, told)
        played.world.history = change.after()
        _remember_undo(played, told, before)
        played.world.mirror_is_behind = True
        follow(played.world, told.output, played.counts)
        return " ".join(change.arguments)

    return step


def _require_plan(played: Played, change: Change) -> None:
    """The command without --apply tells whether the verb is accepted, and changes nothing."""
    before = played.world.tree().files()
    told = called(*change.arguments, *played.world.options)
    if (told.exit_code == 0) != (change.why is None):
        raise Failure(f"plan: {change.arguments[0]}", f"{change.why}\n{told}")
    if played.world.tree().files() != before:
        raise Failure("a plan changed the checkpoint", str(told))


def _remember_undo(played: Played, told: Told, before: History) -> None:
    printed = [one for one in commands(told.output, checks.places(played.world)) if "--undo" in one]
    played.world.undo = (printed, before) if printed else None


def _rejected_wrongly(played: Played, told: Told) -> None:
    raise Failure(f"rejected: {told.arguments[0]}", f"{told}\n{audited(played.world)}")


def _require_rejected(played: Played, change: Change, told: Told) -> None:
    """Require that nothing was changed, and that the printed commands lead to an accepted command."""
    played.counts["rejections"] += 1
    if not told.exit_code:
        raise Failure(f"accepted: {told.arguments[0]}", f"{change.why}\n{told}")
    then = (*change.arguments, "--apply", STOPPED, *played.world.options)
    if change.why == IS_BEGUN:
        with played.world.trial():
            played.world.run(1)
            accepted = called(*then)
            if accepted.exit_code:
                raise Failure("still rejected after the batch", f"{told}\n{accepted}")
        return
    reasons = _reasons(told)
    found = commands(reasons, checks.places(played.world))
    follow(played.world, reasons, played.counts, then=then if found else ())


def _unsupported(played: Played, told: Told) -> str:
    """A verb that does not support the default provider: it works after the printed conversion."""
    played.counts["rejections"] += 1
    if told.exit_code != UNSUPPORTED:
        _rejected_wrongly(played, told)
    # The batch that has begun must end first.
    if not played.history.is_begun:
        follow(played.world, _reasons(told), played.counts, then=told.arguments)
    return f"{told.arguments[0]}: rejected, as it does not support the default provider"


def _reasons(told: Told) -> str:
    """The lines of an output that name the reasons of a rejection; the lines of the plan are about another time."""
    lines = told.output.splitlines()
    return "\n".join(line for line in lines if line.startswith("blocked: ") or " -> " in line)


def undo(played: Played) -> str:
    if played.world.undo is None:
        done = _changed("edit")(played)
        if played.world.undo is None:
            return done
    printed, before = played.world.undo
    for arguments in printed:
        told = called(*arguments)
        if told.exit_code:
            raise Failure("undo", f"{told}\n{audited(played.world)}")
    played.world.history, played.world.undo = before, None
    played.world.mirror_is_behind = True
    return " ".join(printed[0][:1] + printed[0][2:])


# -- verbs of upkeep -----------------------------------------------------------------------------------------------------


def snapshot(played: Played) -> str:
    which = played.chance.choice((["--at-head", STOPPED], ["--all"], ["--changelogs", "1"]))
    arguments = ["snapshot", played.world.root, *which, "--mode", "snapshots", *played.world.options]
    told = called(*arguments)
    if told.exit_code and played.entry.provider is Provider.HDFS_BACKED:
        return _unsupported(played, told)
    if told.exit_code:
        _rejected_wrongly(played, told)
    return " ".join(arguments[:1] + which)


def gc(played: Played) -> str:
    retain = played.chance.choice((1, 2, 3, 5))
    more = played.chance.choice(([], [], ["--orphans"], ["--orphans", STOPPED]))
    if played.world.is_job:
        more = [one for one in more if one != STOPPED]
    arguments = ["gc", played.world.root, "--retain", str(retain), "--grace", "0s", "--mode", "full", *more, "--apply"]
    told = called(*arguments, *played.world.options)
    if told.exit_code and played.entry.provider is Provider.HDFS_BACKED:
        return _unsupported(played, told)
    if told.exit_code:
        _rejected_wrongly(played, told)
    played.world.history = played.history.collected(retain)
    played.world.undo = None
    return f"gc --retain {retain} {' '.join(more)}".strip()


def look(played: Played) -> str:
    """Verbs that only read, and `unpack`, which adds copies of the changelogs of batch logs."""
    world = played.world
    before = world.tree().files()
    verbs = [("inspect", world.root), ("diff", world.root), ("lease", world.root), ("gc", world.root)]
    for arguments in verbs:
        told = called(*arguments)
        if told.exit_code == UNSUPPORTED and played.entry.provider is Provider.HDFS_BACKED:
            _unsupported(played, told)
            continue
        # By default, `diff` compares the two newest batches: after a rescale, they have different stores.
        is_across = arguments[0] == "diff" and "was repartitioned between them" in told.output
        is_across |= arguments[0] == "diff" and world.history.newest - 1 < world.history.floor
        if told.exit_code not in (0, checks.FINDINGS) and not is_across:
            raise Failure(arguments[0], str(told))
        follow(world, told.output, played.counts)
    if world.tree().files() != before:
        raise Failure("a verb that reads changed the checkpoint", str(verbs))
    if not world.is_job:
        return "inspect, diff, lease, gc"
    told = called("unpack", world.root)
    if told.exit_code:
        raise Failure("unpack", str(told))
    return "inspect, diff, lease, gc, unpack"


def repair(played: Played) -> str:
    more = played.chance.choice(([], ["--deep"]))
    told = called("repair", played.world.root, *more, "--apply", STOPPED, *played.world.options)
    if told.exit_code == UNSUPPORTED and played.entry.provider is Provider.HDFS_BACKED:
        return _unsupported(played, told)
    if told.exit_code:
        _rejected_wrongly(played, told)
    return "repair"


def rewind(played: Played) -> str:
    history, world = played.history, played.world
    targets = [batch for batch in history.batches if batch < history.newest + history.is_begun]
    if not targets:
        raise NotNow
    target = played.chance.choice(targets[-4:])
    then, is_crossed = history.batches[target], False
    later = [entry for batch, entry in history.batches.items() if batch > target]
    is_crossed = any(entry.structure is not then.structure for entry in later)
    told = _rewound(world, target)
    if told.exit_code:
        played.counts["rejections"] += 1
        if target >= history.floor and not is_crossed:
            _rejected_wrongly(played, told)
        is_named = is_crossed and target >= history.floor
        reasons = _reasons(told)
        follow(world, reasons, played.counts, then=told.arguments if is_named and "switch back" in reasons else ())
        return f"rewind --to-batch {target}: rejected"
    before = world.history
    world.history = history.rewound(target)
    world.mirror_is_behind = True
    _remember_undo(played, told, before)
    if world.is_job:
        _rewind_checkpoint(played, target, told)
    return f"rewind --to-batch {target}"


def _rewound(world: World, target: int) -> Told:
    more = (*world.sink_options, *world.options)
    return called("rewind", world.root, "--to-batch", target, "--apply", STOPPED, *more)


def _rewind_checkpoint(played: Played, target: int, told: Told) -> None:
    """Of a job, rewind the query's own checkpoint, too, by the printed command."""
    printed = [one for one in commands(told.output, checks.places(played.world)) if "--query-id" in one]
    if len(printed) != 1:
        raise Failure("rewind", f"no command for the checkpoint of the query\n{told}")
    second = called(*printed[0], *played.world.options)
    if second.exit_code:
        raise Failure("printed command", str(second))
    if played.world.undo is not None:
        more = [one for one in commands(second.output, checks.places(played.world)) if "--undo" in one]
        played.world.undo = ([*played.world.undo[0], *more], played.world.undo[1])


# -- copies --------------------------------------------------------------------------------------------------------------


def _batch_to_copy(played: Played) -> int:
    history = played.history
    batches = [batch for batch in history.batches if batch >= history.floor][-3:]
    return played.chance.choice([history.newest, *batches])


def clone(played: Played) -> str:
    world = played.world
    batch = _batch_to_copy(played)
    to = world.another_root("clone")
    told = called("clone", world.root, to, "--batch", batch, STOPPED, *world.options)
    structures = {entry.structure for number, entry in played.history.batches.items() if number >= batch}
    if told.exit_code and len(structures) > 1 and "version_not_loadable" in told.output:
        # A switchover to V1 moves the snapshots of V2 aside.
        played.counts["rejections"] += 1
        return f"clone --batch {batch}: rejected"
    if told.exit_code:
        _rejected_wrongly(played, told)
    if world.is_job:
        # The checkpoint of the query is at the newest batch.
        if batch == world.history.newest:
            require_sound_copy(world, to, batch, played.counts)
        return f"clone --batch {batch}"
    if world.sink and batch != world.history.newest:
        # The file sink has later batches, which Spark would skip.
        return f"clone --batch {batch}"
    require_sound_copy(world, to, batch, played.counts)
    if played.chance.random() < 0.5:
        world.at(to)
        world.history = played.history.rewound(batch).only_from(batch)
        world.undo, world.mirror, world.mirror_is_behind = None, None, False
        return f"clone --batch {batch}, and continue there"
    return f"clone --batch {batch}"


def mirror(played: Played) -> str:
    world = played.world
    if world.mirror is None:
        world.mirror, world.mirror_is_behind = world.another_root("mirror"), False
    told = called("mirror", world.root, world.mirror, STOPPED, *world.options)
    if told.exit_code and played.entry.provider is Provider.HDFS_BACKED:
        world.mirror = None
        played.counts["rejections"] += 1
        # The way back is another provider, so the mirror may have diverged.
        follow(world, "" if played.history.is_begun else _reasons(told), played.counts)
        return "mirror: rejected, as it does not support the default provider"
    if told.exit_code and world.mirror_is_behind:
        # The history of the mirror is another one. The rejection names the way to a new mirror.
        played.counts["rejections"] += 1
        world.mirror = None
        found = follow(world, _reasons(told), played.counts)
        if not any(one[0] == "mirror" for one in found):
            raise Failure("mirror", f"no command for a new mirror\n{told}")
        return "mirror: rejected, as the source has diverged"
    if told.exit_code:
        _rejected_wrongly(played, told)
    if not world.is_job:
        require_sound_copy(world, world.mirror, world.history.newest, played.counts)
    elif (look := audited(world, world.mirror)).findings:
        raise Failure("copy not clean", str(look))
    world.mirror_is_behind = False
    return "mirror"


def savepoint(played: Played) -> str:
    world = played.world
    if played.chance.random() < 0.5:
        _save_rows(played)
        return "savepoint --rows"
    to = world.another_root("savepoint")
    how = ["--label", Path(to).name, "--mode", "snapshots"]
    told = called("savepoint", world.root, to, *how, STOPPED, *world.options)
    if told.exit_code:
        _rejected_wrongly(played, told)
    require_sound_copy(world, to, world.history.newest, played.counts)
    return "savepoint"


def _save_rows(played: Played) -> None:
    """A savepoint is in the state in which a load finds it: rows of this batch."""
    world = played.world
    to = world.another_root("savepoint")
    told = called("savepoint", world.root, to, "--rows", STOPPED, *world.options)
    if told.exit_code:
        _rejected_wrongly(played, told)
    world.savepoints = [*world.savepoints, (to, played.entry)]


# -- kills ---------------------------------------------------------------------------------------------------------------


@contextmanager
def faulty(root: str, plan: Mapping[int, Fault]) -> Iterator[list[FaultyStorage]]:
    """Commands open this root through a storage that fails as planned."""
    opened: list[FaultyStorage] = []

    def open_faulty(spec: StorageSpec, *, is_hurried: bool) -> Storage:
        storage = open_storage(spec, is_hurried=is_hurried)
        if not storage.url.endswith(root.removeprefix("s3://")):
            return storage
        opened.append(FaultyStorage(storage, plan))
        return opened[-1]

    with patch.object(common, "open_storage", open_faulty):
        yield opened


def kill(played: Played) -> str:
    """A rewrite dies at one of its writes. Then it is finished by the same command, or aborted."""
    world, chance = played.world, played.chance
    name = chance.choice([*CHANGES])
    change = CHANGES[name](played)
    if change.why is not None:
        raise NotNow
    command = (*change.arguments, "--apply", STOPPED, *world.options, "--workers", "1")
    with world.trial(), faulty(world.root, {}) as opened:
        told = called(*command)
        if told.exit_code:
            _rejected_wrongly(played, told)
        trace = opened[0].trace
    writes = [request for request in trace if request.kind in WRITES]
    request = chance.choice(writes)
    fault = chance.choice([Fault.BEFORE, Fault.AFTER, *([Fault.TORN] if request.tears else [])])
    before = world.history
    by_signal = world.server is None and chance.random() < 0.1
    if by_signal:
        _killed_by_signal(world, command, request.number, fault)
    else:
        with faulty(world.root, {request.number: fault}) as opened:
            try:
                called(*command)
            except SimulatedCrash:
                pass
            except Failure as failure:
                if not isinstance(failure.__cause__, SimulatedCrash):
                    raise
    _require_half(played, before)
    told = called(*command)
    if told.exit_code == 11:
        # The dead process holds the lease; the error names the command that releases it.
        for arguments in commands(told.output, checks.places(world)):
            checks.run_printed(world, arguments, told.output)
        told = called(*command) if chance.random() < 0.5 else _aborted(played, change)
    else:
        _finish_or_fail(told)
    # The run that died had ended otherwise: its process lives on here, and so does its lease.
    released = called("lease", world.root, "--break")
    if released.exit_code:
        raise Failure("harness", str(released))
    played.counts["kills"] += 1
    died = f"{' '.join(change.arguments)}: dies {fault.name} {request.kind.value} {request.path}"
    if "--abort" in told.arguments:
        world.history = before
        return f"{died}, aborted"
    _finish_or_fail(told)
    world.history = change.after()
    if name == "load" and catalog.newest_batch(open_storage(world.root)) == world.history.newest + 1:
        # The first run had ended, and the command has loaded the savepoint once more.
        world.history = world.history.appended(world.history.entry)
    _remember_undo(played, told, before)
    world.mirror_is_behind = True
    return f"{died}, finished"


def _finish_or_fail(told: Told) -> None:
    if told.exit_code:
        raise Failure("not finished after a kill", str(told))


def _aborted(played: Played, change: Change) -> Told:
    """Abort; a run that had not begun or had ended cannot be aborted, and is finished."""
    name, world = change.arguments[0], played.world
    told = called(name, world.root, "--abort", STOPPED, *world.options)
    if not told.exit_code:
        return told
    if any(one["code"] == "half_switched" for one in audited(world).findings):
        raise Failure("abort", f"{told}\n{audited(world)}")
    return called(*change.arguments, "--apply", STOPPED, *world.options)


def _require_half(played: Played, before: History) -> None:
    """Spark may start on what a kill left behind only with the right rows. If it fails, the audit has an error."""
    if played.chance.random() < 0.5:
        return
    look = audited(played.world)
    try:
        start = started(played.world, played.counts)
    except Failure as failure:
        raise Failure("after a kill", str(failure)) from failure
    if start.error is not None and not look.errors and not _is_switched(played.world):
        raise Failure("audit clean, Spark fails", f"after a kill: {start.error}")


def _is_switched(world: World) -> bool:
    """Return whether the killed command has already switched the checkpoint: Spark starts with the former structure."""
    newest = catalog.newest_batch(open_storage(world.root))
    return (
        newest is not None
        and catalog.structure_at(open_storage(world.root), newest) is not world.history.entry.structure
    )


def _killed_by_signal(world: World, command: Sequence[object], number: int, fault: Fault) -> None:
    arguments = [sys.executable, "-m", "tests.interop.sequences.killed", world.root, str(number), fault.name]
    done = subprocess.run([*arguments, *map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != -9:
        raise Failure("harness", f"the process was not killed: {done.returncode}\n{done.stdout}{done.stderr}")


# -- damage and death of Spark -------------------------------------------------------------------------------------------


def damage(played: Played) -> str:
    """Damage a file on a copy. The sequence continues with the undamaged checkpoint."""
    return harm(played.world, played.chance, played.counts)


def stop(played: Played) -> str:
    """Spark dies in the middle of a batch, before its commit."""
    world = played.world
    if world.history.is_begun:
        raise NotNow
    before, number = world.history, world.history.newest + 1
    world.run(1)
    # Of a job, also the commit of its root: the sink has the rows, and the batch runs again.
    # With the entry of a file sink, Spark would skip the batch: a known defect, after which it needs a rewind.
    for tree in world.trees():
        for path in (names.commits(number), LogEntry(number).path, LogEntry(number, is_compacted=True).path):
            tree.put(path, None)
    world.history, world.undo = replace(before, is_begun=True), None
    return f"Spark dies in batch {number}"


STEPS: Mapping[str, tuple[int, Step]] = {
    "batches": (0, batches),
    "switch": (4, _changed("switch")),
    "rescale": (5, _changed("rescale")),
    "convert": (2, _changed("convert")),
    "load": (2, _changed("load")),
    "edit": (2, _changed("edit")),
    "undo": (2, undo),
    "snapshot": (3, snapshot),
    "gc": (3, gc),
    "look": (1, look),
    "repair": (1, repair),
    "rewind": (4, rewind),
    "clone": (3, clone),
    "mirror": (3, mirror),
    "savepoint": (3, savepoint),
    "kill": (3, kill),
    "damage": (3, damage),
    "stop": (1, stop),
}
"""Each step with its weight. Batches come between the others."""
