"""The log of a file source: `sources/<folder>/<entry>`, and `<entry>.compact` with all entries so far.

The folder is the number of the source in the query, or its name in a query of Spark 4.2 or later with named sources. Their
offsets do not contain the names.

`offsets/N` names the newest entry that batch N has read: {"logOffset": 7}. The next batch reads all later entries at once,
whatever `maxFilesPerTrigger` is. Without these entries, Spark lists the files again and divides them as before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from statestore.format import names
from statestore.format.untrusted import BAD_VALUES, parsed_json

_ENTRY = re.compile(rf"{names.SOURCES}/(?P<folder>[^/]{{1,255}})/(?P<entry>[0-9]{{1,18}})(?:\.compact)?")


def position(offset: str) -> int | None:
    """Return the newest entry that an offset of a source names; None for another kind of source. Raises nothing."""
    try:
        body = parsed_json(offset.encode())
        entry = body["logOffset"]
        return entry if isinstance(entry, int) and len(body) == 1 else None
    except BAD_VALUES:
        return None


def parse(path: str) -> tuple[str, int] | None:
    """Return the folder of a source and the entry of a path; None for another path."""
    match = _ENTRY.fullmatch(path)
    return (match["folder"], int(match["entry"])) if match else None


def folders_of(offsets: Sequence[str], paths: Collection[str]) -> Mapping[int, str] | None:
    """Return the folder of each file source by its number in `offsets/N`; None if that is unknown.

    It is unknown if sources have names, unless there is one file source and one folder.
    """
    numbers = [number for number, text in enumerate(offsets) if position(text) is not None]
    folders = {parsed[0] for path in paths if (parsed := parse(path))}
    if not numbers or all(folder.isdecimal() for folder in folders):
        return {number: str(number) for number in numbers}
    return dict(zip(numbers, folders, strict=True)) if len(numbers) == len(folders) == 1 else None


def positions(offsets: Sequence[str], paths: Collection[str]) -> Mapping[str, int] | None:
    """Return the newest entry that `offsets/N` names in each folder of a file source; None as in `folders_of`."""
    folders = folders_of(offsets, paths)
    if folders is None:
        return None
    entries = {folder: position(offsets[number]) for number, folder in folders.items()}
    return {folder: entry for folder, entry in entries.items() if entry is not None}


def is_complete(folder: str, entry: int, paths: Collection[str]) -> bool:
    """Return whether a source's log has the entry and all earlier ones among these paths. Spark may have merged some into a
    later one, and deleted them."""
    for earlier in range(entry, -1, -1):
        path = f"{names.SOURCES}/{folder}/{earlier}"
        if f"{path}.compact" in paths:
            return True
        if path not in paths:
            return False
    return True
