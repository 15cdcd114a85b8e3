"""Runs tasks on a Spark cluster that the user has. Spark schedules, retries and speculates; nothing here does.

    driver    one Spark job for all items, in a thread; this thread takes the outcomes as the tasks of Spark end
    executor  a Python worker opens the storages again, runs the task for each item, and sends the outcomes

Outcomes come through an accumulator: Spark adds each task of an action exactly once, also if a task runs twice, and before
the job ends or fails. So the verb reports progress while the job runs, and keeps the outcomes of all tasks that ended
before a failure.

Spark imports are in the functions: only `--executor spark` needs PySpark.
"""

from __future__ import annotations

import os
import pickle
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError, TaskLost, UnsupportedEnvironment
from statekeeper.statestore.base.extras import how_to_install, missing
from statekeeper.statestore.base.garbage import freeze_modules
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.maintenance.executors.base import Place, Task
from statekeeper.statestore.storage import RequestCounts

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

Item = TypeVar("Item")
Result = TypeVar("Result")

TASKS_PER_SLOT = 64
"""More tasks cost the driver time, and fewer leave hosts idle at the end. A task of Spark has several items above this."""

_MOST_ROUNDS_WITHOUT = 3
"""Jobs one after another that fail without an outcome: the cluster, and not an item, is the problem."""

_LOOK_SECONDS = 0.1
"""Python handles Ctrl-C only between bytecodes of the main thread."""

_CANCEL_SECONDS = 1.0

_GUIDE = "see docs/how-to/run-on-a-spark-cluster.md"
_LOST_TASK = re.compile(r"Task (?P<partition>\d+) in stage \S+ failed \d+ times")
_NO_MODULE = re.compile(r"No module named '(?P<name>[^']+)'")
_LONGEST_REASON = 300


@dataclass(frozen=True)
class _Defect:
    """An exception of a task that is no `StatekeeperError`, as text."""

    text: str


