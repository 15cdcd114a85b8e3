"""Every verb on a root with a damaged batch log."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.cli import main
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.counted_state import SCHEMA, changes
from tests.support.maintainers import MAINTAINER
from tests.support.stores import overwrite

DAMAGED = 2
"""The version whose batch log is damaged."""


def _flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


def _reindexed(data: bytes, change: Callable[[list[list[object]]], None]) -> bytes:
    """Change the index and keep its checksum valid."""
    end = batch_log.head_bytes(data, "")
    head = json.loads(data[batch_log.FRONT_BYTES : end])
    change(head["members"])
    body = json.dumps(head, separators=(",", ":"), sort_keys=True).encode()
    return struct.pack(">8sII", data[:8], len(body), google_crc32c.value(body)) + body + data[end:]


def _out_of_bounds(members: list[list[object]]) -> None:
    members[-1][4] = 10**12


def _of_another_store(members: list[list[object]]) -> None:
    first, second = members
    first[:4], second[:4] = second[:4], first[:4]


LISTED = {
    "truncated": lambda data: data[:-5],
    "empty": lambda data: b"",
    "index": lambda data: _flipped(data, 40),
    "foreign": lambda data: b"PK\3\4" + bytes(300),
    "format": lambda data: b"SKLOG002" + data[8:],
    "out of bounds": lambda data: _reindexed(data, _out_of_bounds),
}
"""Damage that the index and the size of the object show."""

READ = {
    "member": lambda data: _flipped(data, -9),
    "another store": lambda data: _reindexed(data, _of_another_store),
}
"""Damage that a reader of the members finds."""

Damage = Callable[[bytes], bytes]


def _cases(damages: dict[str, Damage]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("damage", damages.values(), ids=damages.keys())


@pytest.fixture
def made(root: Path, tmp_path: Path) -> Checkpoint:
    made = Checkpoint(open_storage(str(root)), tmp_path / "job", schema=SCHEMA, in_batch_logs=True)
    made.batch(changes(a=1, b=2), changes(z=9))
    made.batch(changes(a=None, c=3), changes(y=7))
    made.batch(changes(b=5, c=3), changes(y=0))
    return made


def _damage(made: Checkpoint, damage: Damage) -> str:
    log = batch_log.path_of(made.versions[DAMAGED][0])
    assert log is not None
    overwrite(made.storage, log, damage(made.storage.read(log)))
    return log


def _run(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(main, [str(one) for one in arguments], obj=MAINTAINER)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@_cases(LISTED)
def test_each_verb_reports_the_object_and_not_a_missing_file(made: Checkpoint, root: Path, damage: Damage) -> None:
    log = _damage(made, damage)
    unknown = made.storage.read(log).startswith(b"SKLOG002")
    expected = {
        ("audit",): 3,
        ("audit", "--deep"): 3,
        ("snapshot", "--all", "--dry-run"): 3,
        ("snapshot", "--all"): 3,
        ("inspect",): 3,
        ("unpack", "--dry-run"): 0,
        ("dump",): 12 if unknown else 1,
        ("diff", "--from", "1", "--to", "3"): 12 if unknown else 1,
    }
    for (verb, *options), code in expected.items():
        done = _run(verb, root, *options, "--output", "json")
        assert done.exit_code == code, (verb, options, done.output)
        assert log in done.output, (verb, options, done.output)
        assert "is missing" not in done.output, (verb, options, done.output)
    for options in (["--all"], ["--all", "--dry-run"]):
        assert f"run: statekeeper audit {root}" in _run("snapshot", root, *options).output
    objects = {entry.path for entry in made.storage.list(names.BATCH_LOGS)}
    _run("repair", root, "--apply", "--confirm-stopped")
    _run("gc", root, "--retain", "1", "--grace", "0s", "--apply", "--mode", "full")
    assert {entry.path for entry in made.storage.list(names.BATCH_LOGS)} == objects


@_cases(READ)
def test_each_verb_that_reads_a_member_reports_the_object(made: Checkpoint, root: Path, damage: Damage) -> None:
    log = _damage(made, damage)
    expected = {
        ("audit", "--deep"): 3,
        ("dump",): 1,
        ("diff", "--from", "1", "--to", "3"): 1,
        # One store is damaged, or both are.
        ("snapshot", "--all"): 4 if damage is READ["member"] else 1,
    }
    for (verb, *options), code in expected.items():
        done = _run(verb, root, *options, "--output", "json")
        assert done.exit_code == code, (verb, options, done.output)
        assert log in done.output, (verb, options, done.output)
        assert "is missing" not in done.output, (verb, options, done.output)


def test_a_damaged_batch_log_is_one_problem_that_names_the_stores_and_no_changelog_in_another_is_called_a_missing_file(
    made: Checkpoint, root: Path
) -> None:
    log = _damage(made, LISTED["empty"])
    printed = _run("audit", root).stdout
    assert printed.count(log) == 2, "an error of its stores and a warning of its own"
    assert "the same is true for 1 other store: state/0/1" in printed
    assert json.loads(_run("audit", root, "--output", "json").stdout)["totals"]["errors"] == 2
    lineage = _run("inspect", root, "--lineage", "0/0").stdout
    assert "2  changelog in a batch log\n" in lineage
    assert "no file" not in lineage
    assert json.loads(_run("inspect", root, "--output", "json").stdout)["stores"][0]["files"] == 0
