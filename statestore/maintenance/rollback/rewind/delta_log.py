"""The log of a Delta table that a query reads or writes. A commit is one version of the table; it has one action a line.

<table>/_delta_log/00000000000000000041.json                        {"commitInfo": ...}, {"txn": ...}, {"add": ...}
<table>/_delta_log/00000000000000000040.checkpoint.parquet          all actions up to version 40
<table>/_delta_log/00000000000000000040.checkpoint.<uuid>.parquet   the same, of checkpoints V2; or .json
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json
from statekeeper.statestore.storage import Entry, OpenedObject, Storage, read_lines

LOG = "_delta_log"
_VERSION = re.compile(rf"{LOG}/(?P<version>[0-9]{{20}})\.json")
_CHECKPOINT = re.compile(rf"{LOG}/(?P<version>[0-9]{{20}})\.checkpoint(?:\.[0-9a-f.-]+)?\.(?P<form>parquet|json)")


def commit_path(version: int) -> str:
    """Return the path of a commit."""
    return f"{LOG}/{version:020}.json"


def versions_in(listed: Sequence[Entry]) -> list[int]:
    """Return the versions whose commits are in a listing of the log, ascending."""
    return sorted(int(match["version"]) for entry in listed if (match := _VERSION.fullmatch(entry.path)))


def newest_version(listed: Sequence[Entry]) -> int:
    """Return the newest version that a listing of the log shows; -1 if it shows none."""
    matches = (_VERSION.fullmatch(entry.path) or _CHECKPOINT.fullmatch(entry.path) for entry in listed)
    return max((int(match["version"]) for match in matches if match), default=-1)


def actions(table: Storage, version: int, kinds: Collection[str], *, hint: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the actions of these kinds in a commit, and their kinds. Other lines are not parsed.

    Raises `CorruptFile` with that hint, `StorageError`.
    """
    yield from _parsed(table, commit_path(version), kinds, hint)


def table_id(table: Storage, listed: Sequence[Entry], *, hint: str) -> str | None:
    """Return the id of a table: from the newest commits down to the newest checkpoint, then from the checkpoint; None if no
    file has it. Raises `CorruptFile` with that hint, `StorageError`."""
    checkpoints = {entry.path: match for entry in listed if (match := _CHECKPOINT.fullmatch(entry.path))}
    newest = max((int(match["version"]) for match in checkpoints.values()), default=-1)
    for version in reversed(versions_in(listed)):
        if version <= newest:
            break
        for _, body in actions(table, version, {"metaData"}, hint=hint):
            return _id(body, table, commit_path(version), hint)
    for path, match in checkpoints.items():
        if int(match["version"]) == newest:
            found = _parsed(table, path, {"metaData"}, hint) if match["form"] == "json" else _rows(table, path, hint)
            for _, body in found:
                return _id(body, table, path, hint)
    return None


def _parsed(table: Storage, path: str, kinds: Collection[str], hint: str) -> Iterator[tuple[str, dict[str, Any]]]:
    wanted = re.compile(rb'\s*\{\s*"(?:%s)"' % "|".join(sorted(kinds)).encode())
    last = b""
    try:
        for line in read_lines(table, path):
            last = line.strip() or last
            if wanted.match(line) is None:
                continue
            action = parsed_json(line)
            yield from ((kind, _fields(body)) for kind, body in action.items() if kind in kinds)
        if not last:
            raise ValueError("it is empty")
        # A file that was cut has a part of an action at its end.
        if not _fields(parsed_json(last)):
            raise ValueError("its last line has no action")
    except BAD_VALUES as error:
        raise _corrupt(table, path, error, hint) from error


def _fields(body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise TypeError(f"{str(body)[:40]!r} is not an action")
    return body


def _rows(table: Storage, path: str, hint: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id in the metadata of a checkpoint. Of a large file, only the footer and this column are read."""
    try:
        file = pq.ParquetFile(pa.PythonFile(OpenedObject(table, path), mode="r"))
        column = file.read(columns=["metaData.id"])["metaData"]
        yield from (("metaData", row) for row in column.to_pylist() if row is not None)
    except (pa.ArrowException, OSError, *BAD_VALUES) as error:
        raise _corrupt(table, path, error, hint) from error


def _id(body: dict[str, Any], table: Storage, path: str, hint: str) -> str:
    if not isinstance(body.get("id"), str):
        raise _corrupt(table, path, ValueError("the metadata has no id"), hint)
    return str(body["id"])


def _corrupt(table: Storage, path: str, error: Exception, hint: str) -> CorruptFile:
    return CorruptFile(f"cannot be parsed: {error}", path=f"{table.url}/{path}", hint=hint)
