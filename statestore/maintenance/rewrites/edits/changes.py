"""The changes of one store by an edit: found by a scan for a plan, and written into its restored version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.contents.differences import Change, ChangedPair, Difference, decoded
from statekeeper.statestore.contents.rows import OpenStore
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.rewrites.edits.selection import Selection
from statekeeper.statestore.store.engine.rocks import Database
from statekeeper.statestore.store.engine.rows_digest import RowsDigest


@dataclass(frozen=True, kw_only=True)
class StoreChanges:
    """The rows of a store, the numbers of its changes, and the first of them."""

    store: StorePath
    rows: int
    counts: dict[Change, int] = field(default_factory=dict)
    first: tuple[Difference, ...] = ()

    @property
    def total(self) -> int:
        """The number of changed rows."""
        return sum(self.counts.values())


def find(rows: OpenStore, selection: Selection, store: StorePath, *, most: int) -> StoreChanges:
    """Find the changes of a store. Decode the first `most` of them. Raises `CorruptFile`."""
    digest = RowsDigest()
    counts = dict.fromkeys(Change, 0)
    first: list[ChangedPair] = []
    for pair in _changed(rows, selection, store, digest):
        counts[pair.change] += 1
        if len(first) < most:
            first.append(pair)
    shown = tuple(chain.from_iterable(decoded([pair], rows, rows) for pair in first))
    return StoreChanges(store=store, rows=digest.rows, counts=counts, first=shown)


def write(rows: OpenStore, database: Database, selection: Selection, planned: StoreChanges) -> str:
    """Write the changes into the database, and return the digest that its rows must have then: the rows before, without the
    deleted and replaced ones, with the new ones. Raises `CorruptFile` if the changes are not as planned."""
    digest, gone, new = RowsDigest(), RowsDigest(), RowsDigest()
    counts = dict.fromkeys(Change, 0)

    def pairs() -> Iterator[tuple[bytes, bytes | None]]:
        for pair in _changed(rows, selection, planned.store, digest):
            counts[pair.change] += 1
            if pair.before is not None:
                gone.add([(pair.key, pair.before)])
            if pair.after is not None:
                new.add([(pair.key, pair.after)])
            yield pair.key, pair.after

    database.apply([pairs()], None)
    if counts != planned.counts:
        raise CorruptFile(
            f"the edit changes {sum(counts.values()):,} rows, but {planned.total:,} were planned; nothing was published",
            path=str(planned.store),
            hint="reverse the edit with --abort, then run this command again",
        )
    digest.take(gone)
    digest.merge(new)
    return str(digest)


def _changed(rows: OpenStore, selection: Selection, store: StorePath, digest: RowsDigest) -> Iterator[ChangedPair]:
    """Iterate over the changes in the order of their keys. `digest` receives all present rows."""
    new = dict(sorted(selection.upserts.get(store, {}).items()))
    waiting = iter(new.items())
    insert = next(waiting, None)
    for pairs in rows.pairs():
        digest.add(zip(pairs.keys, pairs.values, strict=True))
        deleted = selection.deleted(store, pairs.family, pairs.keys)
        for key, value, is_deleted in zip(pairs.keys, pairs.values, deleted, strict=True):
            while insert is not None and insert[0] < key:
                yield ChangedPair(pairs.family, insert[0], None, insert[1])
                insert = next(waiting, None)
            if insert is not None and insert[0] == key:
                if insert[1] != value:
                    yield ChangedPair(pairs.family, key, value, insert[1])
                insert = next(waiting, None)
            elif is_deleted:
                yield ChangedPair(pairs.family, key, value, None)
    while insert is not None:
        yield ChangedPair(None, insert[0], None, insert[1])
        insert = next(waiting, None)
