"""Finds checkpoints near a path that is none: users often name the parent folder, or a folder inside a checkpoint."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage

_MOST_FOLDERS = 50
"""Folders to examine below the path: one request each."""


def checkpoints_near(spec: StorageSpec) -> list[str]:
    """URLs of checkpoints one level above and one level below. A location that cannot be listed counts as none."""
    found = []
    url = spec.url.rstrip("/")
    parent = url.rpartition("/")[0]
    if "://" not in url and (not parent or url.endswith("..")):
        parent = str(Path(url).resolve().parent)  # of a name without a folder, for example `.`
    with suppress(StatekeeperError, ValueError):
        if parent and _is_checkpoint(open_storage(replace(spec, url=parent)), ""):
            found.append(parent)
    with suppress(StatekeeperError, ValueError):
        storage = open_storage(spec)
        children = sorted(storage.folders(""))[:_MOST_FOLDERS]
        found += [f"{url}/{child}" for child in children if _is_checkpoint(storage, child)]
    return found


def _is_checkpoint(storage: Storage, folder: str) -> bool:
    return {names.OFFSETS, names.COMMITS} <= set(storage.folders(folder))
