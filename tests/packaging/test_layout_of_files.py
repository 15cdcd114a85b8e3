"""Rules for the Python files of the repository."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_POSITIONAL_FIELDS = 4
MOST_LINES_OF_AN_OPERATOR = 50
MOST_LINES_OF_AN_EXAMPLE = 30


def _imported(path: Path) -> list[str]:
    """The dotted names that a file imports."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _python_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [path for name in listed.stdout.splitlines() if (path := REPOSITORY / name).exists()]
    assert len(files) > 400
    return files


def _positional_fields(node: ast.ClassDef) -> int:
    """Return the number of fields that the constructor of a class accepts by position."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return len(statement.args.posonlyargs) + len(statement.args.args) - 1
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if not any(text.startswith("dataclass") for text in decorators) or any(
        "kw_only=True" in text for text in decorators
    ):
        return 0
    fields = [statement for statement in node.body if isinstance(statement, ast.AnnAssign)]
    annotations = [ast.unparse(statement.annotation) for statement in fields]
    if "KW_ONLY" in annotations:
        return annotations.index("KW_ONLY")
    of_init = [field for field in fields if field.value is None or "init=False" not in ast.unparse(field.value)]
    return len([field for field in of_init if not ast.unparse(field.annotation).startswith("ClassVar")])


def test_a_constructor_with_more_than_four_fields_takes_keywords() -> None:
    """Positions of many arguments cannot be read at a call."""
    classes = [
        (path, node)
        for path in _python_files()
        if path.relative_to(REPOSITORY).parts[0] != "tests"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert any(_positional_fields(node) == MOST_POSITIONAL_FIELDS for _, node in classes)
    found = {
        f"{path.relative_to(REPOSITORY)}: {node.name}"
        for path, node in classes
        if _positional_fields(node) > MOST_POSITIONAL_FIELDS
    }
    assert found == set()


def test_no_test_module_is_imported() -> None:
    """Shared helpers belong in tests/support/."""
    files = [path for folder in ("tests", "benchmarks") for path in (REPOSITORY / folder).rglob("*.py")]
    assert len(files) > 100
    found = {
        f"{path.relative_to(REPOSITORY)} imports {name}"
        for path in files
        for name in _imported(path)
        if name.startswith(("tests.", "benchmarks.")) and any(part.startswith("test_") for part in name.split("."))
    }
    # Scripts for other processes are in strings.
    found |= {
        f"{path.relative_to(REPOSITORY)} imports {name}"
        for path in files
        for name in re.findall(r"(?:from|import) (tests(?:\.\w+)*\.test_\w+)", path.read_text())
    }
    assert found == set()


def _lines_of_code(text: str) -> int:
    """Count the lines without imports, docstrings, comments and empty lines."""
    other: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        has_docstring = isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
        for one in ([node.body[0]] if has_docstring else []) + ([node] if _is_import(node) else []):
            other.update(range(one.lineno, one.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if number not in other and line.strip() and line.strip()[0] != "#")


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_a_ready_made_operator_has_at_most_50_lines_of_code() -> None:
    """So that users can read it before they use it."""
    files = list((REPOSITORY / "pipelines" / "operators").glob("*.py"))
    assert len(files) > 5
    lengths = {path.name: _lines_of_code(path.read_text()) for path in files}
    assert max(lengths.values()) > 30
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_AN_OPERATOR} == {}


def test_the_join_and_the_enrichment_of_the_examples_have_at_most_30_lines() -> None:
    for name in ("join_of_streams", "enrichment"):
        text = (REPOSITORY / "examples" / f"{name}.py").read_text()
        operator = text.partition("# --8<-- [start:operator]")[2].partition("# --8<-- [end:operator]")[0]
        assert 10 < len(operator.strip().splitlines()) <= MOST_LINES_OF_AN_EXAMPLE


_IMPORT_EACH = """
import importlib, sys
for package in ("edits", "evolution", "engine", "switchover", "whole_stores"):
    for name in [name for name in sys.modules if name.startswith("statekeeper.statestore")]:
        del sys.modules[name]
    importlib.import_module(f"statekeeper.statestore.maintenance.rewrites.{package}")
"""


def test_each_rewrite_of_rows_can_be_imported_first() -> None:
    """A cycle of imports works only if another package is imported before."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_EACH], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
