"""Rewinds that are rejected with a typed error, before anything is changed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import (
    CorruptFile,
    NotACheckpoint,
    RefusedAsUnsafe,
    RootHeld,
    StatekeeperError,
    VersionNotLoadable,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import file_source, logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rollback import rewind
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.clones import made, own
from tests.support.maintainers import MAINTAINER
from tests.support.repairs import contents
from tests.support.rewinds import planned, rewound


@pytest.fixture
def root(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


def refusals(storage: Storage, batch: int, scratch: Path) -> list[StatekeeperError]:
    """The refusals of a plan; its execution raises the first one and changes nothing."""
    before = contents(storage)
    found = list(planned(storage, batch, scratch).refusals)
    if found:
        with pytest.raises(type(found[0])):
            rewound(storage, batch, scratch)
    assert contents(storage) == before
    return found


def test_a_batch_that_is_not_in_the_commit_log_is_rejected(root: Storage, tmp_path: Path) -> None:
    own(root, tmp_path)
    with pytest.raises(VersionNotLoadable, match="not committed"):
        planned(root, 8, tmp_path)
    with pytest.raises(NotACheckpoint):
        planned(open_storage(str(tmp_path / "empty")), 0, tmp_path)


def test_a_store_with_a_missing_changelog_at_the_target_is_rejected(root: Storage, tmp_path: Path) -> None:
    own(root, tmp_path)
    heads = catalog.heads_at(root, 6)
    store, version = next(iter(heads.heads.items()))
    root.delete([store.changelog(version)])
    (found,) = refusals(root, 6, tmp_path)
    assert isinstance(found, VersionNotLoadable)
    assert found.path == store.changelog(version)
    assert "audit" in str(found.hint)


@pytest.mark.parametrize("structure", list(Structure))
def test_a_store_with_damaged_bytes_at_the_target_is_rejected(
    root: Storage, tmp_path: Path, structure: Structure
) -> None:
    """Listings do not show this: the plan restores each store."""
    made(root, tmp_path, "native", structure, in_batch_logs=False)
    heads = catalog.heads_at(root, 6)
    store, version = next(iter(heads.heads.items()))
    path = store.changelog(version)
    body = bytearray(root.read(path))
    body[-12:] = b"\xff" * 12
    root.replace(path, bytes(body))
    (found,) = refusals(root, 6, tmp_path)
    assert isinstance(found, VersionNotLoadable)
    assert str(store) in str(found)


def test_a_target_before_a_switchover_is_rejected(root: Storage, tmp_path: Path) -> None:
    query = own(root, tmp_path)
    query.switch()
    query.grow(2)
    found = refusals(root, 6, tmp_path)
    assert isinstance(found[0], RefusedAsUnsafe)
    assert "moved the checkpoint to structure V1" in str(found[0])
    assert "switch" in str(found[0].hint)


@pytest.mark.parametrize("batch", [4, 5])
def test_a_target_without_the_offsets_that_spark_reads_is_rejected(root: Storage, tmp_path: Path, batch: int) -> None:
    own(root, tmp_path)
    root.delete([names.offsets(batch)])
    if batch == 5:
        with pytest.raises(StatekeeperError, match="offsets/5"):
            planned(root, 5, tmp_path)
    else:
        (found,) = refusals(root, 5, tmp_path)
        assert found.path == names.offsets(4)


def test_a_configured_mode_other_than_full_is_rejected(root: Storage, tmp_path: Path) -> None:
    own(root, tmp_path)
    prepared = verbs.rewind.plan(root, Policies(mode=Mode.SNAPSHOTS), MAINTAINER, 5, scratch=tmp_path)
    assert [type(found) for found in prepared.refusals] == [RefusedAsUnsafe]


def test_a_query_that_may_run_is_rejected(root: Storage, tmp_path: Path) -> None:
    own(root, tmp_path)
    before = contents(root)
    prepared = planned(root, 5, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="may be running"):
        verbs.rewind.execute(root, prepared, MAINTAINER, run=MAINTAINER.ids.fresh(), stopped=False, scratch=tmp_path)
    assert contents(root) == before


def test_another_maintainer_excludes_a_rewind(root: Storage, tmp_path: Path) -> None:
    own(root, tmp_path)
    before = contents(root)
    with (
        lease.held(root, "gc", run=RandomIds().fresh(), holder="another", clock=SystemClock()),
        pytest.raises(RootHeld),
    ):
        rewound(root, 5, tmp_path)
    assert contents(root) == before


def _begin_at(root: Storage, batch: int, seconds: int) -> None:
    path = names.offsets(batch)
    log = logs.parse_offsets(root.read(path), path)
    root.replace(path, logs.encode_offsets(dataclasses.replace(log, timestamp_ms=seconds * 1000)))


def test_a_time_selects_the_newest_batch_that_was_committed_before(root: Storage, tmp_path: Path) -> None:
    own(root, tmp_path)
    for batch in range(8):
        _begin_at(root, batch, 1000 + batch)
        os.utime(tmp_path / "root" / names.commits(batch), (1000.0 + batch, 1000.0 + batch))
    assert rewind.batch_at(root, 1005.0) == 5
    assert rewind.batch_at(root, 1005.9) == 5
    assert rewind.batch_at(root, 9999.0) == 7
    with pytest.raises(VersionNotLoadable, match="1970-01-01 00:16:40Z"):
        rewind.batch_at(root, 999.0)
    os.utime(tmp_path / "root" / names.commits(3), (5000.0, 5000.0))
    with pytest.raises(RefusedAsUnsafe, match="not in the order of the batches"):
        rewind.batch_at(root, 1005.0)


def test_a_time_is_rejected_if_the_files_of_the_commits_are_newer_than_their_batches(
    root: Storage, tmp_path: Path
) -> None:
    """As after the undo of a rewind: batches 6 and 7 were committed at 1006 and 1007, and restored much later."""
    own(root, tmp_path)
    for batch in range(8):
        _begin_at(root, batch, 1000 + batch)
        time = 1000.5 + batch if batch < 6 else 9000.0 + batch
        os.utime(tmp_path / "root" / names.commits(batch), (time, time))
    assert rewind.batch_at(root, 1004.9) == 4
    with pytest.raises(RefusedAsUnsafe, match="was written again after its batch was committed"):
        rewind.batch_at(root, 1008.0)


@pytest.mark.parametrize(
    "line", [b'{"txn":{"appId":"a query","version":"x"}}', b'{"txn":7}', b'{"txn":{', b'{"commitInfo":[]}']
)
def test_a_delta_log_with_bad_values_is_rejected(root: Storage, tmp_path: Path, line: bytes) -> None:
    own(root, tmp_path)
    table = open_storage(str(tmp_path / "table"))
    table.create(f"_delta_log/{0:020}.json", line)
    with pytest.raises(CorruptFile, match="cannot be parsed"):
        planned(root, 5, tmp_path, sink=table)


def test_a_folder_without_a_delta_log_and_a_log_without_the_batch_are_rejected(root: Storage, tmp_path: Path) -> None:
    own(root, tmp_path)
    table = open_storage(str(tmp_path / "table"))
    with pytest.raises(NotACheckpoint, match="no Delta table"):
        planned(root, 5, tmp_path, sink=table)
    table.create(f"_delta_log/{7:020}.json", b'{"txn":{"appId":"statekeeper-a query","version":7}}')
    with pytest.raises(RefusedAsUnsafe, match="begins at version 7"):
        planned(root, 5, tmp_path, sink=table)
    table.create(f"_delta_log/{6:020}.json", b'{"commitInfo":{"operation":"OPTIMIZE"}}')
    table.create(f"_delta_log/{8:020}.json", b'{"commitInfo":{"operation":"DELETE"}}')
    table.create(f"_delta_log/{5:020}.json", b'{"txn":{"appId":"statekeeper-a query","version":5}}')
    found = planned(root, 5, tmp_path, sink=table).sink
    assert found is not None
    assert (found.version, found.newest, found.holds, found.others) == (6, 8, 7, ("8 DELETE",))
    assert found.command.endswith("TO VERSION AS OF 6")


def test_a_table_is_restored_to_before_the_batches_of_the_former_ids(root: Storage, tmp_path: Path) -> None:
    """Batches 0 to 7 with the first id, a rewind to 5, the table restored, batches 6 and 7 with the second id."""
    query = own(root, tmp_path)
    table = open_storage(str(tmp_path / "table"))

    def write(action: str) -> None:
        table.create(f"_delta_log/{len(table.list('')):020}.json", f' {{ "{action}}}'.encode())

    def batches(first: int, query_id: str) -> None:
        for batch in range(first, 8):
            write(f'txn":{{"appId":"statekeeper-{query_id}","version":{batch}}}')

    batches(0, "a query")
    second = "0badc0de-0000-4000-8000-00000000000a"
    rewound(root, 5, tmp_path, query_id=second)
    again = planned(root, 5, tmp_path, sink=table)
    assert again.plan.actions == ()
    assert again.sink is not None
    assert (again.sink.version, again.sink.holds) == (5, 7)
    write('commitInfo":{"operation":"RESTORE"}')
    batches(6, second)
    query.forget_after(5)
    query.grow(2)
    for target, version in ((6, 9), (5, 5), (2, 2)):
        found = planned(root, target, tmp_path, sink=table).sink
        assert found is not None
        assert found.version == version, target


@pytest.mark.parametrize(
    ("present", "entry", "expected"),
    [
        (["0", "1", "2"], 2, True),
        (["0", "2"], 2, False),
        (["9.compact", "10", "11", "12", "19.compact"], 12, True),
        (["9.compact", "11", "12", "19.compact"], 12, False),
        (["19.compact"], 12, False),
        ([], -1, True),
    ],
)
def test_a_source_log_is_complete_back_to_a_merged_entry(present: list[str], entry: int, expected: bool) -> None:
    """Spark deletes merged entries by age, so that a part of them can be left."""
    assert file_source.is_complete("0", entry, {f"sources/0/{name}" for name in present}) is expected
