"""Starts processes, restarts those that die, and ends all of them together with their descendants.

It signals only its own processes: each child leads its own session, which its descendants inherit. If the launcher is
killed, the guardian ends them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from statekeeper.resources.launcher.guardian import Guardian, has_members
from statekeeper.statestore.base.clock import Clock

_POLL_SECONDS = 0.25
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_STEADY_SECONDS = 60.0

_LOG = logging.getLogger("statekeeper.children")


@dataclass(frozen=True)
class Command:
    """A process to start. `log` receives its output; its folder is created. It starts when the file `after` exists, or at
    once if `after` is None."""

    name: str
    arguments: Sequence[str]
    log: Path
    after: Path | None = None


@dataclass(kw_only=True)
class _Child:
    command: Command
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    failures: int = 0
    started_at_seconds: float = 0.0
    start_again_at_seconds: float = 0.0
    groups: set[int] = field(default_factory=set)
    """Process groups that this child led and that may have members: descendants that outlived their parent."""

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Children:
    """Processes that run within a `with` block. Its end stops them and their descendants, after `end_seconds` by SIGKILL.

    The caller must not ignore SIGINT: the children would inherit that and could only be killed. A handler is fine.
    """

    def __init__(
        self, commands: Sequence[Command], environment: Mapping[str, str], clock: Clock, *, end_seconds: float = 15.0
    ) -> None:
        self._children = [_Child(command=command) for command in commands]
        self._environment = dict(environment)
        self._clock = clock
        self._end_seconds = end_seconds
        self._guardian = Guardian()
        self._ending = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="children", daemon=True)

    def __enter__(self) -> Children:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.begin_to_end()
        self._end()

    def states(self) -> Mapping[str, str]:
        """The state of each process by name: waiting, up or down, with the number of restarts."""
        return {child.command.name: _state(child) for child in self._children}

    def process_ids(self) -> Mapping[str, int]:
        """The processes that are up, by name."""
        return {c.command.name: c.process.pid for c in self._children if c.process is not None and c.is_up}

    def begin_to_end(self) -> None:
        """Send SIGINT to all processes without waiting for their end. It starts no process afterwards."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._watcher.join()
        self._signal_all(signal.SIGINT)

    def _watch(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(OSError):
                self._guardian.start(self._groups())
            for child in self._children:
                self._care_for(child)
            self._ending.wait(_POLL_SECONDS)

    def _care_for(self, child: _Child) -> None:
        child.groups = {group for group in child.groups if has_members(group)}
        if child.is_up:
            return
        now = self._clock.monotonic_seconds()
        if child.process is not None:
            steady = now - child.started_at_seconds > _STEADY_SECONDS
            child.failures = 1 if steady else child.failures + 1
            pause = min(_FIRST_PAUSE_SECONDS * 2 ** (child.failures - 1), _LONGEST_PAUSE_SECONDS)
            child.start_again_at_seconds = now + pause
            child.process = None
        after = child.command.after
        if now >= child.start_again_at_seconds and (after is None or after.exists()):
            try:
                self._start(child, now)
            except OSError as error:
                # A full disk or a deleted folder must not end the watcher.
                _LOG.warning(
                    "%s cannot be started; next attempt in %.0f s: %s",
                    child.command.name,
                    _LONGEST_PAUSE_SECONDS,
                    error,
                )
                child.start_again_at_seconds = now + _LONGEST_PAUSE_SECONDS

    def _start(self, child: _Child, now: float) -> None:
        child.command.log.parent.mkdir(parents=True, exist_ok=True)
        with child.command.log.open("ab") as log:
            child.process = subprocess.Popen(  # noqa: S603 - the commands are constants
                self._guardian.announcing(child.command.arguments),
                stdin=self._guardian.start(self._groups()),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # Ctrl-C at the terminal must reach only the launcher, which then ends the children.
                start_new_session=True,
            )
        child.started_at_seconds = now
        child.starts += 1
        child.groups.add(child.process.pid)

    def _end(self) -> None:
        deadline = self._clock.monotonic_seconds() + self._end_seconds
        while self._clock.monotonic_seconds() < deadline and self._has_any():
            self._clock.sleep(_POLL_SECONDS)
        self._signal_all(signal.SIGKILL)
        for child in self._children:
            if child.process is not None:
                child.process.wait()
        self._guardian.close()

    def _groups(self) -> set[int]:
        return {group for child in self._children for group in child.groups}

    def _has_any(self) -> bool:
        for child in self._children:
            if child.process is not None:
                child.process.poll()  # a process that has ended stays in its group until it is waited for
        return any(has_members(group) for group in self._groups())

    def _signal_all(self, signal_number: signal.Signals) -> None:
        for group in self._groups():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal_number)


def _state(child: _Child) -> str:
    if child.starts == 0:
        return "waiting"
    again = f", restarts: {child.starts - 1}" if child.starts > 1 else ""
    return f"{'up' if child.is_up else 'down'}{again}"
