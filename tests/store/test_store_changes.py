"""The changes of a streaming task: its reads and scans, commits and aborts; compared with a dict."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import UnsupportedType
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.pending_changes import SPILL_KEYS
from tests.support.hosts import Changes, History, Host, State, changed, column
from tests.support.stores import names

# --- reads of a task ----------------------------------------------------------------------------------------------


def test_puts_and_deletes_are_visible_before_and_after_the_commit(host: Host) -> None:
    first = host.commit(EMPTY, {b"a": b"1", b"b": b"2", b"c": b"3"})
    with host.load(first) as store:
        store.put(column([b"b", b"d"]), column([b"22", b"4"]))
        store.delete(column([b"a", b"none"]))
        assert store.get(column([b"a", b"b", b"c", b"d", b"none", b"b"])).to_pylist() == [
            None,
            b"22",
            b"3",
            b"4",
            None,
            b"22",
        ]
        assert list(store.scan()) == [(b"b", b"22"), (b"c", b"3"), (b"d", b"4")]
        second = store.commit()
    assert host.read(first) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert host.read(second) == {b"b": b"22", b"c": b"3", b"d": b"4"}


def test_a_null_value_deletes_and_the_last_change_of_a_key_wins(host: Host) -> None:
    with host.load(EMPTY) as store:
        store.put(column([b"a", b"b", b"a", b"b"]), column([b"1", None, None, b"2"]))
        assert store.get(column([b"a", b"b"])).to_pylist() == [None, b"2"]
        version = store.commit()
    assert host.read(version) == {b"b": b"2"}


def test_a_scan_of_a_prefix_returns_only_its_keys_in_order(host: Host) -> None:
    version = host.commit(EMPTY, {key: key for key in (b"a", b"b", b"ba", b"b\xff", b"b\xff\xff", b"c", b"")})
    with host.load(version) as store:
        store.put(column([b"b", b"bb", b"c"]), column([None, b"new", b"x"]))
        assert [key for key, _ in store.scan(b"b")] == [b"ba", b"bb", b"b\xff", b"b\xff\xff"]
        assert [key for key, _ in store.scan(b"b\xff")] == [b"b\xff", b"b\xff\xff"]
        assert [key for key, _ in store.scan(b"bz")] == []
        assert [key for key, _ in store.scan()] == [b"", b"a", b"ba", b"bb", b"b\xff", b"b\xff\xff", b"c"]


@pytest.mark.parametrize("ranges", [[(b"b", b"c"), (b"a", b"b")], [(b"a", b"c"), (b"b", b"d")]])
def test_a_scan_of_ranges_that_do_not_ascend_or_overlap_is_refused(
    host: Host, ranges: list[tuple[bytes, bytes]]
) -> None:
    with host.load(EMPTY) as store, pytest.raises(ValueError, match="do not ascend, or overlap"):
        store.scan_ranges(ranges)


def test_puts_during_a_scan_do_not_affect_it(host: Host) -> None:
    version = host.commit(EMPTY, {b"%02d" % n: b"old" for n in range(20)})
    with host.load(version) as store:
        store.put(column([b"05"]), column([b"new"]))
        seen = {}
        for key, value in store.scan():
            seen[key] = value
            store.put(column([key]), column([value + b"!"]))
        assert seen == {b"%02d" % n: b"new" if n == 5 else b"old" for n in range(20)}
        assert dict(store.scan())[b"05"] == b"new!"


def test_an_abort_discards_all_changes(host: Host, storage: Storage) -> None:
    version = host.commit(EMPTY, {b"a": b"1"})
    before = names(storage)
    with host.load(version) as store:
        store.put(column([b"a"]), column([b"2"]))
    assert names(storage) == before
    assert host.read(version) == {b"a": b"1"}
    assert not list((host.folder / "changelogs").glob("*.tmp"))
    store.abort()


def test_a_commit_without_changes_creates_a_version(host: Host, other: Host) -> None:
    history = History()
    for _ in range(3):
        history.commit(host, {})
    history.commit(host, {b"a": b"1"})
    history.commit(host, {})
    assert other.read(history.head) == {b"a": b"1"}
    with host.load(history.head) as store:
        head = store.commit()
    assert host.read(head) == {b"a": b"1"}


def test_a_committed_store_accepts_no_more_changes(host: Host) -> None:
    store = host.load(EMPTY)
    store.put(column([b"a"]), column([b"1"]))
    version = store.commit()
    with pytest.raises(ValueError, match="committed or aborted"):
        store.put(column([b"a"]), column([b"2"]))
    with pytest.raises(ValueError, match="committed or aborted"):
        store.commit()
    assert host.read(version) == {b"a": b"1"}


@pytest.mark.parametrize(
    "key", [b"\xff\xff\xff\xff", b"\xff\xff\xff\xff statekeeper: what this copy holds", b"\xff" * 9]
)
def test_a_reserved_key_of_the_local_copy_is_rejected_before_the_commit(host: Host, key: bytes) -> None:
    with host.load(EMPTY) as store:
        with pytest.raises(UnsupportedType, match="ff ff ff ff"):
            store.put(column([b"a", key]), column([b"1", b"2"]))
        assert store.get(column([b"a"])).to_pylist() == [None]
        version = store.commit()
    assert host.read(version) == {}


def test_keys_and_values_of_different_lengths_are_rejected(host: Host) -> None:
    with host.load(EMPTY) as store, pytest.raises(ValueError, match=r"length|arguments"):
        store.put(column([b"a", b"b"]), column([b"1"]))


# --- against a model ----------------------------------------------------------------------------------------------


keys = st.binary(max_size=3).filter(lambda key: not key.startswith(b"\xff\xff\xff\xff"))


batches = st.dictionaries(keys, st.none() | st.binary(max_size=5), max_size=8)


@given(
    st.lists(st.tuples(batches, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.binary(max_size=2),
)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_alternating_hosts_equal_a_dict(
    storage: Storage,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[Changes, bool, bool, bool]],
    prefix: bytes,
) -> None:
    folder = tmp_path_factory.mktemp("hosts")
    hosts = [Host(storage, folder / "a"), Host(storage, folder / "b")]
    history = History()
    for changes, which, fails, keeps_house in steps:
        if keeps_house:
            hosts[which].advance_local_copy(history.head)
        with hosts[which].load(history.head) as store:
            assert dict(store.scan()) == history.states[-1]
            store.put(column(list(changes)), column(list(changes.values())))
            after = changed(history.states[-1], changes)
            wanted = sorted({*after, *changes, b"none"})
            assert store.get(column(wanted)).to_pylist() == [after.get(key) for key in wanted]
            assert list(store.scan(prefix)) == sorted(item for item in after.items() if item[0].startswith(prefix))
            if fails:
                continue
            history.versions.append(store.commit())
            history.states.append(after)
    for host in (*hosts, Host(storage, folder / "c")):
        for version, state in zip(history.versions, history.states, strict=True):
            assert host.read(version) == state


def test_changes_larger_than_memory_are_visible_and_committed(host: Host) -> None:
    base: State = {b"%06d" % n: b"old" for n in range(100)}
    version = host.commit(EMPTY, base)
    numbers = range(50, SPILL_KEYS + 150)
    changes: dict[bytes, bytes | None] = {b"%06d" % n: None if n % 3 else b"new" for n in numbers}
    with host.load(version) as store:
        pairs = list(changes.items())
        for first in range(0, len(pairs), 30_000):
            keys, values = zip(*pairs[first : first + 30_000], strict=True)
            store.put(column(list(keys)), column(list(values)))
        after = changed(base, changes)
        assert store._pending._spilled is not None
        assert dict(store.scan()) == after
        assert store.get(column(sorted(changes))).to_pylist() == [after.get(key) for key in sorted(changes)]
        version = store.commit()
    assert host.read(version) == after
    assert not list((host.folder / "changelogs").glob("*.tmp"))
