"""Changes that a load serves from memory over the local copy, and the advance of the copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import LocalStateDamaged
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.store.loading.changelogs import Changelogs
from statekeeper.statestore.store.loading.loader import AHEAD
from statekeeper.statestore.store.state_store import StoreLimits
from tests.support.hosts import STORE, Changes, History, Host, State, changed, column

TABLES_TO_MERGE = 8


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(open_storage(str(tmp_path / "root")), tmp_path / "host")


def tables_at_level_0(host: Host) -> int:
    with host.copy() as database:
        return int(database._rdict.property_value("rocksdb.num-files-at-level0") or 0)


def numbered(batch: int) -> Changes:
    """Return the changes of a batch: a put, an overwrite, and a delete of the key of the batch before."""
    return {b"key %04d" % batch: b"x" * 20, b"counter": b"%d" % batch, b"key %04d" % (batch - 1): None}


# -- changes in memory -------------------------------------------------------------------------------------------------


def grown(host: Host, *batches: Changes) -> History:
    history = History()
    for changes in batches:
        history.commit(host, changes)
    return history


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        pytest.param("changelogs", 3, id="three changelogs"),
        pytest.param("records", 3 * 3, id="nine records"),
        # The end mark is a record's worth of bytes that every file has.
        pytest.param("uncompressed_bytes", None, id="plain bytes"),
    ],
)
def test_the_copy_advances_only_beyond_each_limit(host: Host, limit: str, value: int | None) -> None:
    history = grown(host, *map(numbered, range(10, 16)))
    with host.load(history.versions[2]) as store:
        assert store.load_report.replayed_changelogs <= 2
    assert host.advance_local_copy(history.versions[2])
    if value is None:
        in_three = [piece for v in history.versions[3:6] for piece in plain_pieces(host, v)]
        value = sum(in_three)
    host = replace(host, limits=StoreLimits(ahead=replace(AHEAD, **{limit: value})))
    assert host.read(history.versions[5]) == history.states[5]
    assert host.holds() == history.versions[2]
    assert host.read(history.versions[6]) == history.states[6]
    assert host.holds() == history.versions[6]


def plain_pieces(host: Host, version: object) -> list[int]:
    from statekeeper.statestore.format.changelog import read_changelog
    from tests.support.hosts import STORE

    data = host.storage.read(STORE.changelog(version))  # type: ignore[arg-type]
    return [len(piece.buffer) for piece in read_changelog(data, "a changelog")[1]]


def test_a_small_file_that_expands_to_a_large_size_is_not_held_in_memory(host: Host) -> None:
    """Zeros: a few hundred times smaller in the changelog than in memory."""
    state: State = {b"small": b"1"}
    head = host.commit(EMPTY, state)
    assert host.advance_local_copy(head)
    for count, is_served_from_memory in ((5, True), (20, False)):
        changes = {b"%04d" % number: bytes(1024 * 1024) for number in range(count)}
        head, before = host.commit(head, changes), head
        state = changed(state, changes)
        with host.load(head) as store:
            assert bool(store._loaded.ahead) == is_served_from_memory
            assert store.get(column([b"0000", b"small"])).to_pylist() == [state[b"0000"], b"1"]
            assert store.needs_compaction == is_served_from_memory, "five megabytes are enough to be written down"
        assert host.holds() == (before if is_served_from_memory else head)


def test_an_advance_of_the_copy_clears_the_changes_in_memory_and_reads_see_all_of_them(host: Host) -> None:
    history = grown(host, {b"a": b"1", b"b": b"1", b"c": b"1"})
    assert host.advance_local_copy(history.head)
    history.commit(host, {b"a": b"2", b"b": None})
    with host.load(history.head) as store:
        assert store._loaded.ahead == {b"a": b"2", b"b": None}
        store._pending._spill_keys = 2
        store.put(column([b"d", b"c"]), column([b"3", None]))
        assert store._pending._spilled is not None
        assert store._loaded.ahead == {}
        assert dict(store.scan()) == {b"a": b"2", b"d": b"3"}
        assert store.get(column([b"a", b"b", b"c", b"d"])).to_pylist() == [b"2", None, None, b"3"]
        version = store.commit()
    assert host.read(version) == {b"a": b"2", b"d": b"3"}


def test_a_copy_that_another_process_advances_between_open_and_read_is_opened_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = grown(host, *map(numbered, range(4)))
    assert host.advance_local_copy(history.versions[1])
    honest = Changelogs.small
    moved: list[bool] = []

    def late(self: Changelogs, *arguments: object, **limits: int) -> object:
        if not moved:
            moved.append(True)
            assert Host(host.storage, host.folder).advance_local_copy(history.head)
        return honest(self, *arguments, **limits)  # type: ignore[arg-type]

    monkeypatch.setattr(Changelogs, "small", late)
    with host.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.requests == 0, "what was removed from the cache is in the copy"
    assert moved


# -- how the copy moves on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("records_ahead", [None, 1], ids=["served from memory", "too much for memory"])
def test_a_copy_has_few_tables_after_many_batches(tmp_path: Path, hosts: int, records_ahead: int | None) -> None:
    limits = StoreLimits(ahead=AHEAD if records_ahead is None else replace(AHEAD, records=records_ahead))
    storage = open_storage(str(tmp_path / "root"))
    taking_turns = [Host(storage, tmp_path / f"host {number}", limits=limits) for number in range(hosts)]
    head, state = EMPTY, {}
    most = 0
    for batch in range(60):
        host = taking_turns[batch % hosts]
        head = host.batch(head, numbered(batch))
        state = changed(state, numbered(batch))
        most = max(most, tables_at_level_0(host))
    assert 3 <= most <= TABLES_TO_MERGE
    for host in taking_turns:
        assert host.read(head) == state
        assert len(list((host.folder / "changelogs").iterdir())) <= 17


def test_a_copy_advances_every_sixteen_versions_in_turn_with_other_partitions_and_only_to_a_base(host: Host) -> None:
    head = EMPTY
    held = []
    for batch in range(40):
        before = head
        head = host.batch(head, numbered(batch))
        held.append(host.holds().version)
        assert host.holds() in (before, EMPTY) or host.holds().version < before.version
    first = 16 - STORE.partition
    assert held == [0] * first + [first] * 16 + [first + 16] * (40 - first - 16)


def flip_a_data_block(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)


def test_a_copy_that_cannot_be_merged_is_reported_and_rebuilt(host: Host) -> None:
    history = History()
    for batch in range(TABLES_TO_MERGE - 1):
        history.commit(host, numbered(batch))
        assert host.read(history.head) == history.states[-1]
        assert host.advance_local_copy(history.head)
    with host.copy() as database:
        spoiled = database.path
    history.commit(host, numbered(TABLES_TO_MERGE))
    # The newest one holds the marker, which is read first.
    for path in sorted(spoiled.glob("*.sst"))[:-1]:
        flip_a_data_block(path)
    with pytest.raises(LocalStateDamaged, match="orruption"):
        host.advance_local_copy(history.head)
    assert not (host.folder / "current").exists()
    assert list((host.folder / "changelogs").glob("*.changelog")) == []
    assert host.read(history.head) == history.states[-1]
    with host.copy() as database:
        assert database.path != spoiled
