"""A standalone cluster of Spark on this machine, and the events of an application."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
}
"""Spark repeats a task on another host soon after the first ones have ended."""


@contextmanager
def two_hosts(folder: Path, port: int) -> Iterator[str]:
    """Start a cluster of two workers on two loopback addresses, because Spark repeats a slow task on another host only.
    Gives the URL of its master."""
    master = f"spark://127.0.0.1:{port}"
    spark_class = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    deploy = "org.apache.spark.deploy"
    worker = [f"{deploy}.worker.Worker", "--cores", "2", "--memory", "1g", "--webui-port", "0"]
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        *([*worker, "--host", host, "--work-dir", str(folder / host), master] for host in ("127.0.0.2", "127.0.0.3")),
    ]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    with (folder / "cluster.log").open("w") as log:
        started = [
            subprocess.Popen([*spark_class, *command], stdout=log, stderr=log, env=environment) for command in commands
        ]
        try:
            yield master
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(30)


@contextmanager
def executor_killed_when(is_time: Callable[[], bool]) -> Iterator[list[int]]:
    """Kill an executor of a cluster that this process starts, as soon as `is_time`. Gives the ids of killed processes."""
    killed, ended = list[int](), threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            if is_time():
                for one in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()):
                            one.kill()
                            killed.append(one.pid)
                            return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def event_log(folder: Path) -> Mapping[str, str]:
    """The settings with which Spark writes its events into a folder: see `events`."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": f"file://{folder}",
    }


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    """The events of Spark with this name, such as SparkListenerTaskEnd."""
    lines = [line for file in folder.iterdir() if file.is_file() for line in file.read_text().splitlines()]
    return [one for one in map(json.loads, lines) if one["Event"] == name]
