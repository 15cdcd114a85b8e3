"""Each request of a batch 0 that starts from initial rows, with each fault: state and sink never diverge.

The batch is that of a driver and its task without Spark: two partitions, initial rows and input rows in one stream, and
changelogs that are uploaded in parts. The sink holds one attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.task.initial_rows import InitialColumns, InitialRows
from statekeeper.pipelines.task.partition_group import PartitionGroup
from statekeeper.pipelines.task.partitioning import Partitioning
from statekeeper.pipelines.task.reports import PartitionReport, initial_digest
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StorageError, WrongInitial
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.names import DEFAULT_STORE, EMPTY, StorePath, VersionId
from statekeeper.statestore.format.state_rows import decode_keys, decode_values
from statekeeper.statestore.root.state_root import Done, Pending, StateRoot
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from statekeeper.statestore.store.state_store import StateStore, StoreAddress, StoreLimits
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.roots import IDS, QUERY, outer, wanted

PART_BYTES = 4_000
KEYS = 800
PARTITIONS = 2
ROWS = pa.schema([("key", pa.int64())])
STATE = pa.schema([("count", pa.int64())])


def count(rows: pa.Table, state: pa.Table) -> Update:
    held = dict(zip(state.column("key").to_pylist(), state.column("count").to_pylist(), strict=True))
    keys = rows.column("key").to_pylist()
    new = pa.table({"key": keys, "count": [held.get(key, 0) + 1 for key in keys]})
    return Update(new.select(["key"]), new)


OPERATOR = StatefulOperator(["key"], ["key"], state=STATE, output=ROWS, update=count)


def routed(partition: int, more: int = 0) -> list[pa.RecordBatch]:
    """The rows of one partition as Spark sorts them: initial rows, then input. `more`: added to each initial count."""
    keys = np.arange(partition * KEYS, (partition + 1) * KEYS)
    seen = keys[::4]
    columns = {
        "key": np.concatenate([keys, seen]),
        "group": pa.array(np.full(len(keys) + len(seen), partition, np.int32)),
        "store": pa.array([0] * len(keys) + [None] * len(seen), pa.int32()),
        "count": pa.array([int(key) * 10 + more for key in keys] + [None] * len(seen), pa.int64()),
    }
    return pa.table(columns).combine_chunks().to_batches(max_chunksize=150)


EXPECTED = {key: key * 10 + (key % 4 == 0) for key in range(PARTITIONS * KEYS)}


@dataclass
class Job:
    """A driver with its task. `sink` and the root survive a crash."""

    folder: Path
    sink: dict[int, str] = field(default_factory=dict)

    def run(self, storage: Storage, more: int = 0) -> None:
        """Batch 0 as a fresh driver runs it."""
        root = StateRoot.open(storage, replace(wanted(partitions=PARTITIONS), initial=True), batch=0, ids=IDS)
        begin = root.begin(0, outer(0))
        if isinstance(begin, Done):
            return
        held = self.sink.get(0)
        if held is not None:
            pending = root.pending(0, held)
            assert pending is not None, "the sink holds an attempt without a record"
            root.commit(0, pending.ids)
            return
        versions, digest = self._task(storage, more)
        attempt = IDS.fresh()
        ids = {0: tuple(str(version.id) for version in versions)}
        root.write_pending(
            Pending(
                batch=0,
                attempt=attempt,
                root_id=root.binding.root_id,
                query_id=QUERY,
                sources=outer(0).sources,
                schema=root.schema(),
                ids=ids,
                initial=digest,
            )
        )
        self.sink[0] = attempt
        root.commit(0, ids)

    def _task(self, storage: Storage, more: int) -> tuple[list[VersionId], str | None]:
        initial = InitialRows(OPERATOR, ROWS, InitialColumns((DEFAULT_STORE,)))
        with ExitStack() as stack:
            stores = {
                number: {DEFAULT_STORE: stack.enter_context(self.load(storage, number, EMPTY))}
                for number in range(PARTITIONS)
            }
            group = PartitionGroup(
                OPERATOR,
                ROWS,
                stores,
                partitioning=Partitioning(PARTITIONS, PARTITIONS, 1),
                times=BatchTimes(batch=0, time_ms=0),
                initial=initial,
            )
            for _ in group.process_all(batch for number in range(PARTITIONS) for batch in routed(number, more)):
                pass
            reports = [
                PartitionReport(
                    partition=number,
                    host="",
                    rows_in=0,
                    stores=(),
                    peak_memory_bytes=0,
                    initial=initial.digests.get(number, RowsDigest()),
                )
                for number in range(PARTITIONS)
            ]
            return [stores[number][DEFAULT_STORE].next for number in range(PARTITIONS)], initial_digest(reports)

    def load(self, storage: Storage, partition: int, base: VersionId) -> StateStore:
        return StateStore.load(
            StoreAddress(StorePath(0, partition), self.folder / str(partition)),
            base,
            storage=storage,
            clock=SystemClock(),
            ids=RandomIds(),
            limits=StoreLimits(part_bytes=PART_BYTES),
        )

    def state(self, storage: Storage) -> dict[int, int]:
        found: dict[int, int] = {}
        heads = catalog.heads_at(storage, 0).heads
        for partition in range(PARTITIONS):
            with self.load(storage, partition, heads[StorePath(0, partition)]) as store:
                pairs = list(store.scan())
            keys = decode_keys(pa.array([key for key, _ in pairs], pa.large_binary()), ROWS).column("key")
            counts = decode_values(pa.array([value for _, value in pairs], pa.large_binary()), STATE).column("count")
            found |= dict(zip(keys.to_pylist(), counts.to_pylist(), strict=True))
        return found


@pytest.mark.parametrize("storage_spec", ["local", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
def test_a_crash_at_any_request_of_batch_0_loses_no_initial_row_and_applies_none_twice(
    storage_spec: StorageSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART_BYTES)

    def at(number: str) -> Storage:
        return open_storage(StorageSpec(f"{storage_spec.url}-{number}", storage_spec.options))

    rehearsal = FaultyStorage(at("rehearsal"))
    done = Job(tmp_path / "rehearsal")
    done.run(rehearsal)
    assert done.state(at("rehearsal")) == EXPECTED
    cases = crash_matrix(rehearsal.trace)
    for number, (request, fault) in enumerate(cases):
        job = Job(tmp_path / str(number))
        faulty = FaultyStorage(at(str(number)), {request.number: fault})
        with suppress(SimulatedCrash, StorageError):
            job.run(faulty)
        assert len(faulty.trace) > request.number, f"{request} was not reached"
        job.run(at(str(number)))
        assert job.state(at(str(number))) == EXPECTED, (request, fault)
        assert Job(tmp_path / f"fresh {number}").state(at(str(number))) == EXPECTED, (request, fault)
    assert len(cases) >= 60
    record_property("crash_matrix_cases", len(cases))
    print(f"{len(rehearsal.trace)} requests, {len(cases)} cases")


def test_a_crash_before_the_record_allows_other_rows_and_a_crash_after_it_does_not(tmp_path: Path) -> None:
    rehearsal = FaultyStorage(open_storage(str(tmp_path / "rehearsal")))
    Job(tmp_path / "host").run(rehearsal)
    [record] = [
        one.number for one in rehearsal.trace if one.path.startswith("_statekeeper/pending/") and "-" in one.path
    ]
    assert record > 10
    for number, fault in enumerate(crash_matrix([rehearsal.trace[record]])):
        storage, job = open_storage(str(tmp_path / str(number))), Job(tmp_path / f"host {number}")
        with suppress(SimulatedCrash, StorageError):
            job.run(FaultyStorage(storage, {record: fault[1]}))
        has_record = bool(storage.list("_statekeeper/pending"))
        if has_record:
            with pytest.raises(WrongInitial, match="1600 rows, this attempt: 1600 rows with another digest"):
                job.run(storage, more=1)
            job.run(storage)
            assert job.state(storage) == EXPECTED
        else:
            job.run(storage, more=1)
            assert job.state(storage) == {key: count + 1 for key, count in EXPECTED.items()}
