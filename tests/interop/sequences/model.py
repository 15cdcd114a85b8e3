"""What a checkpoint must contain: the state of each batch, and how it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure


@dataclass(frozen=True)
class Moment:
    """A state of the query: that of its twin after `files` input files.

    `lineage`: 0 for the twin of which no state was ever changed; another number for a copy of the checkpoint that was made
    after an edit or a load and that no further verb has changed.
    """

    lineage: int
    files: int


@dataclass(frozen=True)
class Entry:
    """A committed batch. `consumed`: how many input files the query has read, which a load does not change."""

    moment: Moment
    consumed: int
    structure: Structure
    provider: Provider
    partitions: int

    def next(self) -> Entry:
        """After the next input file."""
        following = Moment(self.moment.lineage, self.moment.files + 1)
        return replace(self, moment=following, consumed=self.consumed + 1)


@dataclass(frozen=True)
class History:
    """The committed batches of a checkpoint. `floor`: the oldest batch to which a rewind must be possible; `is_begun`:
    Spark has begun one more batch, and runs it again."""

    batches: Mapping[int, Entry] = field(default_factory=dict)
    floor: int = 0
    is_begun: bool = False

    @property
    def newest(self) -> int:
        return max(self.batches)

    @property
    def entry(self) -> Entry:
        return self.batches[self.newest]

    def appended(self, entry: Entry) -> History:
        """With one more batch."""
        return replace(self, batches={**self.batches, self.newest + 1: entry}, is_begun=False)

    def changed(self, entry: Entry) -> History:
        """With another content of the newest batch."""
        return replace(self, batches={**self.batches, self.newest: entry})

    def rewound(self, batch: int) -> History:
        batches = {number: one for number, one in self.batches.items() if number <= batch}
        return replace(self, batches=batches, is_begun=False)

    def collected(self, versions: int) -> History:
        """After a garbage collection that retains so many versions."""
        return replace(self, floor=max(self.floor, self.newest - versions + 1))

    def only_from(self, batch: int) -> History:
        """Of a copy, which has no older batch."""
        return replace(self, floor=max(self.floor, batch))
