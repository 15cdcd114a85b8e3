"""Clones, mirrors and rewinds of queries with named file sources (Spark 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.clones import Roots, cloned, own
from tests.support.file_sources import read_files, read_up_to
from tests.support.maintained_query import Query
from tests.support.mirrors import mirrored
from tests.support.rewinds import planned, rewound, undone


def entries(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list(names.SOURCES)]


def test_a_named_file_source_is_cloned_and_rewound_like_a_numbered_one(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    read_files(source, "clicks")
    cloned(source, destination, tmp_path, batch=5)
    of_five = [f"{names.SOURCES}/clicks/{entry}" for entry in range(6)]
    assert entries(destination) == of_five
    (need,) = planned(source, 5, tmp_path).sources
    assert need.needs == "the 2 files that later batches have read"
    rewound(source, 5, tmp_path)
    assert entries(source) == of_five


Progress = Sequence[Mapping[str, int | None]]
"""The newest entry of each source in each batch, in the order of the query."""

ONE_BEHIND: Progress = [{"orders": batch, "clicks": batch - 1 if batch else None} for batch in range(8)]
MEETING: Progress = [{"orders": min(batch, 6), "clicks": max(batch - 1, 0)} for batch in range(8)]
"""At the newest batch, both have read as many entries: the offsets of earlier batches fit both ways."""


def made(storage: Storage, folder: Path, progress: Progress, *, with_ids: bool = False) -> Query:
    query = own(storage, folder)
    for batch, newest in enumerate(progress):
        read_up_to(storage, batch, newest, with_ids=with_ids)
    return query


def read(newest: Mapping[str, int | None], source: str) -> int:
    """Return the number of entries that a source has read."""
    last = newest[source]
    return 0 if last is None else last + 1


def expected(newest: Mapping[str, int | None]) -> list[str]:
    return [f"{names.SOURCES}/{source}/{entry}" for source in sorted(newest) for entry in range(read(newest, source))]


@pytest.mark.parametrize(
    ("progress", "with_ids"),
    [(ONE_BEHIND, False), (ONE_BEHIND, True), (MEETING, True)],
    ids=["one behind", "one behind, with ids", "meeting, with ids"],
)
def test_copies_and_rewinds_have_the_entries_of_each_named_file_source(
    disks: Roots, tmp_path: Path, progress: Progress, with_ids: bool
) -> None:
    source, destination = disks
    made(source, tmp_path, progress, with_ids=with_ids)
    mirrored(source, destination, tmp_path)
    assert entries(destination) == expected(progress[7])
    for batch in (4, 0):
        copy = open_storage(str(tmp_path / f"copy {batch}"))
        cloned(source, copy, tmp_path, batch=batch)
        assert entries(copy) == expected(progress[batch])
    needs = planned(source, 4, tmp_path).sources
    assert [need.needs for need in needs] == [
        f"the {read(progress[7], name) - read(progress[4], name)} files that later batches have read"
        for name in progress[4]
    ]
    run = rewound(source, 4, tmp_path)
    assert entries(source) == expected(progress[4])
    undone(source, run)
    assert entries(source) == expected(progress[7])


def test_a_source_that_a_later_batch_added_has_no_entry_before(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    progress = [{"clicks": batch} if batch < 5 else {"clicks": batch, "orders": batch - 5} for batch in range(8)]
    made(source, tmp_path, progress, with_ids=True)
    cloned(source, destination, tmp_path, batch=4)
    rewound(source, 4, tmp_path)
    assert entries(source) == entries(destination) == expected(progress[4])


def test_a_copy_and_a_rewind_keep_entries_that_the_batch_may_have_read(disks: Roots, tmp_path: Path) -> None:
    """The offsets of v1 do not name the sources. The query reads the other files of these entries in its next batch."""
    source, destination = disks
    made(source, tmp_path, MEETING)
    cloned(source, destination, tmp_path, batch=4)
    kept = expected({"clicks": 4, "orders": 4})
    assert entries(destination) == kept
    needs = planned(source, 4, tmp_path).sources
    assert {need.missing for need in needs} == {None}
    assert all("unknown" in need.needs for need in needs)
    rewound(source, 4, tmp_path)
    assert entries(source) == kept


def test_a_mirror_waits_until_it_knows_the_entries_of_its_batch(disks: Roots, tmp_path: Path) -> None:
    """It could keep entries that the source writes again after a rewind."""
    source, destination = disks
    query = made(source, tmp_path, MEETING)
    with pytest.raises(RefusedAsUnsafe, match="sources/clicks: has entries that batch 4 may or may not have read"):
        mirrored(source, destination, tmp_path, batch=4)
    assert entries(destination) == []
    query.grow(1)
    read_up_to(source, 8, {"orders": 7, "clicks": 6})
    mirrored(source, destination, tmp_path, batch=4)
    assert entries(destination) == expected(MEETING[4])
