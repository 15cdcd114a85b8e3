"""Reads and damages the files of a store."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint.lineage import Lineage
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage
from tests.support.hosts import Host

GONE = VersionId(1, "00000000-0000-4000-8000-000000000000")


ONLY_V2 = pytest.mark.parametrize("structure", [Structure.V2])


def carried(host: Host, versions: Collection[VersionId]) -> Lineage:
    """The lineage of a store: structure V1 has none."""
    return () if host.structure is Structure.V1 else tuple(versions)


def overwrite(storage: Storage, path: str, data: bytes) -> None:
    storage.delete([path])
    storage.create(path, data)


def flip(storage: Storage, path: str, position: int) -> None:
    data = bytearray(storage.read(path))
    data[position] ^= 0xFF
    overwrite(storage, path, bytes(data))


def names(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("")]


def current(host: Host) -> Path:
    return host.folder / (host.folder / "current").read_text()
