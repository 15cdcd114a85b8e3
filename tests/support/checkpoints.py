"""A checkpoint of several stores, written without Spark like a job does, and the model of its rows."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.format import batch_log, logs, names, operators
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.store.state_store import BatchLogPart, StateStore, StoreAddress
from tests.support.hosts import Changes, State, changed, column

_UNKNOWN = '{"type":"struct","fields":[{"name":"x","type":"of a later Spark","nullable":true,"metadata":{}}]}'
NO_ROWS = binding.StoreSchema("counts", _UNKNOWN, _UNKNOWN)
"""Of states whose keys and values are any bytes: nothing decodes them."""
ROOT_ID = "5ba7c0de-0000-4000-8000-000000000000"


def copy_files(source: Storage, target: Storage) -> Storage:
    """Copy what a storage lists into an empty one. Files of the local disk are not synchronized to it."""
    paths = [entry.path for entry in source.list("")]
    from_folder, to_folder = (Path(unquote(one.url.removeprefix("file://"))) for one in (source, target))
    if not target.url.startswith("file:"):
        is_local = source.url.startswith("file:")
        at_once(lambda path: target.create(path, from_folder / path if is_local else source.read(path)), paths)
        return target
    if not source.url.startswith("file:"):
        at_once(lambda path: target.create(path, source.read(path)), paths)
        return target
    for path in paths:
        place = to_folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(from_folder / path, place)
    return target


class Checkpoint:
    """One operator with `partitions` stores. The (N+1)th call of `batch` creates batch N."""

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        *,
        partitions: int = 2,
        schema: binding.StoreSchema = NO_ROWS,
        structure: Structure = Structure.V2,
        in_batch_logs: bool = False,
    ) -> None:
        self.in_batch_logs = in_batch_logs
        self.storage = storage
        self.structure = structure
        self.stores = [StorePath(0, partition) for partition in range(partitions)]
        self.versions: list[list[VersionId]] = [[EMPTY] * partitions]
        self.states: list[list[State]] = [[{} for _ in range(partitions)]]
        self._folder = folder
        bound = binding.Binding(
            root_id=ROOT_ID, query_id="a query", partitions=partitions, key_groups=64, stores=(schema,)
        )
        storage.create(names.BINDING, binding.encode_binding(bound))
        storage.create(names.QUERY_METADATA, logs.encode_metadata(bound.root_id))
        storage.create(names.state_schema(0), operators.encode_schema(schema.key_json, schema.value_json))
        info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=1, partitions=partitions)
        metadata = operators.OperatorMetadata(0, "counting", (info,))
        storage.create(names.operator_metadata(0), operators.encode_operator(metadata))

    def copied_to(self, storage: Storage, folder: Path) -> Checkpoint:
        """The same checkpoint in another, empty storage: quicker than to make it again."""
        twin = copy.copy(self)
        twin.storage, twin._folder = storage, folder
        twin.versions, twin.states = list(self.versions), list(self.states)
        copy_files(self.storage, storage)
        return twin

    def batch(self, *changes: Changes) -> None:
        """Commit one batch: the changes of each store."""
        number = len(self.versions) - 1
        self.storage.create(
            names.offsets(number),
            logs.encode_offsets(
                logs.OffsetLog(watermark_ms=0, timestamp_ms=number, conf=logs.STATE_CONF, sources=('"a source"',))
            ),
        )
        snapshots = catalog.snapshots(self.storage)  # as the driver sends them to its tasks
        new = []
        part = (
            BatchLogPart(batch_log.tag_of(RandomIds().fresh()), 1 << 20)
            if self.in_batch_logs and self.structure is Structure.V2
            else None
        )
        members = {}
        for store, base, of_store in zip(self.stores, self.versions[-1], changes, strict=True):
            with self.load(store, base, self._folder / "writer", snapshots.get(store, ()), part) as opened:
                opened.put(column(list(of_store)), column(list(of_store.values())))
                new.append(opened.commit())
                members[store, new[-1]] = opened.member
        if part is not None:
            body = batch_log.encode(number + 1, part.tag, {}, members)
            self.storage.create(names.batch_log(number + 1, part.tag), body)
        self.states.append([changed(s, c) for s, c in zip(self.states[-1], changes, strict=True)])
        self.versions.append(new)
        marks = {0: tuple((str(version.mark),) for version in new)}
        is_v1 = self.structure is Structure.V1
        log = logs.CommitLog(0, None, marks) if is_v1 else logs.CommitLog(0, marks)
        self.storage.create(names.commits(number), logs.encode_commit(log))

    def grow(self, batches: int) -> None:
        """Commit this number of batches. Each one puts, overwrites and deletes. Changes grow with the partition."""
        for _ in range(batches):
            number = len(self.versions)
            self.batch(
                *(
                    {
                        b"counter": b"%d" % number,
                        b"key %03d" % (number - 3): None,
                        **{b"key %03d %d" % (number, n): b"x" * 50 for n in range(10 * (partition + 1))},
                    }
                    for partition in range(len(self.stores))
                )
            )

    def load(
        self,
        store: StorePath,
        version: VersionId,
        folder: Path,
        snapshots: Collection[VersionId] = (),
        part: BatchLogPart | None = None,
    ) -> StateStore:
        """A store, by way of a host's folder."""
        address = StoreAddress(store, folder / f"{store.operator}-{store.partition}")
        return StateStore.load(
            address,
            version,
            storage=self.storage,
            clock=SystemClock(),
            ids=RandomIds(),
            snapshots=snapshots,
            structure=self.structure,
            batch_log=part,
        )

    def assert_right(self, host: Path, batch: int | None = None) -> None:
        """Assert that every store on this host equals the model at the version of a batch (default: the head)."""
        number = len(self.versions) - 1 if batch is None else batch + 1
        for partition, store in enumerate(self.stores):
            with self.load(store, self.versions[number][partition], host) as opened:
                assert dict(opened.scan()) == self.states[number][partition], store

    def assert_snapshots_are_right(self, host: Path) -> None:
        """Assert that every store has a snapshot at its head that alone equals the model."""
        for store, version, state in zip(self.stores, self.versions[-1], self.states[-1], strict=True):
            with self.load(store, version, host) as opened:
                metrics = opened.load_report
                assert metrics.skipped_snapshots == (), store
                assert (metrics.base, metrics.replayed_changelogs) == (BaseKind.SNAPSHOT, 0), store
                assert dict(opened.scan()) == state, store
