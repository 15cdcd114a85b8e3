"""`python -m benchmarks [NAME ...]`: run all benchmarks or those named, and print their tables."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import OtherWork, Table, machine


class Section(NamedTuple):
    """A section of the page. `gain`: what a user has from a good result."""

    question: str
    gain: str


SECTIONS: Mapping[str, Section] = {
    "restart": Section(
        "How long is a restart?",
        "A query that restarts after a snapshot commits again in less than a second instead of several.",
    ),
    "maintenance_cost": Section(
        "What does maintenance cost?",
        "The executors keep their CPU for the query. Statekeeper spends its CPU where you can limit it.",
    ),
    "fleet": Section(
        "What does the maintenance of a fleet cost?",
        "One small machine maintains a fleet. The table tells how many queries it can maintain.",
    ),
    "dagster_runs": Section(
        "What does a Dagster run over many queries cost?",
        "A fleet of idle queries costs a run or two an hour, not one for each query.",
    ),
    "warm_snapshots": Section(
        "What does a maintenance pass read again?",
        "A maintenance process that stays reads the changes, not the state: traffic depends on the batches only.",
    ),
    "bucket_reads": Section(
        "What does a request to a bucket cost?",
        "The cost of requests limits how many stores one machine maintains.",
    ),
    "commit_cost": Section(
        "What does a commit cost as the state grows?",
        "The time of a batch stays the same while the state grows.",
    ),
    "operator_rows": Section(
        "How many rows per second does a stateful operator process?",
        "A stateful operator in Python needs fewer cores than with Spark's own Python APIs.",
    ),
    "delta_output": Section(
        "How long is a batch with a Delta sink?",
        "A job with a Delta sink processes its backlog faster, or with fewer cores.",
    ),
    "many_partitions": Section(
        "What do many partitions cost?",
        "A job can start with more partitions than it needs today, and grow without a `rescale`.",
    ),
    "defaults": Section(
        "Which settings are the defaults of a job, and why?",
        "A job that names none of these settings is near the fastest setting for small and for large batches.",
    ),
    "batch_requests": Section(
        "How many requests does a batch send?",
        "The price of a job's requests does not depend on its partitions.",
    ),
    "cold_host": Section(
        "How long is the start of a host without local state?",
        "The time until a new or replaced executor processes rows again.",
    ),
    "early_upload": Section(
        "How long is a commit with many changes?",
        "A batch with many changes ends earlier, because its upload starts before its last row.",
    ),
    "timed_rows": Section(
        "How fast are the ready-made operators, timers and a TTL?",
        "Operators in Python near the speed of the JVM's, and timers far above that of Spark's Python API.",
    ),
    "expiry_cost": Section(
        "What do timers and expiring state cost?",
        "State that expires, or waits for a timer, does not slow down the batches that do not touch it.",
    ),
    "idle_ticks": Section(
        "What does a tick cost if nothing is due?",
        "A short tick costs little while no timer is due.",
    ),
    "tail_latency": Section(
        "How much do slow requests delay a batch?",
        "One slow request to the object store does not delay the whole batch.",
    ),
    "snapshot_cost": Section(
        "How long do a snapshot and a load take?",
        "The time of a compaction, and of each restore.",
    ),
    "maintenance_requests": Section(
        "How many requests do audit and retention send?",
        "The price of maintenance grows with the changes, not with the files that a checkpoint holds.",
    ),
    "growth": Section(
        "Does maintenance need more memory as a query grows?",
        "A maintenance process needs no more memory after a year than after a day.",
    ),
    "passes": Section(
        "Does a process that stays need more memory with time?",
        "A maintenance process can run for months.",
    ),
    "growth_of_jobs": Section(
        "Does a job need more memory and requests as it grows?",
        "A job can run for months.",
    ),
    "switchover": Section(
        "How long is a switchover?",
        "The time that a query is stopped for its move from structure V1 to V2.",
    ),
    "rescale": Section(
        "How long is a rescale?",
        "The time that a query is stopped for another number of partitions.",
    ),
    "convert": Section(
        "How long is a conversion to RocksDB?",
        "The time that a query is stopped for its move from Spark's default provider to RocksDB.",
    ),
    "copies": Section(
        "How long is a clone, and what does a mirror copy?",
        "A copy of a large checkpoint to test with, and a standby that lags little.",
    ),
    "savepoint_rows": Section(
        "How long is a savepoint with rows, and does it need more memory for more rows?",
        "State can be exported as Parquet files on a machine with little memory.",
    ),
    "migrate": Section(
        "Is the migration of a state faster than reading the input again?",
        "A changed query continues after minutes, also if its input is long or no longer exists.",
    ),
    "executors": Section(
        "What does a verb on Spark cost?",
        "A cluster that you already have maintains terabytes in minutes. The table says what Spark itself costs.",
    ),
    "publish": Section(
        "How long is a run that publishes few changes of a large state?",
        "A table of the state follows the query each minute, and the cost of a run depends on the changes.",
    ),
    "load_rows": Section(
        "How long is the load of a savepoint, and does it need more memory for more rows?",
        "A savepoint can be loaded on a machine with little memory.",
    ),
    "initial_rows": Section(
        "How long is the first batch of a job that starts from a table?",
        "A new job can start with a year of history without reading the stream again.",
    ),
    "startup": Section(
        "How much CPU does a short command take?",
        "A command in a script or a cron job starts at once.",
    ),
    "first_minutes": Section(
        "How long until Dagster shows the first results?",
        "How soon a newcomer sees what Statekeeper does.",
    ),
    "pandas_frames": Section(
        "What do the dtypes of pandas frames cost?",
        "Exact integers and nulls in pandas frames, and their price.",
    ),
    "key_layout": Section(
        "Which layout of the key group is faster?",
        "The reason for the order of the key columns on disk.",
    ),
}
"""The benchmarks, in the order of the page."""
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
_HEAD = """# Benchmarks

