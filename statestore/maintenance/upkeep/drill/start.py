"""Starts a query on a clone, by a command of the user, and waits until it commits."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import WrongOption
from statekeeper.statestore.base.redaction import redacted

CHECKPOINT = "{checkpoint}"
"""The place of the clone in the command."""

VARIABLE = "STATEKEEPER_DRILL"
"""Set to 1 in the environment of the command. The query can look at it to write nowhere."""

_LOOK_SECONDS = 0.5
_END_SECONDS = 30.0
"""The time that a query has to end after SIGTERM."""
_LAST_LINES = 20
_MOST_LOG_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What the started query did.

    batch      its newest committed batch; None if it committed none
    seconds    from its start to the commit of the wanted batch, or to its end
    exit_code  of the command; None if it was still running
    lines      the last lines that it printed
    """

    batch: int | None
    seconds: float
    exit_code: int | None
    lines: tuple[str, ...] = ()


def start(
    command: Sequence[str],
    *,
    newest: Callable[[], int | None],
    wanted: int,
    most_seconds: float,
    log: Path,
    clock: Clock,
) -> Ran:
    """Run the command until `newest` returns at least the batch `wanted`, the command ends, or the time is over. Then end
    the command and all processes of its group.

    `log`: a file for what it prints. Raises `WrongOption` if the command cannot be started.
    """
    started = clock.monotonic_seconds()
    with log.open("wb") as output, _raised_signals():
        try:
            process = subprocess.Popen(  # noqa: S603 - the command is the user's
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, VARIABLE: "1"},
                start_new_session=True,
            )
        except OSError as error:
            raise WrongOption(
                f"the command of --start cannot be started: {error}",
                hint="give the complete command, for example --start 'spark-submit orders.py --checkpoint {checkpoint}'",
            ) from error
        try:
            while True:
                # Race: it commits and ends. Its end is seen before its commits are read.
                exit_code = process.poll()
                batch = newest()
                seconds = clock.monotonic_seconds() - started
                if exit_code is not None or seconds >= most_seconds or (batch is not None and batch >= wanted):
                    return Ran(batch=batch, seconds=seconds, exit_code=exit_code, lines=_last_lines(log))
                clock.sleep(_LOOK_SECONDS)
        finally:
            _end(process)


@contextmanager
def _raised_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does: the query has a session of its own, and would stay."""
    if current_thread() is not main_thread():
        yield
        return

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {one: signal.signal(one, interrupt) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, former in before.items():
            signal.signal(one, former)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command, and the processes that it has started: the query must not write into a clone that is deleted."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_lines(log: Path) -> tuple[str, ...]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _MOST_LOG_BYTES))
        text = file.read().decode(errors="replace")
    return tuple(redacted(line) for line in text.splitlines()[-_LAST_LINES:])
