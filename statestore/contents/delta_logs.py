"""The log of a Delta table that a query reads or writes. A commit is one version of the table; it has one action a line.

<table>/_delta_log/00000000000000000041.json                        {"commitInfo": ...}, {"txn": ...}, {"add": ...}
<table>/_delta_log/00000000000000000040.checkpoint.parquet          all actions up to version 40
<table>/_delta_log/00000000000000000040.checkpoint.<n>.<of>.parquet the same, in several files
<table>/_delta_log/00000000000000000040.checkpoint.<uuid>.parquet   the same, of checkpoints V2; or .json
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.deletion_vectors import Positions, parse, parse_from_file
from statekeeper.statestore.format.delta_log import DataFile
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json
from statekeeper.statestore.storage import Entry, OpenedObject, Storage, read_lines

LOG = "_delta_log"
_VERSION = re.compile(rf"{LOG}/(?P<version>[0-9]{{20}})\.json")
_CHECKPOINT = re.compile(rf"{LOG}/(?P<version>[0-9]{{20}})\.checkpoint(?:\.[0-9a-f.-]+)?\.(?P<form>parquet|json)")
_PARTS = re.compile(rf"{LOG}/(?P<version>[0-9]{{20}})\.checkpoint(?:\.[0-9]{{10}}\.(?P<of>[0-9]{{10}}))?\.parquet")
ENGINE = "Statekeeper"
"""The `engineInfo` of the commits in which `optimize` merges files. They change no row."""
OF_JOBS = "statekeeper-"
"""Before the query id, in the application id of a `pipelines.DeltaSink`."""


def applications(query_ids: Collection[str]) -> set[str]:
    """Return the application ids of a query in the transactions of its tables: of a native query, and of a job."""
    return {name for query_id in query_ids for name in (query_id, f"{OF_JOBS}{query_id}")}


class BatchSearch:
    """Finds the version of a table that has the rows up to a batch, from the newest version down: the last one before the
    first version with a later batch. `holds`: the newest later batch in the table; None without one."""

    def __init__(self, batch: int, newest: int) -> None:
        self.version = newest
        self.holds: int | None = None
        self._batch = batch

    def ends_at(self, version: int, written: int | None) -> bool:
        """Look at the next older version. Return whether the search ends: it has a batch up to the target. `written`: the
        batch of the query that the version has."""
        if written is None:
            return False
        if written <= self._batch:
            return True
        self.version, self.holds = version - 1, max(written, self.holds or 0)
        return False


@dataclass(frozen=True, kw_only=True)
class ListedLog:
    """The files of a log that a listing shows. `commits`: of the versions that follow each other up to the newest one;
    `checkpoints`: the paths of each complete one by version, without those of checkpoints V2."""

    commits: Mapping[int, Entry]
    checkpoints: Mapping[int, tuple[str, ...]]

    @property
    def newest(self) -> int:
        """The newest version."""
        return max((*self.commits, *self.checkpoints))

    @property
    def oldest_commit(self) -> int:
        """The oldest version of the commits."""
        return min(self.commits, default=self.newest + 1)

    @property
    def oldest_readable(self) -> int | None:
        """The oldest version that can be read; None if there is none."""
        return 0 if self.oldest_commit == 0 else min(self._bases, default=None)

    def base_of(self, version: int) -> int:
        """Return the checkpoint from which a version is read; -1 if only commits are needed."""
        return max((base for base in self._bases if base <= version), default=-1)

    @property
    def _bases(self) -> list[int]:
        return [version for version in self.checkpoints if version >= self.oldest_commit - 1]


def parse_listing(listed: Sequence[Entry]) -> ListedLog | None:
    """Find the commits and checkpoints in a listing of the log; None if there are none."""
    commits = {int(match["version"]): entry for entry in listed if (match := _VERSION.fullmatch(entry.path))}
    parts: dict[tuple[int, int], list[str]] = {}
    for entry in listed:
        if match := _PARTS.fullmatch(entry.path):
            parts.setdefault((int(match["version"]), int(match["of"] or 1)), []).append(entry.path)
    checkpoints = {version: tuple(sorted(paths)) for (version, of), paths in parts.items() if len(paths) == of}
    if not commits and not checkpoints:
        return None
    newest = max((*commits, *checkpoints))
    oldest = newest + 1
    while oldest - 1 in commits:
        oldest -= 1
    return ListedLog(
        commits={version: entry for version, entry in commits.items() if version >= oldest}, checkpoints=checkpoints
    )


def as_spark_reads_it(url: str) -> str:
    """Return a location as Spark's SQL expects it: a plain path on a local disk, and s3a for a bucket."""
    if url.startswith("file://"):
        return unquote(url.removeprefix("file://"))
    return f"s3a://{url.removeprefix('s3://')}" if url.startswith("s3://") else url


def in_sql(url: str) -> str:
    """Return the name of the table at a location in Spark's SQL."""
    return f"delta.`{as_spark_reads_it(url)}`"


def deleted_positions(storage: Storage, file: DataFile) -> Positions:
    """Read the positions of the rows of a data file that do not belong to the table. One request, or none."""
    one = file.vector
    if one is None:
        return np.zeros(0, np.int64)
    if one.file is None:
        return parse(one.inline, file.path)
    return parse_from_file(storage.read_range(one.path, one.offset, one.size_bytes + 8), one)


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
