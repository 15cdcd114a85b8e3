"""`python -m benchmarks [NAME ...]`: run all benchmarks or those named, and print their tables."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import Table, machine

BENCHMARKS: Mapping[str, str] = {
    "commit_cost": "what a commit costs as the state grows",
    "snapshot_cost": "what a snapshot and a load cost, beside Spark's own store",
    "operator_rows": "rows a second of the stateful operator, beside Spark's own operators",
    "maintenance_requests": "what audit and retention ask of storage over a thousand stores",
    "growth": "what grows with a query's partitions and batches",
    "growth_of_jobs": "what a running job keeps, sends and asks of storage as partitions and batches grow",
    "switchover": "what it takes to move 200 stores between the structures V1 and V2",
    "first_minutes": "how long a person waits after `make run` until the UI shows it at work",
    "pandas_frames": "what the dtypes of pandas frames cost",
    "key_layout": "the key group in a key: an int, or two big-endian bytes",
}
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
_HEAD = """# Benchmarks

Written by `python -m benchmarks --write`. Each benchmark runs Statekeeper and what it is compared with on the same
input in one run, taking turns. Ratios are what counts: milliseconds and rows a second are those of one machine on one
day. In brackets are the quartiles.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = ", ".join(f"{name} ({what})" for name, what in BENCHMARKS.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {names}")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side has its turn (default: 5)")
    parser.add_argument("--large", action="store_true", help="the largest sizes too; takes many minutes")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}, with the sections that were run")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    sections = _sections(DOCUMENT.read_text()) if options.write and DOCUMENT.exists() else {}
    for name in options.names or BENCHMARKS:
        tables: list[Table] = importlib.import_module(f"benchmarks.{name}").run(options)
        where = machine()
        for table in tables:
            print(table.as_text())
        print(f"  on {where}\n", flush=True)
        body = "\n".join(table.as_markdown() for table in tables)
        sections[name] = f"{BENCHMARKS[name].capitalize()}.\n\n{body}\nMachine: {where}.\n"
        if options.write:
            DOCUMENT.parent.mkdir(exist_ok=True)
            known = [f"## {name}\n\n{sections[name]}" for name in BENCHMARKS if name in sections]
            DOCUMENT.write_text("\n".join([_HEAD, *known]))


def _sections(text: str) -> dict[str, str]:
    """The sections of the document as it stands, so that a run of some benchmarks leaves the others alone."""
    parts = text.split("\n## ")[1:]
    return {name: body.lstrip("\n") for name, _, body in (part.partition("\n") for part in parts)}


if __name__ == "__main__":
    main()
