"""Rules for the Python files of the repository."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_LINES = 450


def _imported(path: Path) -> list[str]:
    """The dotted names that a file imports."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_no_test_module_is_imported() -> None:
    """Shared helpers belong in tests/support/."""
    files = [path for folder in ("tests", "benchmarks") for path in (REPOSITORY / folder).rglob("*.py")]
    assert len(files) > 100
    found = {
        f"{path.relative_to(REPOSITORY)} imports {name}"
        for path in files
        for name in _imported(path)
        if any(part.startswith("test_") for part in name.split(".")[:-1])
        or (name.startswith("tests.") and name.rpartition(".")[2].startswith("test_"))
    }
    assert found == set()


def test_no_file_has_more_than_450_lines() -> None:
    """Split a longer file by subject."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [path for name in listed.stdout.splitlines() if (path := REPOSITORY / name).exists()]
    assert len(files) > 400
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}
