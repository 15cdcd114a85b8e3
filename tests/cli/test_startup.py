"""A command imports what it needs and no more: the time of a short command is the time of its imports."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import click
import pytest

from statekeeper.statestore import cli
from statekeeper.statestore.cli.main import VERBS, main

FOR_ANY_VERB = frozenset({"statekeeper.statestore.cli.common", "statekeeper.statestore.storage", "rich"})
"""What each verb imports, and a command without a verb does not."""
OTHER_SYSTEMS = frozenset(
    {
        "dagster",
        "pyspark",
        "py4j",
        "pandas",
        "deltalake",
        "fsspec",
        "s3fs",
        "botocore",
        "aiohttp",
        "adlfs",
        "gcsfs",
        "requests",
    }
)
ROWS = frozenset({"rocksdict", "pyarrow.compute", "pyarrow.parquet", "asyncio", "filelock", "loky", "multiprocessing"})
"""What reading or writing the rows of a state takes."""
ARROW = frozenset({"numpy", "pyarrow"})
OTHER_ROOMS = ("copies", "rewrites", "rollback")
"""Rooms of `maintenance` that no verb of upkeep needs."""
CHECKPOINT = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"

_RUN = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
from statekeeper.statestore.cli import main
main()
"""


def _imported(*arguments: str | Path, exit_code: int = 0) -> frozenset[str]:
    """Run the command in a process of its own, and return the modules that it has imported."""
    done = subprocess.run([sys.executable, "-c", _RUN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    return frozenset(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_a_command_without_a_verb_imports_no_verb(option: str) -> None:
    assert _imported(option) & (FOR_ANY_VERB | OTHER_SYSTEMS | ROWS | ARROW) == set()


@pytest.mark.parametrize(("verb", "needed"), [("inspect", frozenset()), ("audit", ARROW)])
def test_a_short_look_at_a_local_checkpoint_imports_no_engine(
    verb: str, needed: frozenset[str], tmp_path: Path
) -> None:
    """The audit reads the schemas of Spark's state, which takes Arrow."""
    zipfile.ZipFile(CHECKPOINT).extractall(tmp_path)
    assert _imported(verb, tmp_path / "checkpoint") & (OTHER_SYSTEMS | ROWS | ARROW) == needed


@pytest.mark.parametrize(
    ("verb", "options", "module", "needed"),
    [("snapshot", ("--dry-run",), "snapshot", frozenset()), ("gc", (), "retention", ARROW)],
)
def test_the_plan_of_a_verb_of_upkeep_imports_no_engine_and_no_room_of_other_verbs(
    verb: str, options: tuple[str, ...], module: str, needed: frozenset[str], tmp_path: Path
) -> None:
    """`gc` audits."""
    zipfile.ZipFile(CHECKPOINT).extractall(tmp_path)
    found = _imported(verb, tmp_path / "checkpoint", *options)
    assert f"statekeeper.statestore.maintenance.verbs.{module}" in found
    assert found & (OTHER_SYSTEMS | ROWS | ARROW) == needed
    assert found & {f"statekeeper.statestore.maintenance.{room}" for room in OTHER_ROOMS} == set()


def test_each_verb_of_the_command_line_is_listed_in_its_help() -> None:
    found = {}
    for module in pkgutil.iter_modules(cli.__path__):
        command = getattr(import_module(f"{cli.__name__}.{module.name}"), module.name, None)
        if isinstance(command, click.Command) and command is not main:
            found[module.name] = command
    assert found == dict(main.commands)
    assert {name: command.short_help for name, command in found.items()} == {one.name: one.line for one in VERBS}
