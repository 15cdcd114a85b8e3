"""Native checkpoints in either structure: without a binding, and in V1 without ids."""

from __future__ import annotations

import io
from pathlib import Path

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.changelog import ChangelogWriter, read_changelog
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import StoreFileKind, StorePath, VersionId
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import EngineLimits
from statekeeper.statestore.store.loading.loader import Loader
from tests.support.checkpoints import Checkpoint
from tests.support.hosts import State, column


def as_sparks(made: Checkpoint) -> Checkpoint:
    """As far as one can see."""
    made.storage.delete([names.BINDING])
    return made


def without_ids(made: Checkpoint) -> Checkpoint:
    """The same in structure V1: changelogs have no lineage, names and commits no ids."""
    storage = made.storage
    for entry in storage.list(names.STATE):
        place = names.parse_store_path(entry.path)
        if place is None or place[1].version.id is None:
            continue
        store, file = place
        number = VersionId(file.version.version)
        body = storage.read(entry.path)
        if file.kind is StoreFileKind.CHANGELOG:
            storage.create(store.changelog(number), without_lineage(body, entry.path))
        else:
            storage.create(store.snapshot(number), body)
        storage.delete([entry.path])
    for entry in storage.list(names.COMMITS):
        log = logs.parse_commit(storage.read(entry.path), entry.path)
        storage.replace(entry.path, logs.encode_commit(logs.CommitLog(log.next_watermark_ms, None)))
    return made


def without_lineage(body: bytes, path: str) -> bytes:
    """A changelog as structure V1 has it."""
    sink = io.BytesIO()
    writer = ChangelogWriter(sink, Header(None))
    for changes in read_changelog(body, path)[1]:
        keys, values = zip(*changes.pairs(), strict=True)
        writer.append(column(list(keys)), column(list(values)))
    writer.finish()
    return sink.getvalue()


def held(storage: Storage, scratch: Path) -> dict[StorePath, State]:
    """Return the state of each store at the newest commit, loaded from storage alone."""
    heads = catalog.heads(storage)
    assert heads is not None
    found: dict[StorePath, State] = {}
    for store, version in heads.heads.items():
        folder = scratch / RandomIds().fresh()
        folder.mkdir(parents=True)
        limits = EngineLimits()
        cache = LocalCopyFolder(folder / "store", limits, RandomIds())
        loader = Loader(store, storage, cache, limits, clock=SystemClock(), lock_timeout_seconds=0)
        with loader.restore(version, folder / "database").database as database:
            found[store] = {
                key: value for keys, values in database.scan() for key, value in zip(keys, values, strict=True)
            }
    return found
