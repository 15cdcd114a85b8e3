"""Operators whose number of partitions differs from their metadata."""

from __future__ import annotations

import pytest

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.logs import SHUFFLE_PARTITIONS, STATE_CONF, CommitLog, OffsetLog
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.operators import OperatorMetadata, StoreInfo, has_one_partition
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, gather, judge
from statekeeper.statestore.storage import Storage, StorageSpec
from tests.support.checkpoints import NO_ROWS, ROOT_ID

IDS = [f"0badc0de-0000-4000-8000-00000000000{n}" for n in range(10)]
ALL_ROWS, BY_KEY = '{"type":"struct","fields":[]}', NO_ROWS.key_json


@pytest.fixture
def storage_spec(tmp_path: object) -> StorageSpec:
    return StorageSpec(f"{tmp_path}/root")


def begin(storage: Storage, name: str = operators.AGGREGATION, key_json: str = BY_KEY) -> None:
    """A checkpoint of Spark's whose operator says that it has two partitions."""
    storage.create(names.QUERY_METADATA, logs.encode_metadata(ROOT_ID))
    info = StoreInfo(name=names.DEFAULT_STORE, prefix_columns=0, partitions=2)
    storage.create(names.operator_metadata(0), operators.encode_operator(OperatorMetadata(0, name, (info,))))
    storage.create(names.state_schema(0), operators.encode_schema(key_json, BY_KEY))


def commit(storage: Storage, batch: int, ids: int | None, pinned: int = 2) -> None:
    """Commit a batch with this number of partitions, or without ids."""
    conf = {**STATE_CONF, SHUFFLE_PARTITIONS: str(pinned)}
    storage.create(
        names.offsets(batch), logs.encode_offsets(OffsetLog(watermark_ms=0, timestamp_ms=0, conf=conf, sources=()))
    )
    named = None if ids is None else {0: tuple((IDS[partition],) for partition in range(ids))}
    storage.create(names.commits(batch), logs.encode_commit(CommitLog(0, named)))


def partitions(storage: Storage, batch: int | None = None) -> int:
    heads = catalog.heads(storage) if batch is None else catalog.heads_at(storage, batch)
    assert heads is not None
    return len(heads.heads)


@pytest.mark.parametrize("ids", [None, 1])
@pytest.mark.parametrize(("name", "key_json"), [(operators.AGGREGATION, ALL_ROWS), ("globalLimit", BY_KEY)])
def test_global_operators_have_one_partition(storage: Storage, name: str, key_json: str, ids: int | None) -> None:
    begin(storage, name, key_json)
    commit(storage, 0, ids)
    assert partitions(storage) == 1
    found = judge(gather(storage))
    assert {finding.kind for finding in found.findings} == {FindingKind.NO_BASE}
    assert [store.store for store in found.stores] == [StorePath(0, 0)]


def test_an_unreadable_schema_does_not_determine_partitions() -> None:
    assert has_one_partition(operators.AGGREGATION, ALL_ROWS)
    for key_json in (BY_KEY, "{", "[]", None):
        assert not has_one_partition(operators.AGGREGATION, key_json)


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_repartitioned_checkpoint_has_other_stores_from_that_batch_on(storage: Storage, is_v2: bool) -> None:
    begin(storage)
    for batch, pinned in enumerate((2, 2, 3, 3)):
        commit(storage, batch, pinned if is_v2 else None, pinned)
    assert [partitions(storage, batch) for batch in range(4)] == [2, 2, 3, 3]
    log = catalog.commit_log(storage)
    assert log is not None
    assert [len(log.at(batch) or ()) for batch in range(4)] == [2, 2, 3, 3]
    of_stores = [log.of_store(StorePath(0, partition)) for partition in range(3)]
    assert [next(n for n in sorted(one) if log.is_first(one, n)) for one in of_stores] == [1, 1, 3]
    assert sorted(log.of_store(StorePath(0, 2))) == [3, 4]
    assert not any(finding.kind is FindingKind.COMMIT_AT_ODDS for finding in judge(gather(storage)).findings)


def test_a_removed_partition_is_reported_when_no_commit_names_it(storage: Storage) -> None:
    begin(storage)
    gone = StorePath(0, 2)
    storage.create(gone.changelog(VersionId(1, IDS[2])), b"of a batch that ran in three partitions")
    for batch, pinned in enumerate((3, 2, 2)):
        commit(storage, batch, pinned, pinned)

    def undescribed() -> list[StorePath | None]:
        return [one.store for one in judge(gather(storage)).findings if one.kind is FindingKind.STORE_UNDESCRIBED]

    assert undescribed() == []
    storage.delete([names.commits(0), names.offsets(0)])
    assert undescribed() == [gone]


@pytest.mark.parametrize("named", [1, 3])
def test_a_commit_without_other_evidence_is_rejected_with_a_typed_error(storage: Storage, named: int) -> None:
    begin(storage)
    commit(storage, 0, 2)
    commit(storage, 1, named)
    with pytest.raises(CorruptFile, match=rf"commits/1: names {named} partitions of operator 0, .* describes 2"):
        catalog.heads(storage)
    [finding] = [f for f in judge(gather(storage)).findings if f.kind is FindingKind.COMMIT_AT_ODDS]
    assert finding.file == "commits/1"


def test_with_unreadable_offsets_the_metadata_applies(storage: Storage) -> None:
    begin(storage)
    for batch in range(2):
        commit(storage, batch, None, 3)
        storage.replace(names.offsets(batch), b"v1\n{")
    assert partitions(storage) == 2


@pytest.mark.parametrize("converted", [None, 2])
def test_a_batch_has_the_provider_of_its_offset_log(storage: Storage, converted: int | None) -> None:
    """A conversion of the default provider's state changes it from a batch on."""
    begin(storage)
    for batch in range(4):
        commit(storage, batch, None)
        if converted is None or batch < converted:
            data = storage.read(names.offsets(batch))
            default = data.replace(Provider.ROCKSDB.class_name.encode(), Provider.HDFS_BACKED.class_name.encode())
            storage.replace(names.offsets(batch), default)
    suffixes = []
    for batch in range(4):
        [first, _] = catalog.heads_at(storage, batch).heads
        suffixes.append(first.changelog(VersionId(batch + 1)).rpartition(".")[2])
    assert suffixes == (["delta"] * 4 if converted is None else ["delta", "delta", "changelog", "changelog"])


def test_the_provider_needs_no_offset_log_for_each_batch(storage: Storage) -> None:
    begin(storage)
    for batch in range(9):
        commit(storage, batch, None)
    before = storage.requests.snapshot()
    assert catalog.commit_log(storage, down_to=0) is not None
    assert storage.requests.since(before).read == 9 + 2 + 2, "the commits, two offset logs, the metadata and the schema"
