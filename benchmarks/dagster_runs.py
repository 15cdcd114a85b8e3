"""CPU of one Dagster run over many queries, beside a run over one query. Each run is a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Spread, Table, ratio
from statekeeper.assets.maintenance import MAINTAIN_QUERIES
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint, copy_files

QUERIES = 25
_BATCHES = 4


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        folder = Path(name)
        names = _fleet(folder)
        _cpu_seconds(folder, names)  # the first visits, and the bytecode
        many, one = list[list[float]](), list[list[float]]()
        for _ in range(options.rounds):
            many.append([_cpu_seconds(folder, names)])
            one.append([_cpu_seconds(folder, names[:1])])
    shares = Spread.of([QUERIES * of_one[0] / of_many[0] for of_one, of_many in zip(one, many, strict=True)])
    return [
        Table(
            title=f"CPU of a run of {MAINTAIN_QUERIES} over idle queries",
            columns=["run", "CPU seconds"],
            rows=[
                ["over one query", Spread.of([value for (value,) in one]).shown(1)],
                [f"over {QUERIES} queries", Spread.of([value for (value,) in many]).shown(1)],
            ],
            targets=[
                f"One run over {QUERIES} queries costs {ratio(many, one).shown(1, 'x')} the CPU of a run over one query. "
                f"{QUERIES} runs would cost {shares.shown(1, 'x')} of it."
            ],
            notes=[
                f"Job roots with two stores and {_BATCHES} batches on local disk, without new batches. {options.rounds} "
                "rounds of `dagster job execute`. User and system time of the process with its children.",
            ],
        )
    ]


def _fleet(folder: Path) -> list[str]:
    names = [f"query_{number:02}" for number in range(QUERIES)]
    first = Checkpoint(open_storage(str(folder / names[0])), folder / "job")
    first.grow(_BATCHES)
    for name in names[1:]:
        copy_files(first.storage, open_storage(str(folder / name)))
    (folder / "statekeeper.toml").write_text("".join(f'[roots.{name}]\nurl = "{name}"\n' for name in names))
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    return names


def _cpu_seconds(folder: Path, queries: list[str]) -> float:
    config = folder / "run.json"
    config.write_text(json.dumps({"ops": {"visit_queries": {"config": {"queries": queries}}}}))
    command = [sys.executable, "-m", "dagster", "job", "execute", "-m", "statekeeper.assets.definitions"]
    environment = {"DAGSTER_HOME": str(folder / "home"), "STATEKEEPER_CONFIG": str(folder / "statekeeper.toml")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "-j", MAINTAIN_QUERIES, "-c", str(config)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or "RUN_SUCCESS" not in done.stderr + done.stdout:
        raise RuntimeError(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
