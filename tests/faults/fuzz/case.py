"""One case: damage a checkpoint, run every verb that reads, then the verbs that write, on copies and in sequence.

The invariants for every damage:

* A verb ends in time with a documented exit code, never with a traceback.
* A verb that reads does not change the checkpoint.
* No verb writes outside the root and the scratch folder, not even through links.
* Each head that loaded before the verb loads afterwards, with the same rows.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import Result

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.faults.fuzz import roots, verbs
from tests.faults.fuzz.choices import Inapplicable
from tests.faults.fuzz.damages import DAMAGES
from tests.faults.fuzz.files import copy_tree, fingerprint
from tests.faults.fuzz.loading import Heads
from tests.faults.fuzz.verbs import Call

_LINES = 12


@dataclass
class Seen:
    """Result of a case. `calls`: verbs with their exit codes. `failures`: violated requirements."""

    case: int
    root: str
    stage: str
    damages: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    heads: int = 0
    calls: list[tuple[str, int]] = field(default_factory=list)
    failures: list[tuple[str, str, str]] = field(default_factory=list)


def play(seed: int, case: int, cache: Path, scratch: Path, only: frozenset[str] | None = None) -> Seen:
    """Play a case in an empty folder. `only`: the roots to choose from."""
    chance = random.Random(f"{seed}/{case}")
    names = [name for name in roots.all_roots() if only is None or name in only]
    name, stage = chance.choice(names), chance.choice(list(roots.Stage))
    seen = Seen(case, name, stage.value)
    made = roots.made(cache, name, stage)
    with roots.seeded_ids(f"case {seed}/{case}"):
        Case(seen, chance, scratch).play(made)
    return seen


class Case:
    """A case in its folder. `outside` must not change; `root` is the damaged checkpoint, with copies beside it."""

    def __init__(self, seen: Seen, chance: random.Random, folder: Path) -> None:
        self._seen = seen
        self._chance = chance
        self._folder = folder
        self._outside = folder / "outside"
        self._scratch = folder / "scratch"
        self._heads = Heads(folder / "loads")
        self._before: dict[str, str] = {}

    def play(self, made: Path) -> None:
        for folder in (self._outside, self._scratch):
            folder.mkdir(parents=True)
        (self._outside / "kept.log").write_text("not ours")
        root = self._folder / "root"
        copy_tree(made, root)
        self._damage(root)
        outside = fingerprint(self._outside)
        with _stray_errors(self._seen):
            self._before = self._heads_of(root, "load before")
            self._seen.heads = len(self._before)
            self._read(root)
            for verb in verbs.WRITERS:
                self._apply(root, [verb])
            order = list(verbs.WRITERS)
            self._chance.shuffle(order)
            self._apply(root, order)
        if fingerprint(self._outside) != outside:
            self._fail("WROTE OUTSIDE", "some verb", str(sorted(map(str, self._outside.rglob("*")))))

    def _damage(self, root: Path) -> None:
        weights = [weight for _, weight in DAMAGES.values()]
        wanted = self._chance.choice((1, 1, 1, 2, 3))
        while len(self._seen.damages) < wanted:
            [name] = self._chance.choices(list(DAMAGES), weights)
            try:
                self._seen.done.append(DAMAGES[name][0](self._chance, root))
            except (Inapplicable, OSError, IndexError, ValueError, MemoryError):
                # An earlier damage may have removed the file that this one needs.
                wanted = max(1, wanted - 1) if self._seen.damages else wanted
                continue
            self._seen.damages.append(name)

    def _read(self, root: Path) -> None:
        before = fingerprint(root)
        for call in verbs.readers(self._chance, self._scratch, self._a_store()):
            self._call(call, root)
            if fingerprint(root) != before:
                self._fail("READER WROTE", call.verb, "the checkpoint is another one than before")
                return

    def _apply(self, damaged: Path, order: list[str]) -> None:
        """Apply verbs one after another to a copy of the damaged checkpoint."""
        # The same path each time: local copies and messages name it.
        kept = damaged.with_name("kept")
        damaged.rename(kept)
        copy_tree(kept, damaged)
        told: list[str] = []
        for verb in order:
            told.append(verb)
            call = verbs.writer(verb, self._chance, self._scratch, self._other_structure(damaged))
            self._call(call, damaged)
            if verb == "switch" and _is_half_switched(damaged):
                told.append("abort")
                self._call(verbs.ABORT, damaged)
            if self._lost(damaged, ", ".join(told)):
                break
        shutil.rmtree(damaged)
        kept.rename(damaged)

    def _lost(self, root: Path, told: str) -> bool:
        after = self._heads_of(root, f"load after {told}")
        lost = [store for store, digest in self._before.items() if after.get(store) != digest]
        if lost:
            why = self._heads.why_not(root, lost[0])
            self._fail("LOST", told, f"{len(lost)} of {len(self._before)} heads, {lost[0]}: {why}")
        return bool(lost)

    def _heads_of(self, root: Path, what: str) -> dict[str, str]:
        try:
            return self._heads.of(root)
        except Exception as error:
            self._fail("TRACEBACK", what, _in_short(error))
            return {} if what == "load before" else self._before

    def _call(self, call: Call, root: Path) -> None:
        print(f"{call.verb} {' '.join(call.arguments)}", flush=True)
        result = verbs.called(call, root)
        self._seen.calls.append((call.verb, result.exit_code))
        print(_shown(result), flush=True)
        if not verbs.is_typed(call, result):
            error = result.exception
            detail = _shown(result) if error is None or isinstance(error, SystemExit) else _in_short(error)
            self._fail("TRACEBACK", call.verb, detail)
        left = list(self._scratch.iterdir())
        if left:
            self._fail("LEFT IN SCRATCH", call.verb, str([place.name for place in left][:5]))
            for place in left:
                shutil.rmtree(place, ignore_errors=True)

    def _fail(self, kind: str, verb: str, detail: str) -> None:
        print(f"{kind}: {verb}: {detail}", flush=True)
        self._seen.failures.append((kind, verb, detail))

    def _a_store(self) -> str:
        return next(iter(self._before), "state/0/0").removeprefix("state/")

    def _other_structure(self, root: Path) -> str:
        try:
            heads = catalog.heads(open_storage(str(root)))
        except Exception:  # the verbs that read the same fail with it
            heads = None
        if heads is None:
            return self._chance.choice(("v1", "v2"))
        is_v1 = any(version.id is None for version in heads.heads.values())
        return (Structure.V2 if is_v1 else Structure.V1).value


def _is_half_switched(root: Path) -> bool:
    numbers = root / "_statekeeper" / "switchover"
    if not numbers.is_dir():
        return False
    return any((run / "begun.json").exists() and not (run / "ended.json").exists() for run in numbers.iterdir())


def _shown(result: Result) -> str:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return _tail("".join(traceback.format_exception(result.exception)))
    try:
        return f"exit {result.exit_code}: {_tail(result.stderr or result.stdout, 3)}"
    except UnicodeError as error:
        return f"exit {result.exit_code}: {error}"


def _in_short(error: BaseException) -> str:
    """Describe an undocumented error of a verb: its type, and its origin in the library."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if "/statestore/" in frame.filename]
    last = places[-1] if places else None
    where = f", at statestore/{last.filename.rpartition('/statestore/')[2]}:{last.lineno}" if last else ""
    return f"{type(error).__name__}: {str(error)[:300]}{where}"


def _tail(text: str, lines: int = _LINES) -> str:
    found = text.strip().splitlines()
    return "\n".join(line[:500] for line in found[-lines:])


@contextmanager
def _stray_errors(seen: Seen) -> Iterator[None]:
    """Record errors that no caller sees: in threads, and in finalizers."""
    by_thread, given_up = threading.excepthook, sys.unraisablehook

    def in_thread(what: Any) -> None:
        seen.failures.append(("TRACEBACK", "a thread", _in_short(what.exc_value)))

    def unraisable(what: Any) -> None:
        seen.failures.append(("TRACEBACK", "given up", _in_short(what.exc_value)))

    threading.excepthook, sys.unraisablehook = in_thread, unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = by_thread, given_up
