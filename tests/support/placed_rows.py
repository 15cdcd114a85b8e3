"""The rows of a native checkpoint, compared with the partitions in which `partition_keys` places them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.contents.rows import Contents, contents_at, layout, opened
from statekeeper.statestore.format.murmur3 import partitions_of
from statekeeper.statestore.format.names import DEFAULT_STORE, StorePath
from statekeeper.statestore.format.partition_keys import PartitionColumns, PartitionRule, key_hashes, partition_rules
from statekeeper.statestore.storage import open_storage


class Place(NamedTuple):
    """A store or family of an operator, and the key columns by which it is partitioned."""

    operator: str
    family: str
    columns: PartitionColumns


@dataclass
class PlacedRows:
    """Counts of rows by place: all rows, and those that the rule places elsewhere. `used`: the partitions with rows."""

    rows: Counter[Place] = field(default_factory=Counter)
    elsewhere: Counter[Place] = field(default_factory=Counter)
    used: set[tuple[str, int]] = field(default_factory=set)

    def __iadd__(self, other: PlacedRows) -> PlacedRows:
        self.rows += other.rows
        self.elsewhere += other.elsewhere
        self.used |= other.used
        return self

    @property
    def of_operators(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for place, count in self.rows.items():
            found[place.operator] += count
        return found

    def print(self) -> None:
        for place, count in sorted(self.rows.items(), key=str):
            print(f"{count:>7,} rows  {place.operator} {place.family}: {place.columns.value}")
        print(f"{sum(self.rows.values()):>7,} rows of {len(self.of_operators)} operators")


Changed = Callable[[PartitionRule], PartitionRule]


def placed_rows(checkpoint: Path, scratch: Path, changed: Changed = lambda rule: rule) -> PlacedRows:
    """Place every row of every store at the newest batch. `changed`: the rule to use instead of the right one."""
    contents = contents_at(open_storage(str(checkpoint)))
    assert contents is not None
    found = PlacedRows()
    for store in sorted(contents.stores):
        _place(contents, store, scratch, found, changed)
    return found


def rules_of(contents: Contents, store: StorePath) -> dict[str | None, PartitionRule]:
    metadata = catalog.operator_at(contents.storage, store.operator, contents.batch)
    families = layout(contents, store).families
    return dict(partition_rules(metadata.name if metadata else "", store, families, contents.conf))


def _place(contents: Contents, store: StorePath, scratch: Path, found: PlacedRows, changed: Changed) -> None:
    rules = rules_of(contents, store)
    partitions = len([one for one in contents.stores if (one.operator, one.store) == (store.operator, store.store)])
    of_store = layout(contents, store)
    with opened(contents, store, of_store, scratch=scratch, clock=SystemClock(), ids=RandomIds()) as rows:
        for pairs in rows.pairs():
            rule = rules[pairs.family]
            placed = partitions_of(key_hashes(pairs.keys, changed(rule)), partitions)
            name = pairs.family or (store.store if store.store != DEFAULT_STORE else "")
            place = Place(rule.operator, name, rule.columns)
            found.rows[place] += len(pairs.keys)
            found.elsewhere[place] += int((placed != store.partition).sum())
            found.used.add((rule.operator, store.partition))
