"""Checkpoints and copies with every record of Statekeeper's own, and records with other contents."""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.format import names, savepoint_names
from tests.faults.fuzz.roots import Stage, made
from tests.support.commands import statekeeper

CONTROL = names.CONTROL


def with_all_records(folder: Path) -> dict[str, Path]:
    """Make a job root with records of each kind, and its copies: of files, of rows, a clone and a mirror. Also a job root
    with a half-done switchover."""
    scratch = ("--scratch", folder / "scratch")
    job = made(folder, "own-v2", Stage.SNAPSHOTS)
    places = {name: folder / name for name in ("files", "rows", "clone", "mirror")}
    _done("gc", job, "--mode", "full", "--retain", "1", "--grace", "0s", "--apply", *scratch)
    _done("savepoint", job, places["files"], "--label", "one", "--note", "before the upgrade")
    _done("savepoint", job, places["rows"], "--rows", *scratch)
    _done("clone", job, places["clone"])
    _done("mirror", job, places["mirror"])
    run = RandomIds().fresh()
    _write(job, names.deleting(run), {"delete": "state/0/0/SSTs/1.sst"})
    _write(job, savepoint_names.hold(run), {"batch": 6, "holder": "host:1", "verb": "savepoint", "renewals": 0})
    *older, held = sorted((job / names.LEASES).iterdir())
    for path in older:
        path.unlink()
    body = json.loads(held.read_bytes())
    held.write_text(json.dumps({**body, "released": False, "holder": "host:1"}))
    switched = folder / "switched"
    shutil.copytree(made(folder, "own-v2", Stage.SWITCHED), switched)
    for path in (switched / names.SWITCHOVERS).rglob("ended.json"):
        path.unlink()
    return {"job": job, "switched": switched, **places}


def _done(*arguments: object) -> None:
    result = statekeeper(*arguments)
    assert result.exit_code == 0, result.output


def _write(root: Path, path: str, body: dict[str, Any]) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(json.dumps(body) + "\n")


@dataclass(frozen=True)
class Leaf:
    """A value in a JSON file: the path of the file, the line, and the keys that lead to the value."""

    file: str
    line: int
    keys: tuple[str | int, ...]
    value: Any

    @property
    def kind(self) -> tuple[str, ...]:
        """The same for the values of one field, in each record of one kind."""
        folder = "/".join(part for part in self.file.split("/")[:-1] if not part.isdecimal())
        file = self.file.rpartition("/")[2] if not any(map(str.isdigit, self.file.rpartition("/")[2])) else ""
        return (folder, file, *("*" if isinstance(key, int) else key for key in self.keys))


def leaves(root: Path, *below: str) -> list[Leaf]:
    """Return the values in the JSON files below some folders: one for each field of each kind of record."""
    found: dict[tuple[str, ...], Leaf] = {}
    for folder in below:
        place = root / folder
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file():
                file = str(path.relative_to(root))
                for number, line in enumerate(path.read_bytes().split(b"\n")):
                    for keys, value in _values(_parsed(line)):
                        leaf = Leaf(file, number, keys, value)
                        found.setdefault(leaf.kind, leaf)
    return list(found.values())


def calls_by_file(root: Path, calls: Iterable[tuple[object, ...]]) -> dict[str, list[tuple[object, ...]]]:
    """Make each call, and return the calls that open each file below the root. The other calls cannot depend on what the
    file contains, as long as no other file changes."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for call in calls:
        with _opened_files() as opened:
            statekeeper(*call)
        for path in sorted(opened):
            if Path(path).is_relative_to(root):
                found.setdefault(str(Path(path).relative_to(root)), []).append(call)
    return found


_watched: set[str] | None = None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _watched is not None and isinstance(arguments[0], str | os.PathLike):
        _watched.add(os.fspath(arguments[0]))


@contextmanager
def _opened_files() -> Iterator[set[str]]:
    """Collect the paths that this process opens, by an audit hook. A hook cannot be removed, so there is one."""
    global _watched
    if _watched is None:
        sys.addaudithook(_watch)
    _watched = set()
    yield _watched
    _watched = set()


def replaced(root: Path, leaf: Leaf, value: Any) -> bytes:
    """Replace a value in its file, and return the former bytes of the file."""
    path = root / leaf.file
    before = path.read_bytes()
    lines = before.split(b"\n")
    body = copy.deepcopy(json.loads(lines[leaf.line]))
    part = body
    for key in leaf.keys[:-1]:
        part = part[key]
    part[leaf.keys[-1]] = value
    lines[leaf.line] = json.dumps(body).encode()
    path.write_bytes(b"\n".join(lines))
    return before


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _values(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if keys:
        yield keys, value
    for key, part in inside:
        yield from _values(part, (*keys, key))
