"""Looks up the versions and files of a Delta table that a query reads. Delta's log cleanup deletes old versions, and VACUUM
deletes the files that a newer version no longer has."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from statekeeper.statestore.base.errors import CorruptFile, StorageError, UnsafePath
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.contents import delta_logs
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.maintenance.rollback.rewind.sources.data import DeltaVersions
from statekeeper.statestore.storage import Storage, at_once

_LONGEST_URL_BYTES = 1024
"""S3 has this limit for the path. The path of the table is a part of it."""
_SHOWN = 80
"""Characters of an invalid path in a text."""
_HINT = "run this command without this --source"
_MANAGED = (f"{delta_logs.LOG}/_commits/", f"{delta_logs.LOG}/_staged_commits/")
"""Commits that a catalog has accepted and that are not in the log yet."""


def missing(table: Storage, data: DeltaVersions) -> tuple[list[str], str | None]:
    """Return the versions and the files that no longer exist, and what was not looked up.

    Files of a change data feed are counted and not looked up. Raises `CorruptFile`, `StorageError`.
    """
    listed = table.list(delta_logs.LOG)
    versions = delta_logs.versions_in(listed)
    newest = delta_logs.newest_version(listed)
    first = data.version + 1 if data.is_snapshot else data.version
    later = [version for version in versions if version >= first]
    lost = [f"version {version}" for version in _gaps(first, [*later, max(newest + 1, first)])]
    unchecked = []
    if newest < first - 1:
        unchecked.append(
            f"the newest version of the table is {newest}, but version {first - 1} existed when the query read the table"
        )
    if any(entry.path.startswith(_MANAGED) for entry in listed):
        unchecked.append("a catalog manages the newest commits of the table")
    if data.is_snapshot:
        unchecked.append(f"the query still reads the whole table as of version {data.version}")
    files: list[_Added] = []
    changes = 0
    for version in later:
        added, of_changes = _added(table, version)
        changes += of_changes
        if version == data.version:
            added = added[max(data.index + 1, 0) :]
        files += added
    if changes:
        unchecked.append(f"{counted(changes, 'file')} of the change data feed")
    if vectors := sum(file.has_vector for file in files):
        unchecked.append(f"{counted(vectors, 'deletion vector')}")
    paths = {file.path for file in files}
    outside = {path for path in paths if _is_outside(path)}
    if outside:
        unchecked.append(f"{counted(len(outside), 'file')} {'is' if len(outside) == 1 else 'are'} outside of the table")
    gone: set[str] = set()
    invalid: set[str] = set()

    def check(path: str) -> None:
        try:
            if len(f"{table.url}/{path}".encode()) > _LONGEST_URL_BYTES:
                invalid.add(path)
            elif table.stat(path) is None:
                gone.add(path)
        except UnsafePath:
            invalid.add(path)
        except StorageError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ENAMETOOLONG:
                raise
            invalid.add(path)

    at_once(check, sorted(map(unquote, paths - outside)))
    if invalid:
        verb, more = ("has", "") if len(invalid) == 1 else ("have", " and others")
        unchecked.append(f"{counted(len(invalid), 'file')} {verb} an invalid path: {min(invalid)[:_SHOWN]!r}{more}")
    return [*lost, *sorted(gone)], f"not all was checked: {'; '.join(unchecked)}" if unchecked else None


@dataclass(frozen=True)
class _Added:
    """A file that a version adds. `has_vector`: with a deletion vector in a file of its own."""

    path: str
    has_vector: bool


def _is_outside(path: str) -> bool:
    try:
        return bool(urlsplit(path).scheme) or unquote(path).startswith("/")
    except ValueError:
        return True


def _gaps(first: int, later: list[int]) -> list[str]:
    """Describe the versions between the first one that is needed and the newest one that do not exist."""
    found = []
    for version in later:
        if version > first:
            found.append(f"{first}" if version == first + 1 else f"{first} to {version - 1}")
        first = version + 1
    return found


def _added(table: Storage, version: int) -> tuple[list[_Added], int]:
    """Return the files that a version adds, in Delta's order, and the number of its files in the change data feed. The
    first are without those of an OPTIMIZE: a stream does not read them."""
    found, changes = [], 0
    for kind, body in delta_logs.actions(table, version, {"add", "cdc"}, hint=_HINT):
        if kind == "cdc":
            changes += 1
            continue
        try:
            if body.get("dataChange", True):
                vector = body.get("deletionVector")
                found.append(_Added(str(body["path"]), vector is not None and vector["storageType"] != "i"))
        except BAD_VALUES as error:
            path = f"{table.url}/{delta_logs.commit_path(version)}"
            raise CorruptFile(f"cannot be parsed: {error}", path=path, hint=_HINT) from error
    return found, changes
