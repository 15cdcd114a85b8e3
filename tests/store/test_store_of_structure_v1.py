"""Structure V1, in which attempts at one version replace each other's file: detection by digests."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import VersionNotLoadable
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.changelog_header import Header, read_header
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.hosts import STORE, History, Host, column
from tests.support.snapshots import publish_snapshot


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


@pytest.fixture
def hosts(storage: Storage, tmp_path: Path) -> list[Host]:
    return [Host(storage, tmp_path / name, structure=Structure.V1) for name in "abcd"]


def attempt(host: Host, base: VersionId, value: bytes) -> VersionId:
    return host.commit(base, {b"counter": value})


def confirm(storage: Storage, version: VersionId) -> None:
    """Confirm an attempt, as the driver does."""
    digests = {STORE.operator: ((str(version.digest),),) * (STORE.partition + 1)}
    storage.create(names.commits(version.version - 1), logs.encode_commit(logs.CommitLog(0, None, digests)))


def test_a_version_is_a_spark_changelog_named_by_its_number(hosts: list[Host], storage: Storage) -> None:
    version = attempt(hosts[0], EMPTY, b"1")
    assert [entry.path for entry in storage.list("")] == ["state/0/3/1.changelog"]
    assert read_header(storage.read("state/0/3/1.changelog"), "x") == Header(lineage=None)
    assert version.id is None
    assert version.digest is not None


def test_the_same_changes_on_the_same_base_have_the_same_digest_on_any_host(hosts: list[Host]) -> None:
    first = [attempt(host, EMPTY, b"1") for host in hosts[:2]]
    assert first[0].is_same(first[1])
    second = [attempt(host, first[0], b"2") for host in hosts[:3]]
    assert second[0].is_same(second[1])
    assert second[0].is_same(second[2])
    assert hosts[3].read(second[0]) == {b"counter": b"2"}


def test_a_zombie_with_the_same_changes_is_harmless(hosts: list[Host], storage: Storage) -> None:
    history = History()
    history.grow(hosts[0], 4)
    zombie = hosts[1].load(history.versions[2])
    zombie.put(column([b"key 003", b"counter", b"key 000"]), column([b"born in 3", b"3", None]))
    assert zombie.commit().is_same(history.versions[3])
    assert hosts[2].read(history.head) == history.states[-1]


def test_the_next_load_from_storage_detects_a_zombie_that_replaced_a_confirmed_changelog(
    hosts: list[Host], storage: Storage
) -> None:
    history = History()
    history.grow(hosts[0], 2)
    # It has looked whether its batch is committed, and falls asleep.
    zombie = attempt(hosts[1], history.head, b"of the zombie")
    late = storage.read(STORE.changelog(zombie))
    history.grow(hosts[0], 3)
    good = storage.read(STORE.changelog(zombie))
    storage.replace(STORE.changelog(zombie), late)

    for host in (hosts[2], hosts[1]):  # a host without local state, and the zombie's, whose cache has its changelog
        for _ in range(2):
            with pytest.raises(VersionNotLoadable) as raised:
                host.load(history.head)
            assert raised.value.path == STORE.changelog(history.versions[3])
            assert "batch 4 of state/0/3 cannot be loaded" in str(raised.value)
            assert "overwritten with other changes by an attempt that was not committed" in str(raised.value)
            assert "newest batch that can be loaded is 1" in str(raised.value)
        assert host.read(history.versions[2]) == history.states[2]
    # The host with the confirmed changelog continues, also for the others.
    assert hosts[0].read(history.head) == history.states[-1]
    kept = hosts[0].folder / "changelogs" / names.cached_changelog(history.versions[3])
    assert kept.read_bytes() == good
    storage.replace(STORE.changelog(zombie), kept.read_bytes())
    for host in hosts:
        assert host.read(history.head) == history.states[-1]


def test_a_zombie_that_finds_its_batch_committed_writes_nothing(hosts: list[Host], storage: Storage) -> None:
    history = History()
    history.grow(hosts[0], 2)
    zombie = hosts[1].load(history.head)
    zombie.put(column([b"counter"]), column([b"of the zombie"]))
    history.grow(hosts[0], 1)
    before = storage.read(STORE.changelog(history.head))
    assert not zombie.commit().is_same(history.head)
    assert storage.read(STORE.changelog(history.head)) == before
    assert hosts[2].read(history.head) == history.states[-1]


def test_a_host_with_the_losing_attempt_loads_the_confirmed_one(hosts: list[Host], storage: Storage) -> None:
    base = attempt(hosts[0], EMPTY, b"1")
    lost = attempt(hosts[0], base, b"lost")
    assert hosts[0].read(lost) == {b"counter": b"lost"}
    assert hosts[0].advance_local_copy(lost)
    assert hosts[0].holds().is_same(lost)
    won = attempt(hosts[1], base, b"won")
    head = attempt(hosts[1], won, b"3")
    assert not won.is_same(lost)
    for host in hosts[:3]:
        assert host.read(won) == {b"counter": b"won"}
        assert host.read(head) == {b"counter": b"3"}


def test_a_host_with_both_attempts_loads_the_confirmed_one_without_a_request(hosts: list[Host]) -> None:
    base = attempt(hosts[0], EMPTY, b"1")
    won = attempt(hosts[0], base, b"won")
    attempt(hosts[0], base, b"lost")
    with hosts[0].load(won) as store:
        assert dict(store.scan()) == {b"counter": b"won"}
        assert (store.load_report.base, store.load_report.requests) == (BaseKind.LOCAL, 0)


def test_a_host_with_both_attempts_at_an_intermediate_version_uses_the_one_in_storage(hosts: list[Host]) -> None:
    base = attempt(hosts[0], EMPTY, b"1")
    assert hosts[0].advance_local_copy(base)
    for value in (b"lost", b"won"):
        middle = attempt(hosts[0], base, value)
    head = attempt(hosts[1], middle, b"3")
    with hosts[0].load(head) as store:
        assert dict(store.scan()) == {b"counter": b"3"}
        assert store.load_report.base is BaseKind.LOCAL


def test_a_snapshot_without_a_digest_in_a_commit_is_no_base_and_is_reported(
    hosts: list[Host], storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(hosts[0], 6)
    for number in (2, 4):
        publish_snapshot(storage, STORE, history.versions[number], history.states[number], tmp_path)
    storage.delete([names.commits(3)])
    with hosts[1].load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert (store.load_report.base, store.load_report.replayed_changelogs) == (BaseKind.SNAPSHOT, 4)
        assert store.load_report.skipped_snapshots == ("state/0/3/4.zip: commits/3 has no digest of its version",)
    storage.delete([names.commits(1), STORE.changelog(VersionId(1))])
    with pytest.raises(
        VersionNotLoadable, match=r"1\.changelog: does not exist .*snapshots: state/0/3/4\.zip: commits/3 has no digest"
    ):
        hosts[2].load(history.head)


def test_a_chain_can_start_at_any_version_with_a_snapshot(hosts: list[Host], storage: Storage, tmp_path: Path) -> None:
    """As a switchover from structure V2 leaves it."""
    start = VersionId(40, digest="12345678-0000-4000-8000-000000000000")
    publish_snapshot(storage, STORE, start, {b"counter": b"39"}, tmp_path)
    confirm(storage, start)
    version = attempt(hosts[0], start, b"40")
    assert hosts[0].read(version) == hosts[1].read(version) == {b"counter": b"40"}
