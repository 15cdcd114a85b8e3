"""Loads of a store whose changelogs are missing or damaged."""

from __future__ import annotations

import re

import pytest

from statekeeper.statestore.base.errors import UnknownFormatVersion, VersionNotLoadable
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import cached_changelog
from statekeeper.statestore.storage import Storage
from tests.support.changelogs import written
from tests.support.hosts import STORE, History, Host
from tests.support.stores import GONE, ONLY_V2, flip, overwrite


def test_a_damaged_cached_changelog_is_fetched_again(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    assert host.advance_local_copy(history.versions[1])
    for version, damaged in zip(history.versions[2:], (b"garbage", b""), strict=True):
        (host.folder / "changelogs" / cached_changelog(version)).write_bytes(damaged)
    with host.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.fetched_files == 2


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
def test_an_error_for_a_changelog_names_file_store_version_and_the_loadable_versions(
    host: Host, other: Host, storage: Storage, damage: str, cold: bool
) -> None:
    history = History()
    history.grow(host, 6)
    if not cold:
        other.read(history.versions[1])
    for number in (5, 3):
        path = STORE.changelog(history.versions[number])
        if damage == "missing":
            storage.delete([path])
        elif damage == "flipped":
            flip(storage, path, 60)
        else:
            overwrite(storage, path, storage.read(path)[: 0 if damage == "empty" else -30])
    with pytest.raises(VersionNotLoadable) as raised:
        other.load(history.head)
    assert raised.value.path == STORE.changelog(history.versions[3])
    assert f"batch 5 of {STORE} cannot be loaded" in str(raised.value)
    assert "newest batch that can be loaded is 1" in str(raised.value)
    assert other.read(history.versions[2]) == history.states[2]


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_a_missing_or_damaged_head_is_named_and_the_version_before_loads(
    host: Host, other: Host, storage: Storage, damage: str
) -> None:
    history = History()
    history.grow(host, 3)
    path = STORE.changelog(history.head)
    storage.delete([path])
    if damage == "garbage":
        storage.create(path, b"garbage")
    with pytest.raises(VersionNotLoadable) as raised:
        other.load(history.head)
    assert raised.value.path == path
    assert "batch 2" in str(raised.value)
    assert re.search(r"(back to batch|can be loaded is) 1\b", str(raised.value))
    assert other.read(history.versions[2]) == history.states[2]


def test_without_the_first_changelog_only_the_empty_version_loads(host: Host, other: Host, storage: Storage) -> None:
    history = History()
    history.grow(host, 2)
    storage.delete([STORE.changelog(history.versions[1])])
    with pytest.raises(VersionNotLoadable, match="no batch can be loaded"):
        other.load(history.head)


@ONLY_V2
def test_a_version_that_never_existed_is_named(host: Host) -> None:
    with pytest.raises(VersionNotLoadable, match=GONE.id):
        host.load(GONE)


def test_a_restored_file_is_used_again(host: Host, other: Host, storage: Storage) -> None:
    history = History()
    history.grow(host, 3)
    path = STORE.changelog(history.versions[2])
    good = storage.read(path)
    flip(storage, path, 100)
    with pytest.raises(VersionNotLoadable):
        other.load(history.head)
    overwrite(storage, path, good)
    assert other.read(history.head) == history.states[-1]


@ONLY_V2
def test_a_changelog_with_an_id_and_no_lineage_is_rejected_with_a_typed_error(host: Host, storage: Storage) -> None:

    storage.create(STORE.changelog(GONE), written([(b"a", b"b")], Header(None)))
    with pytest.raises(UnknownFormatVersion, match="no lineage in its header"):
        host.load(GONE)
