"""Each request of a batch with a batch log, with each fault: state and sink never diverge, and a re-run ends the batch.

The batch is that of a driver and its tasks without Spark: two stores, a sink that holds one attempt of a batch.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import batch_log
from statekeeper.statestore.format.batch_log import Place
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.root.state_root import Done, Pending, StateRoot
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from statekeeper.statestore.storage.batch_logs import LoggedStorage
from statekeeper.statestore.store.state_store import BatchLogPart, StateStore, StoreAddress
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.hosts import column
from tests.support.roots import IDS, QUERY, outer, wanted

BATCHES = 2


@dataclass
class Job:
    """A driver with its tasks. `sink` and `root` survive a crash; `folder`, the local copies, do not need to."""

    folder: Path
    sink: dict[int, str] = field(default_factory=dict)
    states: dict[str, tuple[dict[bytes, bytes], ...]] = field(default_factory=dict)
    most_bytes: int = 1 << 20
    partitions: int = 2

    def run(self, storage: Storage, batch: int) -> None:
        """One batch as a fresh driver runs it. The rows depend on the attempt, as those of an update that is not
        deterministic."""
        root = StateRoot.open(storage, wanted(partitions=self.partitions), batch=batch, ids=IDS)
        begin = root.begin(batch, outer(batch))
        if isinstance(begin, Done):
            return
        held = self.sink.get(batch)
        if held is not None:
            pending = root.pending(batch, held)
            assert pending is not None, "the sink holds an attempt without a record"
            root.commit(batch, pending.ids)
            return
        attempt = IDS.fresh()
        part = BatchLogPart(batch_log.tag_of(attempt), self.most_bytes)
        versions, members, states = [], {}, []
        for partition, base in enumerate(begin.bases[0]):
            version, member, state = self._task(storage, partition, base, part, attempt.encode())
            versions.append(version)
            states.append(state)
            if member is not None:
                members[StorePath(0, partition), version] = member
        self.states[attempt] = tuple(states)
        self._record(root, batch, attempt, tuple(str(version.id) for version in versions), members)
        self.sink[batch] = attempt
        root.commit(batch, {0: tuple(str(version.id) for version in versions)})

    def _record(
        self, root: StateRoot, batch: int, attempt: str, ids: tuple[str, ...], members: dict[Place, bytes]
    ) -> None:
        pending = Pending(
            batch=batch,
            attempt=attempt,
            root_id=root.binding.root_id,
            query_id=QUERY,
            sources=outer(batch).sources,
            schema=root.schema(),
            ids={0: ids},
        )
        root.write_pending(pending, members)

    def _task(
        self, storage: Storage, partition: int, base: VersionId, part: BatchLogPart | None, value: bytes
    ) -> tuple[VersionId, bytes | None, dict[bytes, bytes]]:
        with self.load(storage, partition, base, part) as store:
            store.put(column([b"batch %d" % base.version, b"newest"]), column([value, value * 10]))
            state = dict(store.scan())
            return store.commit(), store.member, state

    def load(self, storage: Storage, partition: int, base: VersionId, part: BatchLogPart | None = None) -> StateStore:
        return StateStore.load(
            StoreAddress(StorePath(0, partition), self.folder / str(partition)),
            base,
            storage=storage,
            clock=SystemClock(),
            ids=RandomIds(),
            batch_log=part,
        )

    def check(self, storage: Storage, batch: int) -> None:
        """Each committed batch holds the state of the attempt that the sink holds."""
        for number in range(batch + 1):
            heads = catalog.heads_at(storage, number).heads
            for partition in range(self.partitions):
                with self.load(storage, partition, heads[StorePath(0, partition)]) as store:
                    assert dict(store.scan()) == self.states[self.sink[number]][partition], (number, partition)


@pytest.mark.parametrize("storage_spec", ["local", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("most_bytes", [1 << 20, 0], ids=["small changelogs", "large changelogs"])
def test_a_crash_at_any_request_of_a_batch_leaves_state_and_sink_equal(
    storage_spec: StorageSpec, tmp_path: Path, most_bytes: int
) -> None:
    def at(number: str) -> Storage:
        return open_storage(StorageSpec(f"{storage_spec.url}-{number}", storage_spec.options))

    def job_before_last_batch(number: str) -> Job:
        job = Job(tmp_path / number, most_bytes=most_bytes)
        for batch in range(BATCHES - 1):
            job.run(at(number), batch)
        return job

    rehearsal = FaultyStorage(at("rehearsal").inner)  # type: ignore[attr-defined]
    job_before_last_batch("rehearsal").run(LoggedStorage(rehearsal), BATCHES - 1)
    cases = crash_matrix(rehearsal.trace)
    for number, (request, fault) in enumerate(cases):
        job = job_before_last_batch(str(number))
        faulty = FaultyStorage(at(str(number)).inner, {request.number: fault})  # type: ignore[attr-defined]
        with suppress(SimulatedCrash, StorageError):
            job.run(LoggedStorage(faulty), BATCHES - 1)
        assert len(faulty.trace) > request.number, f"{request} was not reached"
        job.run(at(str(number)), BATCHES - 1)
        job.check(at(str(number)), BATCHES - 1)
        fresh = Job(tmp_path / f"fresh {number}", sink=job.sink, states=job.states)
        fresh.check(at(str(number)), BATCHES - 1)
    assert len(cases) >= 20
    print(f"{len(rehearsal.trace)} requests, {len(cases)} cases")


def test_a_batch_sends_the_same_requests_whatever_the_number_of_stores(tmp_path: Path) -> None:
    totals = []
    for partitions in (2, 16):
        storage = open_storage(str(tmp_path / str(partitions)))
        job = Job(tmp_path / f"host {partitions}", partitions=partitions)
        for batch in range(4):
            before = storage.requests.snapshot()
            job.run(storage, batch)
        print(storage.requests.since(before))
        totals.append(storage.requests.since(before).total)
    assert totals[0] == totals[1]
