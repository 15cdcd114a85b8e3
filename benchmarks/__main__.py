"""`python -m benchmarks [NAME ...]`: run all benchmarks or those named, and print their tables."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import Table, machine

QUESTIONS: Mapping[str, str] = {
    "restart": "How long is a restart?",
    "maintenance_cost": "What does maintenance cost?",
    "fleet": "What does the maintenance of a fleet cost?",
    "dagster_runs": "What does a Dagster run over many queries cost?",
    "warm_snapshots": "What does a maintenance pass read again?",
    "bucket_reads": "What does a request to a bucket cost?",
    "commit_cost": "What does a commit cost as the state grows?",
    "operator_rows": "How many rows per second does a stateful operator process?",
    "delta_output": "How long is a batch with a Delta sink?",
    "many_partitions": "What do many partitions cost?",
    "batch_requests": "How many requests does a batch send?",
    "cold_host": "How long is the start of a host without local state?",
    "early_upload": "How long is a commit with many changes?",
    "timed_rows": "How fast are windows, timers and a TTL?",
    "expiry_cost": "What do timers and expiring state cost?",
    "idle_ticks": "What does a tick cost if nothing is due?",
    "tail_latency": "How much do slow requests delay a batch?",
    "snapshot_cost": "How long do a snapshot and a load take?",
    "maintenance_requests": "How many requests do audit and retention send?",
    "growth": "Does maintenance need more memory as a query grows?",
    "passes": "Does a process that stays need more memory with time?",
    "growth_of_jobs": "Does a job need more memory and requests as it grows?",
    "switchover": "How long is a switchover?",
    "rescale": "How long is a rescale?",
    "convert": "How long is a conversion to RocksDB?",
    "copies": "How long is a clone, and what does a mirror copy?",
    "savepoint_rows": "How long is a savepoint with rows, and does it need more memory for more rows?",
    "load_rows": "How long is the load of a savepoint, and does it need more memory for more rows?",
    "initial_rows": "How long is the first batch of a job that starts from a table?",
    "startup": "How much CPU does a short command take?",
    "first_minutes": "How long until Dagster shows the first results?",
    "pandas_frames": "What do the dtypes of pandas frames cost?",
    "key_layout": "Which layout of the key group is faster?",
}
"""The user's question that each benchmark answers, in the order of the page."""
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
_HEAD = """# Benchmarks

`python -m benchmarks --write` writes this page. Each benchmark runs Statekeeper and its peer on the same input in one run,
in alternating rounds. Compare ratios: milliseconds and rows per second depend on the machine and its load. Quartiles are in
brackets.
"""
_HEADING = re.compile(r"^## (?:.*)\{ #(\w+) \}\n", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = ", ".join(f"{name} ({question})" for name, question in QUESTIONS.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {names}")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: 5)")
    parser.add_argument("--large", action="store_true", help="also run the largest sizes; takes many minutes")
    parser.add_argument("--write", action="store_true", help=f"write the new sections to {DOCUMENT.name}")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(QUESTIONS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    sections = _sections(DOCUMENT.read_text()) if options.write and DOCUMENT.exists() else {}
    for name in options.names or QUESTIONS:
        tables: list[Table] = importlib.import_module(f"benchmarks.{name}").run(options)
        where = machine()
        for table in tables:
            print(table.as_text())
        print(f"  on {where}\n", flush=True)
        body = "\n".join(table.as_markdown() for table in tables)
        sections[name] = f"{body}\nMachine: {where}.\n"
        if options.write:
            DOCUMENT.parent.mkdir(exist_ok=True)
            DOCUMENT.write_text(_page(sections))


def _page(sections: Mapping[str, str]) -> str:
    known = [f"## {QUESTIONS[name]} {{ #{name} }}\n\n{sections[name]}" for name in QUESTIONS if name in sections]
    return "\n".join([_HEAD, *known])


def _sections(text: str) -> dict[str, str]:
    """Return the sections of the page by name, so that a run of some benchmarks keeps the others."""
    parts = _HEADING.split(text)
    return {name: body.lstrip("\n").rstrip("\n") + "\n" for name, body in zip(parts[1::2], parts[2::2], strict=True)}


if __name__ == "__main__":
    main()
