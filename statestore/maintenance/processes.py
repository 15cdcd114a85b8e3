"""Processes for work on local files that keeps Python busy: Python code of one process uses one core.

    with callers(2) as call:            two processes, or none: then `call` is a plain call
        call(function, *arguments)      from a thread of `pool`, which waits for the result

Function, arguments and result are pickled, so work that needs the storage stays in this process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from statestore.errors import LocalStateError

if TYPE_CHECKING:
    from loky.process_executor import ProcessPoolExecutor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_LOOK_SECONDS = 1.0
"""Each process looks so often whether the first one is alive. Its sudden death must not leave processes behind."""


@dataclass(frozen=True)
class Caller:
    """Calls functions, `workers` at a time. Without `_pool`, in the thread that calls."""

    workers: int = 1
    _pool: ProcessPoolExecutor | None = None

    @property
    def is_here(self) -> bool:
        """Whether a function runs in this process, with the caller's own objects."""
        return self._pool is None

    def __call__(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Return the result of a call. Raises what `function` raises; `LocalStateError` if its process was killed."""
        if self._pool is None:
            return function(*arguments, **named)
        from loky.process_executor import BrokenProcessPool

        try:
            result: Result = self._pool.submit(function, *arguments, **named).result()
        except BrokenProcessPool as error:
            raise LocalStateError(
                f"a process of this run was killed ({str(error).splitlines()[0]})",
                hint="if the memory is full, free some, or allow less with --memory; then run this command again",
            ) from error
        return result


@contextmanager
def callers(workers: int) -> Iterator[Caller]:
    """Start `workers` processes, and end them after the block; none if `workers` is 1."""
    if workers < 2:
        yield Caller()
        return
    # Most runs need no processes. Unlike the pools of the standard library, this one does not run the main module of the
    # program again, which may be a script without a guard.
    from loky.process_executor import ProcessPoolExecutor

    with ProcessPoolExecutor(workers, initializer=_begin, initargs=(os.getpid(),)) as pool:
        yield Caller(workers, pool)


def _begin(first: int) -> None:
    """Prepare a new process, which the process with the id `first` has started."""
    # Ctrl-C reaches all processes. The first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(first,), daemon=True).start()


def _end_with(first: int) -> None:
    while os.getppid() == first:
        Event().wait(_LOOK_SECONDS)
    os._exit(1)