`python -m benchmarks --write` writes this page. Each benchmark runs Statekeeper and its peer on the same input in one run,
in alternating rounds. Compare ratios: milliseconds and rows per second depend on the machine and its load. Quartiles are in
brackets. Work of other processes makes a ratio too good: a JVM suffers more from it than one Python process. The last line
of a section says how much there was. Older sections have the load of the machine, to which the benchmark itself belongs.
"""
_GAIN = re.compile(r"\A\*[^*\n]*\*\n\n")
_HEADING = re.compile(r"^## (?:.*)\{ #(\w+) \}\n", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. A benchmark that fails keeps its old section, and the others run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = ", ".join(f"{name} ({section.question})" for name, section in SECTIONS.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {names}")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: 5)")
    parser.add_argument("--large", action="store_true", help="also run the largest sizes, as --write does")
    parser.add_argument("--write", action="store_true", help=f"write the new sections to {DOCUMENT.name}")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(SECTIONS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    options.large |= options.write
    sections = _sections(DOCUMENT.read_text()) if options.write and DOCUMENT.exists() else {}
    failed = []
    for name in options.names or SECTIONS:
        other_work = OtherWork()
        try:
            tables: list[Table] = importlib.import_module(f"benchmarks.{name}").run(options)
        except Exception:  # noqa: BLE001 - the others run
            other_work.share()
            traceback.print_exc()
            print(f"  {name} failed\n", flush=True)
            failed.append(name)
            continue
        where = machine(other_work)
        for table in tables:
            print(table.as_text())
        print(f"  on {where}\n", flush=True)
        body = "\n".join(table.as_markdown() for table in tables)
        sections[name] = f"{body}\nMachine: {where}.\n"
        if options.write:
            DOCUMENT.parent.mkdir(exist_ok=True)
            DOCUMENT.write_text(_page(sections))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _page(sections: Mapping[str, str]) -> str:
    known = [
        f"## {section.question} {{ #{name} }}\n\n*{section.gain}*\n\n{sections[name]}"
        for name, section in SECTIONS.items()
        if name in sections
    ]
    return "\n".join([_HEAD, *known])


def _sections(text: str) -> dict[str, str]:
    """Return the sections of the page by name, so that a run of some benchmarks keeps the others."""
    parts = _HEADING.split(text)
    return {
        name: _GAIN.sub("", body.lstrip("\n")).rstrip("\n") + "\n"
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


if __name__ == "__main__":
    main()