@dataclass(frozen=True)
class _Sent:
    """What a Python worker sends for an item: its outcome, and the requests of the task's storages."""

    number: int
    outcome: Any
    requests: tuple[RequestCounts, ...]


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What a task of Spark runs for its items. The accumulator has pickled `_Sent`."""

    task: Task[Any, Any]
    outcomes: Accumulator[list[bytes]]
    scratch: str | None
    memory_bytes: int

    def __call__(self, items: Iterator[tuple[int, Any]]) -> None:
        place = Place(
            scratch=_scratch_here(self.scratch),
            clock=SystemClock(),
            ids=RandomIds(),
            at_a_time=1,
            memory_bytes=self.memory_bytes,
        )
        for number, item in items:
            before = [one.requests.snapshot() for one in self.task.storages]
            outcome = _outcome(self.task, item, place)
            pairs = zip(self.task.storages, before, strict=True)
            requests = tuple(storage.requests.since(earlier) for storage, earlier in pairs)
            self.outcomes.add([pickle.dumps(_Sent(number, outcome, requests))])


def _outcome(task: Task[Any, Any], item: Any, place: Place) -> Any:
    try:
        return task(item, place)
    except StatekeeperError as error:
        return error
    except MemoryError:
        return TaskLost(
            "a task had too little memory",
            hint="run this command again with a larger --memory, and give the executors more, for example "
            "spark.executor.memoryOverhead",
        )
    except Exception:  # noqa: BLE001 - it is raised in the driver; Spark would run the task again
        return _Defect(traceback.format_exc())


def _scratch_here(given: str | None) -> Path:
    """The folder for temporary files on this host: by default in a local directory of the executor, which the cluster
    manager limits, and deletes with the container."""
    if given is not None:
        return Path(given)
    from pyspark import TaskContext

    folders = [one for one in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if one]
    context = TaskContext.get()
    base = folders[(context.partitionId() if context else 0) % len(folders)] if folders else tempfile.gettempdir()
    return Path(base) / "statekeeper"


@dataclass(frozen=True, kw_only=True)
class SparkExecutor:
    """Runs each task in a Python worker of the cluster of this process's Spark session.

    memory_bytes  of each task of Spark, with its Python worker
    scratch       a folder on each host; None for a local directory of the executor
    """

    memory_bytes: int
    scratch: str | None = None

    @cached_property
    def context(self) -> SparkContext:
        """The Spark context: that of the active session, or of a new one with the settings of `spark-submit`."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.appName("statekeeper").getOrCreate().sparkContext

    @property
    def is_here(self) -> bool:
        return False

    def map(
        self, task: Task[Item, Result], items: Sequence[Item], ended: Callable[[Item, Result | StatekeeperError], None]
    ) -> None:
        """See `Executor`. If Spark gives up the task of an item, the outcome of the item is `TaskLost`. Raises
        `UnsupportedEnvironment` if the cluster cannot run Statekeeper; then no item was started."""
        if not items:
            return
        self.require_ready()
        left = dict(enumerate(items))

        def told(sent: _Sent) -> None:
            item = left.pop(sent.number)
            for storage, counts in zip(task.storages, sent.requests, strict=True):
                storage.requests.add(counts)
            if isinstance(sent.outcome, _Defect):
                raise RuntimeError(f"a task on an executor failed; this is a defect:\n{sent.outcome.text}")
            ended(item, sent.outcome)

        slices = min(len(items), TASKS_PER_SLOT * self.context.defaultParallelism)
        rounds_without = 0
        while left:
            before = dict(left)
            numbers = [list(before)[first::slices] for first in range(slices)]
            error = self._job(task, [[(one, before[one]) for one in some] for some in numbers], told)
            if error is None:
                # Spark only logs an update of an accumulator that fails.
                for number in list(left):
                    ended(left.pop(number), _lost("its outcome did not arrive"))
                break
            reason = _reason(error)
            rounds_without = 0 if len(left) < len(before) else rounds_without + 1
            if rounds_without >= _MOST_ROUNDS_WITHOUT:
                for number in list(left):
                    ended(left.pop(number), _lost(reason))
                break
            lost = _LOST_TASK.search(str(error))
            blamed = [one for one in numbers[int(lost["partition"])] if one in left] if lost else list(left)
            if lost is None or len(numbers[int(lost["partition"])]) == 1:
                for number in blamed:
                    ended(left.pop(number), _lost(reason))
            slices = len(left)  # one item in each task: so the next failure names its item

    def _job(
        self, task: Task[Any, Any], slices: Sequence[Sequence[tuple[int, Any]]], told: Callable[[_Sent], None]
    ) -> Exception | None:
        """Run a job, and tell its outcomes from this thread. Return its failure."""
        from pyspark import InheritableThread

        sent: SimpleQueue[bytes] = SimpleQueue()
        outcomes = self.context.accumulator([], _Told.of(sent.put))
        work = _Work(task=task, outcomes=outcomes, scratch=self.scratch, memory_bytes=self.memory_bytes)
        group, errors = RandomIds().fresh(), list[Exception]()
        name = f"statekeeper: {type(task).__name__.strip('_')}, {counted(sum(map(len, slices)), 'item')}"

        def run() -> None:
            try:
                self.context.setJobGroup(group, name, interruptOnCancel=False)
                self.context.parallelize(slices, len(slices)).foreachPartition(partial(_each, work))
            except Exception as error:  # noqa: BLE001 - py4j raises errors of many kinds; `map` judges them
                errors.append(error)

        thread = InheritableThread(target=run, daemon=True)
        thread.start()
        try:
            while thread.is_alive() or not sent.empty():
                with suppress(Empty):
                    told(pickle.loads(sent.get(timeout=_LOOK_SECONDS)))  # noqa: S301 - from our own task
        except BaseException:
            while thread.is_alive():
                # Spark may be gone, too: then its jobs are, and the first exception is the one to raise. The job may not be
                # submitted yet: then the next call cancels it.
                with suppress(Exception):
                    self.context.cancelJobGroup(group)
                thread.join(_CANCEL_SECONDS)
            raise
        finally:
            _forget(outcomes)
        return errors[0] if errors else None

    def require_ready(self) -> None:
        """Require that the Python workers have this release of Statekeeper, once in each verb."""
        _ = self._same_release

    @cached_property
    def _same_release(self) -> Release:
        """The release of Statekeeper and of Python here and in the Python workers. One task, which does not need it."""
        here = _release()
        try:
            there = self.context.parallelize([0], 1).map(_asks_release()).first()
        except Exception as error:
            raise UnsupportedEnvironment(
                f"the executors cannot run Python: {_reason(error)}; nothing was changed",
                hint=f"give each executor this Python and Statekeeper, {_GUIDE}",
            ) from error
        if there is None:
            raise UnsupportedEnvironment(
                "the executors have no Statekeeper, or not its libraries; nothing was changed",
                hint=f"send it to the executors, for example with --archives, {_GUIDE}",
            )
        if there != here:
            raise UnsupportedEnvironment(
                f"the executors have {_in_words(there)}, and this process has {_in_words(here)}; nothing was changed",
                hint=f"give the executors the same environment, {_GUIDE}",
            )
        return here


