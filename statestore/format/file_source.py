"""The log of a file source: `sources/<number>/<entry>`, and `<entry>.compact` with all entries so far.

`offsets/N` names the newest entry that batch N has read: {"logOffset": 7}. The next batch reads all later entries at once,
whatever `maxFilesPerTrigger` is. Without these entries, Spark lists the files again and divides them as before.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from statestore.format import names
from statestore.format.untrusted import BAD_VALUES, parsed_json

_ENTRY = re.compile(rf"{names.SOURCES}/(?P<source>[0-9]{{1,9}})/(?P<entry>[0-9]{{1,18}})(?:\.compact)?")


def position(offset: str) -> int | None:
    """Return the newest entry that an offset of a source names; None for another kind of source. Raises nothing."""
    try:
        body = parsed_json(offset.encode())
        entry = body["logOffset"]
        return entry if isinstance(entry, int) and len(body) == 1 else None
    except BAD_VALUES:
        return None


def parse(path: str) -> tuple[int, int] | None:
    """Return the source and the entry of a path; None for another path."""
    match = _ENTRY.fullmatch(path)
    return (int(match["source"]), int(match["entry"])) if match else None


def is_complete(source: int, entry: int, paths: Collection[str]) -> bool:
    """Return whether a source's log has the entry and all earlier ones among these paths. Spark may have merged some into a
    later one, and deleted them."""
    for earlier in range(entry, -1, -1):
        path = f"{names.SOURCES}/{source}/{earlier}"
        if f"{path}.compact" in paths:
            return True
        if path not in paths:
            return False
    return True
