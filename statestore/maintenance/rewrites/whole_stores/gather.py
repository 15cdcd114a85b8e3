"""Gathers the facts for a rewrite of native state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteJournal
from statekeeper.statestore.contents.rows import Contents, Layout, layout
from statekeeper.statestore.format import names
from statekeeper.statestore.format.key_groups import KeyGroups
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.format.partition_keys import partition_rules
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.row_encodings import RowEncoding
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.maintenance.rewrites import engine
from statekeeper.statestore.maintenance.rewrites.engine.model import StoppedQuery
from statekeeper.statestore.maintenance.rewrites.whole_stores.batch import is_appended
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import OperatorFacts, RewriteFacts, Rules
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy
from statekeeper.statestore.root.binding import read_binding, stores_at
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.storage import Storage, read_or_none


def gather(
    storage: Storage, *, scratch: Path, policy: AuditPolicy | None = None, of_load: bool = False
) -> RewriteFacts:
    """Gather the facts, with an audit unless a rewrite is half done. `scratch`: the folder for local work; `of_load`: with
    the facts that only a load needs.

    Requests: those of `engine.gather`, the newest offsets, and a few for each operator. Raises as that.
    """
    half_done = rewrite_journal.open_journal(storage)
    if half_done is not None and origin_of(storage) is Origin.NATIVE and is_appended(storage, half_done.begun):
        # The offsets of the new batch may be missing, so that the head cannot be read. It is not needed any more.
        return _of_appended(storage, half_done)
    stopped = engine.gather(storage, scratch=scratch, policy=policy, supported=tuple(Provider))
    if stopped.batch is None:
        return RewriteFacts(stopped=stopped)
    if stopped.origin is Origin.OWN:
        return _of_own_root(storage, stopped, of_load=of_load)
    # A rewrite that was interrupted after its commit has no offsets of its batch yet.
    batch = stopped.batch if stopped.half_done is None else stopped.half_done.begun.batch
    offsets = read_or_none(storage, names.offsets(batch))
    return RewriteFacts(
        stopped=stopped,
        operators=tuple(_operators(storage, stopped, stopped.batch, of_load=of_load)),
        offsets="" if offsets is None else offsets.decode("utf-8", "replace"),
        filled=_filled(storage, stopped) if of_load else None,
        free_at_root=storage.location.free,
    )


def _contents(storage: Storage, stopped: StoppedQuery) -> Contents:
    assert stopped.batch is not None
    stores = {one.store: one.head for one in stopped.stores}
    return Contents(storage=storage, batch=stopped.batch, stores=stores, origin=stopped.origin, conf=stopped.conf)


def _filled(storage: Storage, stopped: StoppedQuery) -> str | None:
    """Return the first store that may have rows, by the snapshots and changelogs alone."""
    for one in stopped.stores:
        if one.load is None:
            continue
        if one.load.replay:
            return f"{one.store} has {counted(len(one.load.replay), 'changelog')}, which may contain rows"
        if one.load.base == EMPTY or one.store.provider is not Provider.ROCKSDB:
            continue
        path = one.store.snapshot(one.load.base)
        keys = read_snapshot(storage.read(path), path).metadata.key_count
        if keys:
            return f"{one.store} has {'an unknown number of' if keys < 0 else f'{keys:,}'} rows"
    return None


def _of_appended(storage: Storage, half_done: RewriteJournal) -> RewriteFacts:
    batch = half_done.begun.batch
    stopped = StoppedQuery(origin=Origin.NATIVE, batch=batch + 1, half_done=half_done)
    offsets = storage.read(names.offsets(batch)).decode("utf-8", "replace")
    return RewriteFacts(stopped=stopped, offsets=offsets, is_appended=True)


def _of_own_root(storage: Storage, stopped: StoppedQuery, *, of_load: bool) -> RewriteFacts:
    bound, _ = read_binding(storage)
    only_rocksdb = RefusedAsUnsafe(
        "the state root of a job always has the RocksDB provider", path=storage.url, hint="nothing was changed"
    )
    contents = _contents(storage, stopped)
    operators = tuple(
        OperatorFacts(
            operator=number,
            name=store.name,
            stores=(names.DEFAULT_STORE,),
            partitions=sum(one.store.operator == number for one in stopped.stores),
            rules={names.DEFAULT_STORE: KeyGroups(bound.key_groups)},
            encodings={names.DEFAULT_STORE: only_rocksdb},
            layouts={names.DEFAULT_STORE: _layout(contents, StorePath(number, 0))} if of_load else {},
        )
        for number, store in enumerate(bound.stores)
    )
    # The offset log of the newest batch may be that of an interrupted rescale already.
    present = operators[0].partitions if operators else bound.partitions
    return RewriteFacts(
        stopped=replace(stopped, partitions=present),
        operators=operators,
        key_groups=bound.key_groups,
        filled=_filled(storage, stopped) if of_load else None,
        free_at_root=storage.location.free,
        schemas=_schemas(storage, stopped),
    )


def _schemas(storage: Storage, stopped: StoppedQuery) -> tuple[StoreSchema, ...]:
    """Return the stores with the value schemas of the head, as they were before a half-done schema evolution."""
    assert stopped.batch is not None
    changed = {} if stopped.half_done is None else stopped.half_done.begun.schemas
    return tuple(
        replace(store, value_json=changed[store.name].before) if store.name in changed else store
        for store in stores_at(storage, stopped.batch)
    )


def _operators(storage: Storage, stopped: StoppedQuery, batch: int, *, of_load: bool) -> list[OperatorFacts]:
    contents = _contents(storage, stopped)
    found = []
    for number in sorted({store.operator for store in contents.stores}):
        of_operator = [store for store in contents.stores if store.operator == number]
        metadata = catalog.operator_at(storage, number, batch)
        name = metadata.name if metadata else ""
        stores_of = tuple(dict.fromkeys(store.store for store in of_operator))
        found.append(
            OperatorFacts(
                operator=number,
                name=name,
                stores=stores_of,
                partitions=len({store.partition for store in of_operator}),
                rules={one: _rules(contents, _first(contents, number, one), name) for one in stores_of},
                encodings={one: _encoding(contents, _first(contents, number, one)) for one in stores_of},
                layouts={one: _layout(contents, _first(contents, number, one)) for one in stores_of if of_load},
            )
        )
    return found


def _rules(contents: Contents, store: StorePath, operator: str) -> Rules | StatekeeperError:
    """Return how the rows of a store are partitioned, or why that is unknown."""
    try:
        return partition_rules(operator, store, layout(contents, store).families, contents.conf)
    except StatekeeperError as error:
        return error


def _layout(contents: Contents, store: StorePath) -> Layout | StatekeeperError:
    """Return the layout of a store's rows, or why it cannot be read."""
    try:
        return layout(contents, store)
    except StatekeeperError as error:
        return error


def _first(contents: Contents, operator: int, name: str) -> StorePath:
    return StorePath(operator, 0, name, contents.conf.provider)


def _encoding(contents: Contents, store: StorePath) -> RowEncoding | StatekeeperError:
    """Return how RocksDB encodes the rows of a store. Raises nothing: the error states why only RocksDB can hold them."""
    try:
        families = layout(contents, replace(store, provider=Provider.ROCKSDB)).families
    except StatekeeperError as error:
        return error
    if None not in families:
        return RefusedAsUnsafe(
            "the store has column families, which Spark's default provider does not support",
            path=str(store),
            hint="keep the RocksDB provider",
        )
    return RowEncoding(families[None], contents.conf.row_checksums)
