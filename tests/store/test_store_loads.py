"""The requests that loads and commits of a store make, and loads of versions on several branches."""

from __future__ import annotations

from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage
from tests.support.hosts import STORE, History, Host, column
from tests.support.stores import ONLY_V2, current

# --- costs of a load ----------------------------------------------------------------------------------------------


def test_a_warm_load_makes_no_request(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    assert host.advance_local_copy(history.versions[1])
    with host.load(history.head) as store:
        metrics = store.load_report
        assert (metrics.base, metrics.replayed_changelogs, metrics.replayed_keys) == (BaseKind.LOCAL, 2, 5)
        assert (metrics.requests, metrics.fetched_bytes, metrics.fetched_files) == (0, 0, 0)
    assert host.advance_local_copy(history.head)
    with host.load(history.head) as store:
        metrics = store.load_report
        assert (metrics.base, metrics.replayed_changelogs, metrics.requests) == (BaseKind.LOCAL, 0, 0)
        assert dict(store.scan()) == history.states[-1]


def test_a_copy_on_another_branch_or_ahead_is_unchanged(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    twin = host.commit(history.versions[2], {b"twin": b"1"})
    assert host.advance_local_copy(history.head)
    assert not host.advance_local_copy(twin)
    assert not host.advance_local_copy(history.versions[1])
    assert host.read(history.head) == history.states[-1]
    if host.structure is Structure.V2:
        assert host.read(twin) == {**history.states[2], b"twin": b"1"}


def test_a_cold_load_fetches_each_changelog_once_after_one_listing(host: Host, other: Host, storage: Storage) -> None:
    history = History()
    history.grow(host, 5)
    sizes = [entry.size_bytes for entry in storage.list(STORE.folder)]
    with other.load(history.head) as store:
        metrics = store.load_report
    assert metrics.base is BaseKind.NOTHING
    assert (metrics.replayed_changelogs, metrics.fetched_files, metrics.requests) == (5, 5, 6)
    assert metrics.fetched_bytes == sum(sizes)
    assert metrics.replayed_keys == 9
    assert not metrics.used_private_copy
    assert not metrics.replaced_damaged_copy


def test_a_host_fetches_only_the_changelogs_that_another_host_wrote(host: Host, other: Host) -> None:
    history = History()
    history.grow(host, 4)
    other.read(history.head)
    history.grow(host, 2)
    with other.load(history.head) as store:
        metrics = store.load_report
        assert dict(store.scan()) == history.states[-1]
    assert (metrics.base, metrics.replayed_changelogs, metrics.fetched_files) == (BaseKind.LOCAL, 2, 2)
    assert metrics.requests == 2


def test_a_commit_is_one_request_of_the_reported_size(host: Host, storage: Storage) -> None:
    version = host.commit(EMPTY, {b"a": b"1"})
    with host.load(version) as store:
        store.put(column([b"aa", b"b"]), column([b"11", None]))
        before = storage.requests.snapshot()
        second = store.commit()
        spent = storage.requests.since(before)
    metrics = store.commit_metrics
    is_v1 = host.structure is Structure.V1
    # In structure V1 it has looked whether its batch is committed already.
    assert (spent.create, spent.replace, spent.stat, spent.total) == ((0, 1, 1, 2) if is_v1 else (1, 0, 0, 1))
    assert (metrics.requests, metrics.changed_keys, metrics.changed_bytes) == (spent.total, 2, 8 + 2 + 2 + 8 + 1)
    entry = storage.stat(STORE.changelog(second))
    assert entry is not None
    assert metrics.uploaded_bytes == entry.size_bytes == spent.bytes_written
    assert (metrics.lineage_versions, metrics.tail_changelogs) == (0 if is_v1 else 1, 2)


# --- branches -----------------------------------------------------------------------------------------------------


@ONLY_V2
def test_twins_that_commit_the_same_version_do_not_affect_each_other(host: Host, other: Host) -> None:
    base = host.commit(EMPTY, {b"a": b"1"})
    mine, theirs = host.load(base), other.load(base)
    mine.put(column([b"a"]), column([b"mine"]))
    theirs.put(column([b"a"]), column([b"theirs"]))
    won, lost = theirs.commit(), mine.commit()
    assert won.version == lost.version
    assert host.read(won) == other.read(won) == {b"a": b"theirs"}
    last = host.commit(won, {b"b": b"2"})
    assert other.read(last) == {b"a": b"theirs", b"b": b"2"}


def test_a_copy_on_another_branch_is_rebuilt(host: Host) -> None:
    base = host.commit(EMPTY, {b"a": b"1"})
    dead = host.commit(base, {b"dead": b"x"})
    assert host.read(dead) == {b"a": b"1", b"dead": b"x"}
    assert host.advance_local_copy(dead)
    on_dead_branch = current(host)
    assert host.holds() == dead
    head = host.commit(base, {b"b": b"2"})
    head = host.commit(head, {b"c": b"3"})
    with host.load(head) as store:
        assert dict(store.scan()) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert current(host) != on_dead_branch


def test_a_zombie_that_loads_an_older_version_harms_neither_itself_nor_its_successor(host: Host) -> None:
    history = History()
    history.grow(host, 4)
    assert host.advance_local_copy(history.head)
    successor = host.load(history.head)
    zombie = host.load(history.versions[2])
    assert host.holds() == history.versions[2], "the zombie was to build its version in the copy's place"
    assert dict(zombie.scan()) == history.states[2]
    assert dict(successor.scan()) == history.states[4]
    zombie.put(column([b"counter"]), column([b"zombie"]))
    late = zombie.commit()
    successor.put(column([b"counter"]), column([b"5"]))
    head = successor.commit()
    assert host.read(head) == {**history.states[4], b"counter": b"5"}
    if host.structure is Structure.V2:
        assert host.read(late)[b"counter"] == b"zombie"
    assert host.read(history.versions[3]) == history.states[3]


def test_an_open_version_stays_readable_while_others_replace_the_copy(host: Host) -> None:
    history = History()
    history.grow(host, 6)
    assert host.advance_local_copy(history.head)
    reader = host.load(history.versions[6])
    rows = reader.scan()
    first = next(rows)
    served = {current(host)}
    for number in (2, 5, 1, 4):
        assert host.read(history.versions[number]) == history.states[number]
        assert host.advance_local_copy(history.versions[number])
        served.add(current(host))
    assert len(served) >= 3, "the copy was to be replaced, and moved forward in between"
    assert dict([first, *rows]) == history.states[6]
    assert reader.get(column([b"counter"])).to_pylist() == [b"6"]
    reader.abort()
