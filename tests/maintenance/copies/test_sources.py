"""Clones and rewinds of queries with named file sources (Spark 4.2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.errors import RefusedAsUnsafe
from statestore.format import names
from statestore.storage import Storage
from tests.support.clones import Roots, cloned, own
from tests.support.file_sources import read_files
from tests.support.mirrors import mirrored
from tests.support.rewinds import planned, rewound


def entries(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list(names.SOURCES)]


def test_a_named_file_source_is_cloned_and_rewound_like_a_numbered_one(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    read_files(source, "clicks")
    cloned(source, destination, tmp_path, batch=5)
    of_five = [f"{names.SOURCES}/clicks/{entry}" for entry in range(6)]
    assert entries(destination) == of_five
    (need,) = planned(source, 5, tmp_path).gathered.sources
    assert need.needs == "the 2 files that later batches have read"
    rewound(source, 5, tmp_path)
    assert entries(source) == of_five


def test_the_whole_logs_of_several_named_file_sources_are_cloned(disks: Roots, tmp_path: Path) -> None:
    """The offsets do not name the sources. The clone reads the later entries in its next batch."""
    source, destination = disks
    own(source, tmp_path)
    read_files(source, "orders", "clicks")
    cloned(source, destination, tmp_path, batch=5)
    assert entries(destination) == entries(source)
    assert len(entries(destination)) == 16


def test_several_named_file_sources_are_not_matched_by_their_order(disks: Roots, tmp_path: Path) -> None:
    """A mirror could keep entries that the source writes again after a rewind, and a rewind would keep later entries."""
    source, destination = disks
    own(source, tmp_path)
    read_files(source, "orders", "clicks")
    with pytest.raises(RefusedAsUnsafe, match="several named sources"):
        mirrored(source, destination, tmp_path)
    prepared = planned(source, 5, tmp_path)
    assert [type(error) for error in prepared.refusals] == [RefusedAsUnsafe]
    assert {need.missing for need in prepared.gathered.sources} == {None}
    assert all("unknown" in need.needs for need in prepared.gathered.sources)
