"""The results of the matrix: one file per case while it runs, and one file in the docs.

A result is valid for the code that it ran on: statestore/, the queries, the cases and the pinned environments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.interop.sparks.cases import Case, Kind, all_cases
from tests.interop.sparks.remote import REPOSITORY

WRITTEN = REPOSITORY / "docs" / "reference" / "interop-results.json"
_CODE = (
    "statestore/**/*.py",
    "tests/support/native.py",
    "tests/support/twins.py",
    "tests/support/dumped.py",
    "tests/support/savepoints.py",
    "tests/interop/sparks/cases.py",
    "tests/interop/sparks/child.py",
    "tests/interop/sparks/*.txt",
    "requirements.lock",
)


@dataclass(frozen=True)
class Result:
    """How a case ended; `why` is None when it passed. `versions`: of the Spark that began, and of the one that went on."""

    case: Case
    why: str | None
    seconds: float
    versions: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.why is None


@cache
def code() -> str:
    """Return one digest of everything that the results depend on."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _CODE for path in REPOSITORY.glob(pattern)}):
        digest.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def keep(folder: Path, result: Result) -> None:
    """Write a result to its own file."""
    body = {"code": code(), "why": result.why, "seconds": round(result.seconds, 1), "versions": result.versions}
    path = folder / f"{result.case.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1))


def of(folder: Path, cases: Sequence[Case]) -> list[Result]:
    """Return the recorded results of these cases for the present code."""
    return [result for case in cases if (result := _read(folder, case)) is not None]


def passed(folder: Path) -> Mapping[str, Result]:
    """Those that need not run again, by their name."""
    return {result.case.name: result for result in of(folder, list(all_cases())) if result.passed}


def _read(folder: Path, case: Case) -> Result | None:
    path = folder / f"{case.name}.json"
    if not path.exists():
        return None
    body: dict[str, Any] = json.loads(path.read_text())
    if body["code"] != code():
        return None
    return Result(case, body["why"], body["seconds"], tuple(body["versions"]))


def write(found: Sequence[Result]) -> None:
    """Write the results that the docs show: for each case its newest result and the releases, also for cases that never
    ran."""
    before: list[dict[str, Any]] = json.loads(WRITTEN.read_text()) if WRITTEN.exists() else []
    lines = {line["case"]: line for line in before} | {result.case.name: _line(result.case, result) for result in found}
    kept = [lines.get(case.name) or _line(case, None) for case in all_cases()]
    WRITTEN.write_text("[\n " + ",\n ".join(map(json.dumps, kept)) + "\n]\n")


def _line(case: Case, result: Result | None) -> dict[str, Any]:
    began, went_on = result.versions if result else (case.group.minor, case.to)
    return {
        "case": case.name,
        "operator": case.group.operator,
        "structure": f"V{case.group.structure}",
        "kind": case.kind.name.lower(),
        "from": began,
        "to": went_on,
        "passed": result.passed if result else None,
    }


def tables(found: Sequence[Result]) -> Iterator[Table]:
    """For a terminal: a table for each kind of case, operators down, Sparks across."""
    for kind in Kind:
        of_kind = [result for result in found if result.case.kind is kind]
        columns = sorted({_column(result.case) for result in of_kind})
        if not of_kind:
            continue
        table = Table("operator", *columns, title=kind.value)
        for operator in dict.fromkeys(result.case.group.operator for result in of_kind):
            cells = {_column(r.case): r for r in of_kind if r.case.group.operator == operator}
            marks = [("ok" if cells[c].passed else "FAILED") if c in cells else "" for c in columns]
            table.add_row(operator, *marks)
        yield table


def _column(case: Case) -> str:
    between = case.to if case.group.minor == case.to else f"{case.group.minor}→{case.to}"
    return f"V{case.group.structure} {between}"
