"""Starts an application with `spark-submit`, and ends it in order.

    this process -> spark-submit, a JVM -> Python, the driver -> the executors

Ctrl-C, or the end of a run of Dagster, must reach the driver alone: it cancels its Spark jobs, records what is finished,
and releases its lease. A signal to the JVM would end Spark before. So `spark-submit` has a session of its own, which no
terminal interrupts, and this process sends a SIGINT to the driver. After a second signal, or a minute, it ends all of them.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import UnsupportedEnvironment
from statekeeper.statestore.base.redaction import redacted

END_SECONDS = 60.0
"""Time that the driver has to end after the first signal."""

_KILL_SECONDS = 20.0
"""Time that its processes have to end after SIGTERM."""

_LOOK_SECONDS = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STARTED, _STDERR = "STATEKEEPER_STARTED_SPARK", "STATEKEEPER_STDERR"
_DRIVER_PYTHON, _PYTHON = "spark.pyspark.driver.python", "spark.pyspark.python"


def command_line(submit: Sequence[str], application: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts an application of Python. Pure, except that it finds the executable.

    `submit`: the words of `[spark]`. With `spark.pyspark.python`, which is a path on the executors, a driver here has the
    Python of this process.
    """
    words = [_found(submit[0]), *submit[1:]]
    if not has_cluster_driver(submit) and _has(submit, _PYTHON) and not _has(submit, _DRIVER_PYTHON):
        words += ["--conf", f"{_DRIVER_PYTHON}={sys.executable}"]
    return [*words, str(application), *arguments]


def _found(word: str) -> str:
    """The executable: that of the PATH, or of the environment of this Python."""
    return shutil.which(word) or shutil.which(word, path=str(Path(sys.executable).parent)) or word


def _has(submit: Sequence[str], setting: str) -> bool:
    return any(word.removeprefix("--conf=").partition("=")[0] == setting for word in submit)


def has_cluster_driver(submit: Sequence[str]) -> bool:
    """Whether the driver runs on the cluster."""
    words = " ".join(submit)
    return any(
        f"{option}cluster" in words for option in ("--deploy-mode ", "--deploy-mode=", "spark.submit.deployMode=")
    )


def may_start(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process may start Spark: the process that it starts must not do so again."""
    return _STARTED not in environment


def run(command: Sequence[str], application: Path) -> int:
    """Run a command of `command_line`. Returns its exit code. Call it in the main thread.

    Raises `UnsupportedEnvironment` if there is no such command.
    """
    _append_to_stderr()
    environment = {**os.environ, _STARTED: "1", _STDERR: f"/proc/{os.getpid()}/fd/2"}
    if not has_cluster_driver(command):
        environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    clock, asked, started = SystemClock(), list[float](), list[subprocess.Popen[bytes]]()

    def end(*_: Any) -> None:
        for process in started:
            drivers = list(_drivers(process.pid, application.name))
            for driver in () if asked else drivers:
                with suppress(psutil.Error):
                    driver.send_signal(signal.SIGINT)
            if asked or not drivers:
                _end_all(process)
        asked.append(clock.monotonic_seconds())

    with _handled(end):
        try:
            process = subprocess.Popen(command, env=environment, start_new_session=True)  # noqa: S603 - our configuration
        except OSError as error:
            raise UnsupportedEnvironment(
                f"{command[0]} cannot be started: {error.strerror}; nothing was changed",
                hint="correct `submit` of [spark] in statekeeper.toml, for example with the complete path of spark-submit",
            ) from error
        started.append(process)
        if asked:
            _end_all(process)
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_LOOK_SECONDS)
                return code if code >= 0 else 128 - code
            waited = clock.monotonic_seconds() - asked[0] if asked else 0.0
            if waited > END_SECONDS:
                # A JVM may hang while it ends.
                _end_all(process, signal.SIGKILL if waited > END_SECONDS + _KILL_SECONDS else signal.SIGTERM)


def _append_to_stderr() -> None:
    """If stderr is a file, let Spark and the driver append to it: each has a position of its own in the file."""
    if stat.S_ISREG(os.fstat(2).st_mode):
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)


def write_messages_to_stderr() -> None:
    """In a driver that `run` has started, write to the stderr of that process: `spark-submit` adds that of a driver to
    its stdout, which holds only the result. Where that is not possible, the messages stay there."""
    with suppress(OSError, KeyError):
        opened = os.open(os.environ[_STDERR], os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
        os.dup2(opened, 2)
        os.close(opened)


@contextmanager
def _handled(handler: Callable[..., None]) -> Iterator[None]:
    before = {one: signal.signal(one, handler) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, former in before.items():
            signal.signal(one, former)


def _drivers(pid: int, application: str) -> Iterator[psutil.Process]:
    """The Python process below `spark-submit` that runs the application; none if it runs on the cluster."""
    with suppress(psutil.Error):
        for one in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                words = one.cmdline()
                if len(words) > 1 and Path(words[1]).name == application:
                    yield one


def _end_all(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def shown(command: Sequence[str]) -> str:
    """Return a command that can be pasted, without secrets."""
    return redacted(shlex.join(command))


if __name__ == "__main__":
    # A run of Dagster starts this module, and sends it a SIGINT when it is terminated.
    sys.exit(run(sys.argv[2:], Path(sys.argv[1])))