def _each(work: _Work, slices: Iterator[Sequence[tuple[int, Any]]]) -> None:
    for items in slices:
        work(iter(items))
    freeze_modules()


Release: TypeAlias = Mapping[str, str]
"""The version of Python, and of each library on which the bytes of new files depend."""

_LIBRARIES = ("statekeeper", "pyarrow", "rocksdict")


def _release() -> Release:
    from importlib.metadata import version

    return {"python": ".".join(platform.python_version_tuple()[:2]), **{name: version(name) for name in _LIBRARIES}}


def _in_words(release: Release) -> str:
    return ", ".join(f"{name} {version}" for name, version in release.items())


def _asks_release() -> Callable[[int], Release | None]:
    """A function that cloudpickle sends by value: the workers may lack Statekeeper."""
    libraries = _LIBRARIES

    def asks(_: int) -> Release | None:
        import importlib.metadata
        import importlib.util
        import platform as there

        if any(importlib.util.find_spec(name) is None for name in libraries):
            return None
        found = {name: importlib.metadata.version(name) for name in libraries}
        return {"python": ".".join(there.python_version_tuple()[:2]), **found}

    return asks


class _Told:
    """Hands each outcome to the driver as its task ends. In a task, it collects them."""

    def __init__(self, put: Callable[[bytes], None] | None = None) -> None:
        self._put = put

    @classmethod
    def of(cls, put: Callable[[bytes], None]) -> Any:
        return cls(put)

    def zero(self, _: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, before: list[bytes], added: list[bytes]) -> list[bytes]:  # noqa: N802 - PySpark's name
        if self._put is None:
            return before + added
        for one in added:
            self._put(one)
        return []

    def __reduce__(self) -> tuple[object, ...]:
        return (_Told, ())


def _forget(outcomes: Accumulator[Any]) -> None:
    """PySpark keeps each accumulator until the driver ends."""
    from pyspark import accumulators

    accumulators._accumulatorRegistry.pop(outcomes.aid, None)  # noqa: SLF001


def _reason(error: Exception) -> str:
    """The first line of Spark's message that says something."""
    found = _NO_MODULE.search(str(error))
    if found:
        return f"no module named {found['name']}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = next((line for line in lines if "Exception" in line or "Error" in line), lines[0] if lines else "")
    return (telling or type(error).__name__)[:_LONGEST_REASON]


def _lost(reason: str) -> TaskLost:
    return TaskLost(
        f"Spark gave up this task: {reason}",
        hint="run this command again: finished stores are kept. If an executor ran out of memory, give it more, for "
        "example spark.executor.memoryOverhead",
    )


def has_session() -> bool:
    """Whether this process has a classic Spark session, or `spark-submit` has started it."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    # Not imported here: without PySpark in this process, there is no session.
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None  # noqa: SLF001


def is_connect() -> bool:
    """Whether the environment makes PySpark use Spark Connect."""
    return bool(os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"))


def connect(*, memory_bytes: int, scratch: str | None = None) -> SparkExecutor:
    """Use the Spark session of this process: that of `spark-submit`, or the active one. It starts with the first task.

    Raises `UnsupportedEnvironment` if there is none, or for Spark Connect.
    """
    if (package := missing("pyspark")) is not None:
        raise UnsupportedEnvironment(
            f"--executor spark needs the package {package}, which is not installed; nothing was changed",
            hint=f"run: {how_to_install('spark')}, or start this command with spark-submit, {_GUIDE}",
        )
    if is_connect():
        raise UnsupportedEnvironment(
            "--executor spark needs a classic Spark session; Spark Connect has no access to executors; nothing was changed",
            hint=f"start this command with spark-submit, {_GUIDE}",
        )
    if not has_session():
        raise UnsupportedEnvironment(
            "--executor spark needs a Spark session, and this process has none; nothing was changed",
            hint=f"start this command with spark-submit, {_GUIDE}",
        )
    return SparkExecutor(memory_bytes=memory_bytes, scratch=scratch)
