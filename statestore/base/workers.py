"""A thread pool for work on many stores. The engine and the network do most of the work, outside of Python.

The verb defines the work and its order.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from statekeeper.statestore.base.errors import LocalStateError, StatekeeperError

if TYPE_CHECKING:
    from loky.process_executor import ProcessPoolExecutor

WORKERS = os.cpu_count() or 1
"""Default number of threads: one per core."""

PROCESS_BYTES = 16 * 1024 * 1024
"""Default size of stores that several processes rewrite: the start of a process costs more than smaller ones."""

_LOOK_SECONDS = 0.1
"""Python handles a signal only in the main thread, between bytecodes. A wait without a timeout would delay Ctrl-C to the
end."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_pool(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    ended: Callable[[Item, Result | StatekeeperError], None],
    *,
    workers: int = WORKERS,
    interrupt: Callable[[], None] = lambda: None,
) -> None:
    """Run `work` for each item, starting in order. Call `ended` after each item, from one thread at a time.

    An item that fails with a `StatekeeperError` does not stop the others; `ended` gets the error. After `KeyboardInterrupt`
    or another exception of `work`, no new item starts, the running items finish and are reported, and the exception is
    raised again. `interrupt` is called before, to end the running items.
    """
    to_do = iter(items)
    stopped = Event()
    telling = Lock()

    def work_off() -> None:
        try:
            for item in to_do:
                if stopped.is_set():
                    break
                outcome = _outcome(work, item)
                with telling:
                    ended(item, outcome)
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(workers) as pool:
        try:
            runs = [pool.submit(work_off) for _ in range(workers)]
            while wait(runs, timeout=_LOOK_SECONDS).not_done:
                pass
            for run in runs:
                run.result()
        except BaseException:
            stopped.set()
            interrupt()
            raise


def results_in_pool(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int = WORKERS,
    interrupt: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Run `work` for each item as `in_pool`. Return the results in the order of the items. If an item fails, the others are
    completed, and the first error is raised."""
    results: dict[int, Result] = {}
    failed: list[StatekeeperError] = []

    def ended(number: int, outcome: Result | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
        else:
            results[number] = outcome

    if items:
        most = max(1, min(workers, len(items)))
        in_pool(lambda number: work(items[number]), range(len(items)), ended, workers=most, interrupt=interrupt)
    if failed:
        raise failed[0]
    return [results[number] for number in range(len(items))]


def _outcome(work: Callable[[Item], Result], item: Item) -> Result | StatekeeperError:
    try:
        return work(item)
    except StatekeeperError as error:
        return error


Arguments = ParamSpec("Arguments")

_LOOK_SECONDS_OF_PROCESSES = 1.0
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
        """Return the result of a call. Raises what `function` raises; `LocalStateError` if its process ends before."""
        if self._pool is None:
            return function(*arguments, **named)
        from loky.process_executor import BrokenProcessPool, TerminatedWorkerError

        try:
            result: Result = self._pool.submit(function, *arguments, **named).result()
        except TerminatedWorkerError as error:
            raise LocalStateError(
                "a process of this run was killed",
                hint="if the memory is full, free some, or run this command again with fewer --workers",
            ) from error
        except BrokenProcessPool as error:
            raise LocalStateError(f"a process of this run failed: {error}", hint="run this command again") from error
        return result

    def end(self) -> None:
        """End the processes at once. Running calls raise `LocalStateError`."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, kill_workers=True)


@contextmanager
def callers(workers: int) -> Iterator[Caller]:
    """Start `workers` processes, and end them after the block; none if `workers` is 1, or if they cannot start here."""
    from multiprocessing import current_process

    # A daemonic process of Python cannot have children.
    pool = None if workers < 2 or current_process().daemon else _started(workers)
    if pool is None:
        yield Caller()
        return
    with _interrupted_once():
        try:
            yield Caller(workers, pool)
        except BaseException:
            pool.shutdown(wait=True, kill_workers=True)
            raise
        pool.shutdown()


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Let only the first Ctrl-C raise. A second one would interrupt the end of the processes, and they would stay."""
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(before):
        yield
        return
    raised = False

    def first_only(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            before(number, frame)
            raised = False

    signal.signal(signal.SIGINT, first_only)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _started(workers: int) -> ProcessPoolExecutor | None:
    # Most runs need no processes. Unlike the pools of the standard library, this one does not run the main module of the
    # program again, which may be a script without a guard.
    from loky.process_executor import ProcessPoolExecutor

    try:
        # This starts the process that tracks the semaphores of the others. Its start unblocks the signal in this thread.
        pool = ProcessPoolExecutor(workers, initializer=_begin, initargs=(os.getpid(),))
    except OSError:
        # Without shared memory, the machine has no semaphores.
        return None
    # Ctrl-C reaches all processes, but the first one ends the others. They inherit the blocked signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool.submit(os.getpid)
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pool


def _begin(first: int) -> None:
    """Prepare a new process, which the process with the id `first` has started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(first,), daemon=True).start()


def _end_with(first: int) -> None:
    while os.getppid() == first:
        Event().wait(_LOOK_SECONDS_OF_PROCESSES)
    os._exit(1)
