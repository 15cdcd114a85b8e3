"""CPU of short commands, each in a process of its own, beside an empty process and the import of Arrow."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import Spread, Table, ratio, verdict
from benchmarks.state_roots import StateRoot, changes

STORES = 4
BATCHES = 5
_KEYS = 20
_LEAST_ROUNDS = 5
_FREE_SECONDS = 0.15
_LOOK_SECONDS = 0.5


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    rounds = max(options.rounds, _LEAST_ROUNDS)
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as folder:
        root = StateRoot(Path(folder) / "root", STORES)
        random = np.random.default_rng(1)
        for _ in range(BATCHES):
            root.commit([changes(random, np.arange(_KEYS)) for _ in range(STORES)])
        command = [sys.executable, "-m", "statekeeper"]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import pyarrow": [sys.executable, "-c", "import pyarrow"],
            "statekeeper --version": [*command, "--version"],
            "statekeeper --help": [*command, "--help"],
            "statekeeper inspect": [*command, "inspect", str(root.folder)],
            "statekeeper audit": [*command, "audit", str(root.folder)],
            "statekeeper snapshot --dry-run": [*command, "snapshot", str(root.folder), "--dry-run"],
            "statekeeper gc": [*command, "gc", str(root.folder)],
        }
        for arguments in commands.values():
            _cpu_seconds(arguments)  # writes the bytecode
        samples: dict[str, list[list[float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, arguments in commands.items():
                samples[name].append([_cpu_seconds(arguments)])
    return [_table(samples, rounds)]


def _cpu_seconds(arguments: Sequence[str]) -> float:
    """Run a program, and return its CPU seconds: user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(arguments, capture_output=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _table(samples: dict[str, list[list[float]]], rounds: int) -> Table:
    empty, arrow = samples["python -c pass"], samples["import pyarrow"]
    spread = {name: Spread.of([value for of_round in values for value in of_round]) for name, values in samples.items()}
    limits = {
        "statekeeper --version": _FREE_SECONDS,
        "statekeeper --help": _FREE_SECONDS,
        "statekeeper inspect": _LOOK_SECONDS,
        "statekeeper audit": _LOOK_SECONDS,
        "statekeeper snapshot --dry-run": _LOOK_SECONDS,
        "statekeeper gc": _LOOK_SECONDS,
    }
    return Table(
        title=f"CPU of one process, state root with {STORES} stores and {BATCHES} batches on local disk",
        columns=["process", "CPU seconds", "times `python -c pass`", "times `import pyarrow`"],
        rows=[
            [name, spread[name].shown(2), ratio(values, empty).shown(1, "x"), ratio(values, arrow).shown(2, "x")]
            for name, values in samples.items()
        ],
        targets=[verdict(f"CPU of {name}", spread[name], at_most=limit, unit=" s") for name, limit in limits.items()],
        notes=[
            "User and system time of the process, with its bytecode in place. A verb and its libraries are imported when "
            "the verb runs.",
            f"{rounds} alternating rounds.",
        ],
    )
