"""Maintenance during the kill test: snapshots, audits and retention in a loop, each in a process that may be killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statekeeper.statestore.base.errors import NotACheckpoint, RootHeld
from statekeeper.statestore.format import names
from tests.support.processes import in_session, kill

RETAIN = 20
"""Versions that stay."""

_VERBS: dict[str, tuple[str, ...]] = {
    "snapshot": ("--changelogs", "8"),
    "gc": ("--apply", "--retain", str(RETAIN), "--grace", "5s"),
    "audit": ("--retain", str(RETAIN)),
}
_KILLED_SHARE = 0.4
_VERB_SECONDS = 240.0
_REST_SECONDS = 12.0
_QUIET_CODES = (0, NotACheckpoint.exit_code)


@dataclass(frozen=True)
class Sample:
    """Size of `state/` at this number of committed batches."""

    batches: int
    files: int
    size_bytes: int


@dataclass
class MaintenanceLoop:
    """Runs the verbs over `root` in turn, in a thread; `chance` says which are killed, and when."""

    root: Path
    scratch: Path
    chance: random.Random
    ended: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="maintenance", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the verb that runs."""
        self._stopped.set()
        self._thread.join()

    def once(self, verb: str, *more: str) -> dict[str, Any]:
        """One verb, undisturbed; its object. Raises `AssertionError` when it does not end well."""
        done = subprocess.run(
            [*_command(verb), str(self.root), *_VERBS.get(verb, ()), *more, "--output", "json"],
            capture_output=True,
            text=True,
            timeout=_VERB_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{verb} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _loop(self) -> None:
        while not self._stopped.is_set():
            for verb in _VERBS:
                self._run(verb)
                self._sample()
            self._stopped.wait(_REST_SECONDS)

    def _run(self, verb: str) -> None:
        shot_after = self.chance.uniform(0.4, 2.5) if self.chance.random() < _KILLED_SHARE else None
        scratch = ["--scratch", str(self.scratch)] if verb == "snapshot" else []
        process = subprocess.Popen(
            [*_command(verb), str(self.root), *_VERBS[verb], *scratch],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=shot_after or _VERB_SECONDS)
        except subprocess.TimeoutExpired:
            kill([one.id for one in in_session(process.pid)])
            said, _ = process.communicate()
            if shot_after is None:
                self.unexpected.append(f"{verb} did not end in {_VERB_SECONDS:.0f} s\n{said[-2000:]}")
            self.killed[verb] += 1
            return
        self.ended[verb] += 1
        if process.returncode == RootHeld.exit_code:
            # The holder is dead: break its lease, as an operator would.
            subprocess.run([*_command("lease"), str(self.root), "--break"], capture_output=True, check=True)
        elif process.returncode not in _QUIET_CODES:
            self.unexpected.append(f"{verb} ended with {process.returncode}\n{said[-3000:]}")

    def _sample(self) -> None:
        commits = self.root / names.COMMITS
        batches = [names.parse_batch(path.name) for path in commits.iterdir()] if commits.exists() else []
        sizes = []
        for path in (self.root / names.STATE).rglob("*"):
            try:
                if path.is_file():
                    sizes.append(path.stat().st_size)
            except FileNotFoundError:
                continue
        newest = max((batch for batch in batches if batch is not None), default=-1)
        self.samples.append(Sample(newest + 1, len(sizes), sum(sizes)))


def _command(verb: str) -> list[str]:
    return [sys.executable, "-c", "from statekeeper.statestore.cli import main; main()", verb]
