"""The log of a file source: `sources/<folder>/<entry>`, and `<entry>.compact` with all entries so far.

The folder is the id of the source: its number in the query, or its name if sources have names, which Spark 4.2 supports.
Offsets of v2 contain the ids; those of v1 are in the order of the query, which does not show the names.

`offsets/N` names the newest entry that batch N has read: {"logOffset": 7}, or "-" before the first. The next batch reads
all later entries at once, whatever `maxFilesPerTrigger` is. Without these entries, Spark lists the files again and divides
them as before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import OffsetLog
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json

_ENTRY = re.compile(rf"{names.SOURCES}/(?P<folder>[^/]{{1,255}})/(?P<entry>[0-9]{{1,18}})(?:\.compact)?")

_NONE = -1
"""In place of an entry: the batch has read no entry of the source."""


@dataclass(frozen=True)
class Positions:
    """The newest entry that a batch has read from the log of each file source.

    entries    by folder; -1 if the batch has read none
    uncertain  the folders whose newest read entry may be an earlier one: several sources can be theirs
    """

    entries: Mapping[str, int]
    uncertain: frozenset[str] = frozenset()


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


def positions(offsets: OffsetLog, newest: OffsetLog, paths: Collection[str]) -> Positions:
    """Find the position of a batch in each file source.

    offsets  of the batch
    newest   of the newest batch that has begun: a source that the batch has not read yet is a file source in them
    paths    of the checkpoint
    """
    read = _read(offsets, newest)
    folders = _newest_entries(paths)
    if _has_ids(offsets, folders):
        return Positions({source: then for source, (then, _) in read.items()})
    return _matched(list(read.values()), folders)


def folder_of(source: str, offsets: OffsetLog, newest: OffsetLog, paths: Collection[str]) -> str | None:
    """Return the folder of a file source; None if that is unknown. `source`: in `offsets.by_source`."""
    folders = _newest_entries(paths)
    if _has_ids(offsets, folders):
        return source
    read = _read(offsets, newest)
    number = list(read).index(source)
    possible = [folder for folder in folders if _can_be(list(read.values()), folders, number, folder)]
    return possible[0] if len(possible) == 1 else None


def is_complete(folder: str, entry: int, paths: Collection[str]) -> bool:
    """Return whether a source's log has the entry and all earlier ones among these paths. Spark may have merged some into a
    later one, and deleted them."""
    for earlier in range(entry, _NONE, -1):
        path = f"{names.SOURCES}/{folder}/{earlier}"
        if f"{path}.compact" in paths:
            return True
        if path not in paths:
            return False
    return True


def _read(offsets: OffsetLog, newest: OffsetLog) -> dict[str, tuple[int, int]]:
    """The newest entry that each file source has read at the batch, and at the newest one, by source."""
    is_one_version = (offsets.source_metadata is None) == (newest.source_metadata is None)
    then, now = offsets.by_source, newest.by_source if is_one_version else {}
    found: dict[str, tuple[int, int]] = {}
    for source in {**then, **now}:
        entries = [position(offset[source]) if source in offset else None for offset in (then, now)]
        if entries != [None, None]:
            found[source] = (
                _NONE if entries[0] is None else entries[0],
                max(entry for entry in (*entries, _NONE) if entry is not None),
            )
    return found


def _newest_entries(paths: Collection[str]) -> dict[str, int]:
    """The newest entry in each folder."""
    found: dict[str, int] = {}
    for path in paths:
        if (parsed := parse(path)) is not None:
            folder, entry = parsed
            found[folder] = max(found.get(folder, _NONE), entry)
    return found


def _has_ids(offsets: OffsetLog, folders: Collection[str]) -> bool:
    """Return whether the sources of these offsets are named as their folders."""
    return offsets.source_metadata is not None or all(folder.isdecimal() for folder in folders)


# -- named sources in offsets of v1 ------------------------------------------------------------------------------------

_Read = Sequence[tuple[int, int]]
"""The newest entry that each file source has read at the batch, and at the newest one."""


def _matched(read: _Read, folders: Mapping[str, int]) -> Positions:
    """Match sources with folders. A folder has all entries that its source has read, so most matches are impossible."""
    entries: dict[str, int] = {}
    uncertain: set[str] = set()
    for folder, newest in folders.items():
        found = {read[number][0] for number in range(len(read)) if _can_be(read, folders, number, folder)}
        # The log of another kind of source may look like that of a file source. A copy needs all of its entries.
        is_other = _can_match([of for _, of in read], _of_others(folders, folder))
        later = {min(newest, entry) for entry in found} | ({newest} if is_other or not found else set())
        entries[folder] = max(later)
        if len(later) > 1 or not (found or is_other):
            uncertain.add(folder)
    return Positions(entries, frozenset(uncertain))


def _can_be(read: _Read, folders: Mapping[str, int], number: int, folder: str) -> bool:
    """Return whether a folder can be that of a source, so that the other sources can have the other folders."""
    others = [of for other, (_, of) in enumerate(read) if other != number]
    return read[number][1] <= folders[folder] and _can_match(others, _of_others(folders, folder))


def _of_others(folders: Mapping[str, int], folder: str) -> Iterator[int]:
    return (newest for other, newest in folders.items() if other != folder)


def _can_match(read: Collection[int], newest: Iterable[int]) -> bool:
    """Return whether each source can have a folder of its own with the entries that it has read."""
    largest = sorted(newest, reverse=True)[: len(read)]
    return len(largest) == len(read) and all(map(int.__le__, sorted(read, reverse=True), largest))
