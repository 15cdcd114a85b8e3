"""Runs the cases of `make interop-matrix` that have not passed yet on the same code, and prints a table of results.

    python -m tests.interop.sparks [--again] [--only TEXT ...] [--jobs N] [--write]

Each result is a file below var/interop-matrix/, so that an interrupted run continues. --write copies the results of the
current code to docs/reference/interop-results.json. The docs generate a page from it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console

from tests.interop.sparks import results
from tests.interop.sparks.cases import Case, Origin, all_cases
from tests.interop.sparks.remote import REPOSITORY, Sparks
from tests.interop.sparks.results import Result

FOLDER = REPOSITORY / "var" / "interop-matrix"
CONSOLE = Console()


def main() -> int:
    """0 when every chosen case passed."""
    options = _options()
    chosen = [case for case in all_cases() if all(text in case.name for text in options.only)]
    known = {} if options.again else results.passed(FOLDER)
    todo = [case for case in chosen if case.name not in known]
    CONSOLE.print(f"{len(chosen):,} cases, {len(chosen) - len(todo):,} of them passed already")
    (FOLDER / "logs").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        for ended in as_completed([pool.submit(_run, bundle) for bundle in _bundles(todo)]):
            ended.result()
    found = results.of(FOLDER, chosen)
    for table in results.tables(found):
        CONSOLE.print(table)
    if options.write:
        results.write(results.of(FOLDER, list(all_cases())))
    failed = [result for result in found if not result.passed]
    CONSOLE.print(f"{len(found) - len(failed):,} of {len(chosen):,} cases passed")
    return 1 if failed or len(found) < len(chosen) else 0


def _bundles(cases: Iterable[Case]) -> list[list[Case]]:
    """Group the cases by structure and first release, the largest group first. So a process starts each Spark once."""
    bundles: defaultdict[tuple[str, str, bool], list[Case]] = defaultdict(list)
    for case in cases:
        bundles[case.group.structure, case.group.minor, case.group.own_snapshots].append(case)
    return sorted(bundles.values(), key=len, reverse=True)


def _run(cases: Sequence[Case]) -> None:
    """Keep a result of each case. A failure of one case does not affect the others."""
    with Sparks(FOLDER / "logs" / str(os.getpid())) as sparks:
        for group, of_group in itertools.groupby(cases, key=lambda case: case.group):
            scratch = FOLDER / "scratch" / str(os.getpid())
            scratch.mkdir(parents=True, exist_ok=True)
            origin: Origin | None = None
            for case in of_group:
                started = time.monotonic()
                why = None
                try:
                    origin = origin or Origin(group, sparks, Path(tempfile.mkdtemp(dir=scratch, prefix="case-")))
                    origin.run(case)
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"[:2000]
                    (FOLDER / "logs" / f"{case.name}.txt").write_text(traceback.format_exc())
                    sparks.drop_dead()
                versions = tuple(sparks.get(minor, group.structure).version for minor in (group.minor, case.to))
                result = Result(case, why, time.monotonic() - started, versions)
                results.keep(FOLDER, result)
                line = f"{result.seconds:6.1f} s  {case.name}" + ("" if why is None else f"  FAILED\n{why[:300]}")
                CONSOLE.print(line, markup=False, highlight=False, soft_wrap=True)
            shutil.rmtree(scratch)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make interop-matrix ARGS=...")
    parser.add_argument("--again", action="store_true", help="also what has passed already")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name has all of these in it")
    parser.add_argument("--jobs", type=int, default=2, help="so many processes, with up to five Sparks each")
    parser.add_argument("--write", action="store_true", help="write the results to where the docs read them")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
