"""The differences between two versions of a store, by a merge of two scans in key order.

Equal keys and equal values have equal bytes, so that only differences are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from statekeeper.statestore.contents.rows import OpenStore, Pairs
from statekeeper.statestore.format.plain_values import grouped, plain_rows

_DECODED_AT_ONCE = 1000


class Change(Enum):
    """The kind of a difference."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One key that was added, removed or changed. A value is an object, or a list of objects in a family of lists; None if
    the key is missing on that side."""

    family: str | None
    change: Change
    key: dict[str, Any]
    before: Any
    after: Any


@dataclass(kw_only=True)
class Differences:
    """Iterates over the differences, ascending by the bytes of the keys. The iteration updates `counts`.

    `decoded_rows`: the number of differences to decode and yield; the others are only counted.
    """

    before: OpenStore
    after: OpenStore
    family: str | None = None
    decoded_rows: int | None = None
    counts: dict[Change, int] = field(default_factory=lambda: dict.fromkeys(Change, 0))

    def __iter__(self) -> Iterator[Difference]:
        waiting: list[ChangedPair] = []
        left = self.decoded_rows
        for found in _merged(_flat(self.before, self.family), _flat(self.after, self.family)):
            self.counts[found.change] += 1
            if left is not None and not left:
                continue
            left = left if left is None else left - 1
            if waiting and (waiting[0].family != found.family or len(waiting) >= _DECODED_AT_ONCE):
                yield from decoded(waiting, self.before, self.after)
                waiting = []
            waiting.append(found)
        if waiting:
            yield from decoded(waiting, self.before, self.after)


@dataclass(frozen=True)
class ChangedPair:
    """A key whose value differs, as bytes; None if the key is missing on that side."""

    family: str | None
    key: bytes
    before: bytes | None
    after: bytes | None

    @property
    def change(self) -> Change:
        """The kind of the difference."""
        if self.before is None:
            return Change.ADDED
        return Change.REMOVED if self.after is None else Change.CHANGED


def decoded(found: Sequence[ChangedPair], before: OpenStore, after: OpenStore) -> Iterator[Difference]:
    """Decode differences of one family. Raises as `OpenStore.decoded`."""
    keys: list[dict[str, Any] | None] = [None] * len(found)
    sides: list[list[Any]] = []
    for store, values in ((before, [one.before for one in found]), (after, [one.after for one in found])):
        places = [place for place, value in enumerate(values) if value is not None]
        side: list[Any] = [None] * len(found)
        if places:
            there = [value for value in values if value is not None]
            rows = store.decoded(Pairs(found[0].family, [found[place].key for place in places], there))
            plain = grouped(plain_rows(rows.values), rows.counts)
            for place, key, value in zip(places, plain_rows(rows.keys), plain, strict=True):
                keys[place] = key
                side[place] = value if rows.are_lists else value[0]
        sides.append(side)
    for one, key, before, after in zip(found, keys, *sides, strict=True):
        assert key is not None
        yield Difference(family=one.family, change=one.change, key=key, before=before, after=after)


_Pair = tuple[bytes, bytes, str | None]


def _flat(store: OpenStore, family: str | None) -> Iterator[_Pair]:
    for pairs in store.pairs(family):
        for key, value in zip(pairs.keys, pairs.values, strict=True):
            yield key, value, pairs.family


def _merged(before: Iterator[_Pair], after: Iterator[_Pair]) -> Iterator[ChangedPair]:
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield ChangedPair(old[2], old[0], old[1], None)
            old = next(before, None)
        elif old is None or new[0] < old[0]:
            yield ChangedPair(new[2], new[0], None, new[1])
            new = next(after, None)
        else:
            if old[1] != new[1]:
                yield ChangedPair(new[2], new[0], old[1], new[1])
            old, new = next(before, None), next(after, None)
