"""The record of drills: the last drill of each store. Unlike the history, it has no age.

    _statekeeper/drills.json  {"state/0/3": {"version": 812, "mark": "6ad1c2f0-...", "digest": "1000:5f...", ...}}

It says which stores the next drill must restore, which rows a version had, and how fast loads are. Two drills at the same
time may each lose the results of the other: these stores then count as not drilled, and no result is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.json_records import About, CheckpointId, Count, Record, UnixSeconds
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.records.history import Seconds
from statekeeper.statestore.storage import Storage, read_or_none

MEASURED_FROM_BYTES = 1024 * 1024
"""The time of shorter tails depends more on the requests than on the replay."""

_MEASURED_TOGETHER_SECONDS = 35 * 86_400.0
"""Older measurements than the newest one by more than this are of another size of the state, or of another machine."""

_ABOUT = About("record of drills", hint="delete the file: the next drill writes it again")


class StoreDrill(Record, kw_only=True):
    """The last drill of a store.

    version, mark   the restored version, with its id or digest; None in structure V1 of a native query
    past            identifies the offsets of the batch and the rewrites before it: a version without a mark has the same
                    content only with the same past
    digest          of its rows; "" if it did not restore
    is_proved       whether a comparison proved these rows: without one, equal rows of the next drill are only unchanged
    verdict         code of `drill.Verdict`
    workers         stores that were restored at the same time: with more than one, the times tell nothing about one load
    has_base        whether the load began with a snapshot, and not with version 0
    base_seconds, replay_seconds  of the load
    """

    version: Count
    mark: CheckpointId | None = None
    past: Annotated[str, msgspec.Meta(max_length=100)] = ""
    digest: Annotated[str, msgspec.Meta(max_length=100)] = ""
    is_proved: bool = False
    verdict: Annotated[str, msgspec.Meta(max_length=100)] = ""
    workers: Count = 1
    drilled_at_seconds: UnixSeconds
    has_base: bool = False
    base_seconds: Seconds = 0.0
    replay_seconds: Seconds = 0.0
    predicted_seconds: Seconds = 0.0
    tail_bytes: Count = 0
    changelogs: Count = 0

    @property
    def seconds(self) -> float:
        """The time of the load."""
        return self.base_seconds + self.replay_seconds

    @property
    def is_measured(self) -> bool:
        """Whether the store was restored, and alone, so that its times tell how long a load takes."""
        return bool(self.digest) and self.workers == 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How long loads take, as drills measured it. It corrects predictions.

    drilled_at_seconds     of the newest of these drills
    stores                 number of stores that they restored
    seconds                how long these loads took
    base_seconds           to fetch and open a snapshot: the mean, `base_seconds_of` a store for those that were drilled
    seconds_per_changelog  of tails that are too short to measure a rate
    bytes_per_second       of the replay; None if the tails were too short
    """

    drilled_at_seconds: float
    stores: int
    seconds: float
    base_seconds: float
    base_seconds_of: Mapping[StorePath, float] = field(default_factory=dict)
    seconds_per_changelog: float = 0.0
    bytes_per_second: float | None = None

    @property
    def described(self) -> str:
        """Say that predictions use these measurements."""
        return (
            f"restore times are predicted from drills, the newest of {utc(self.drilled_at_seconds)}: they restored "
            f"{counted(self.stores, 'store')} in {self.seconds:,.2f} s"
        )

    def load_seconds(
        self, store: StorePath, *, has_base: bool, changelogs: int, tail_bytes: int, bytes_per_second: float
    ) -> float:
        """Predict how long a load takes. `bytes_per_second`: the rate if no drill has measured one."""
        base = self.base_seconds_of.get(store, self.base_seconds) if has_base else 0.0
        by_size = tail_bytes / (self.bytes_per_second or bytes_per_second)
        return base + max(by_size, changelogs * self.seconds_per_changelog)


Drills = Mapping[StorePath, StoreDrill]
"""The last drill of each store."""


def read(storage: Storage) -> Drills:
    """Read the record; empty if it is missing or damaged. One request. Raises `StorageError`."""
    data = read_or_none(storage, names.DRILLS)
    if data is None:
        return {}
    try:
        written = json_records.decoded(dict[str, StoreDrill], data, names.DRILLS, _ABOUT)
    except CorruptFile:
        return {}  # as without a record: each store counts as not drilled
    found = {}
    for text, drill in written.items():
        place = names.parse_place(f"{text}/any")
        if place is not None:
            found[place[0]] = drill
    return found


def add(storage: Storage, drills: Drills, stores: Collection[StorePath]) -> None:
    """Add drills to the record. `stores`: those of the checkpoint; others are left out. Two requests. Raises
    `StorageError`."""
    merged = {str(store): drill for store, drill in {**read(storage), **drills}.items() if store in stores}
    storage.replace(names.DRILLS, json_records.encoded({text: merged[text] for text in sorted(merged)}, compact=True))


def measured(drills: Iterable[tuple[StorePath, StoreDrill]]) -> Measured | None:
    """Return what drills have measured; None without a measurement. Pure."""
    taken = [(store, one) for store, one in drills if one.is_measured]
    if not taken:
        return None
    newest = max(one.drilled_at_seconds for _, one in taken)
    used = [(store, one) for store, one in taken if newest - one.drilled_at_seconds <= _MEASURED_TOGETHER_SECONDS]
    based = {store: one.base_seconds for store, one in used if one.has_base}
    long = [one for _, one in used if one.tail_bytes >= MEASURED_FROM_BYTES]
    short = [one for _, one in used if one.tail_bytes < MEASURED_FROM_BYTES and one.changelogs]
    long_seconds, changelogs = sum(one.replay_seconds for one in long), sum(one.changelogs for one in short)
    return Measured(
        drilled_at_seconds=newest,
        stores=len(used),
        seconds=sum(one.seconds for _, one in used),
        base_seconds=sum(based.values()) / len(based) if based else 0.0,
        base_seconds_of=based,
        seconds_per_changelog=sum(one.replay_seconds for one in short) / changelogs if changelogs else 0.0,
        bytes_per_second=sum(one.tail_bytes for one in long) / long_seconds if long_seconds > 0 else None,
    )
