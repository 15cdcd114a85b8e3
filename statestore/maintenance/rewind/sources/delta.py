"""Looks up the versions and files of a Delta table that a query reads. Delta's log cleanup deletes old versions, and VACUUM
deletes the files that a newer version no longer has."""

from __future__ import annotations

from urllib.parse import unquote

from statestore.counts import counted
from statestore.errors import CorruptFile
from statestore.format.untrusted import BAD_VALUES
from statestore.maintenance.rewind import delta_log
from statestore.maintenance.rewind.sources.data import DeltaVersions
from statestore.storage import Storage, at_once

_HINT = "run this command without this --source"
_MANAGED = (f"{delta_log.LOG}/_commits/", f"{delta_log.LOG}/_staged_commits/")
"""Commits that a catalog has accepted and that are not in the log yet."""


def missing(table: Storage, data: DeltaVersions) -> tuple[list[str], str | None]:
    """Return the versions and the files that no longer exist, and what was not looked up.

    Files of a change data feed are not looked up. Raises `CorruptFile`, `StorageError`.
    """
    listed = table.list(delta_log.LOG)
    versions = delta_log.versions_in(listed)
    newest = max(versions, default=-1)
    first = data.version + 1 if data.is_snapshot else data.version
    later = [version for version in versions if version >= first]
    lost = [f"version {version}" for version in _gaps(first, later)]
    unchecked = []
    if newest < first - 1:
        unchecked.append(
            f"the newest version of the table is {newest}, but version {first - 1} existed when the query read the table"
        )
    if any(entry.path.startswith(_MANAGED) for entry in listed):
        unchecked.append("a catalog manages the newest commits of the table")
    if data.is_snapshot:
        unchecked.append(f"the query still reads the whole table as of version {data.version}")
    files: list[str] = []
    for version in later:
        added = _added(table, version)
        if version == data.version:
            added = added[max(data.index + 1, 0) :]
        files += added
    absolute = [path for path in files if "://" in path or path.startswith("/")]
    if absolute:
        unchecked.append(
            f"{counted(len(absolute), 'file')} {'is' if len(absolute) == 1 else 'are'} outside of the table"
        )
    gone: set[str] = set()

    def check(path: str) -> None:
        if table.stat(path) is None:
            gone.add(path)

    at_once(check, sorted({unquote(path) for path in files} - {unquote(path) for path in absolute}))
    return [*lost, *sorted(gone)], f"not all was checked: {'; '.join(unchecked)}" if unchecked else None


def _gaps(first: int, later: list[int]) -> list[str]:
    """Describe the versions between the first one that is needed and the newest one that do not exist."""
    found = []
    for version in later:
        if version > first:
            found.append(f"{first}" if version == first + 1 else f"{first} to {version - 1}")
        first = version + 1
    return found


def _added(table: Storage, version: int) -> list[str]:
    """Return the files that a version adds, in Delta's order, without those of an OPTIMIZE: a stream does not read them."""
    found = []
    for _, body in delta_log.actions(table, version, {"add"}, hint=_HINT):
        try:
            if body.get("dataChange", True):
                found.append(str(body["path"]))
        except BAD_VALUES as error:
            path = f"{table.url}/{delta_log.commit_path(version)}"
            raise CorruptFile(f"cannot be parsed: {error}", path=path, hint=_HINT) from error
    return found
