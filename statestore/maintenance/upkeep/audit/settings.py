"""Finds offsets whose settings contradict the state.

Spark restarts with the settings in the newest offsets, and a query never changes those of its state. So a person has edited
the file, or a repartitioning by Spark did not complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from statekeeper.statestore.base.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.logs import SHUFFLE_PARTITIONS, OffsetLog
from statekeeper.statestore.format.provider import PROVIDER, Provider, provider_of
from statekeeper.statestore.format.state_conf import SETTINGS_OF_STATE
from statekeeper.statestore.maintenance.upkeep.audit.facts import LogFacts
from statekeeper.statestore.storage import Entry, Storage

_OF_REWRITES = (PROVIDER, SHUFFLE_PARTITIONS)
"""The settings that a conversion, a rescale and Spark's own repartitioning change."""


def checked(storage: Storage, log: LogFacts, committed: Sequence[int], state: Iterable[Entry]) -> LogFacts:
    """Replace the newest offsets by their problem if their settings contradict the offsets before them and the state.

    `committed`: the batches with a commit; `state`: the files below `state/`. One request if the settings differ.
    """
    readable = log.offsets_readable
    if len(readable) < 2 or not committed:
        return log
    before, newest = sorted(readable)[-2:]
    was, now = readable[before], readable[newest]
    changed = {
        key: (was.conf[key], now.conf[key])
        for key in SETTINGS_OF_STATE
        if key in was.conf and key in now.conf and was.conf[key] != now.conf[key]
    }
    if not changed:
        return log
    if changed.keys() <= set(_OF_REWRITES):
        head = _Head.of(storage, max(committed), state)
        if head is None or head.fits(now) or not head.fits(was):
            return log
    differences = ", ".join(f"{key} to {value!r} instead of {former!r}" for key, (former, value) in changed.items())
    text = f"sets {differences}, which {names.offsets(before)} contains; the state was written with the former settings"
    if changed.keys() == {SHUFFLE_PARTITIONS} and newest > max(committed):
        text += ". If Spark's own repartitioning runs or was interrupted, complete it first"
    path = names.offsets(newest)
    return replace(log, offsets_read={**log.offsets_read, newest: FileProblem(path, Flaw.MISMATCH, text)})


@dataclass(frozen=True)
class _Head:
    """The partitions of each operator that have the newest committed version, by provider."""

    partitions: Mapping[Provider, Mapping[int, frozenset[int]]]

    @classmethod
    def of(cls, storage: Storage, batch: int, state: Iterable[Entry]) -> _Head | None:
        """Return the partitions in the commit of a batch, or those with files of its version in structure V1. None if the
        commit cannot be read."""
        path = names.commits(batch)
        try:
            marks = logs.parse_commit(storage.read(path), path).marks
        except (CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion):
            return None
        if marks is not None:
            named = {operator: frozenset(range(len(stores))) for operator, stores in marks.items()}
            return cls({Provider.ROCKSDB: named})
        found: dict[Provider, dict[int, set[int]]] = {provider: {} for provider in Provider}
        for entry in state:
            for provider in Provider:
                place = names.parse_store_path(entry.path, provider)
                if place is not None and place[1].version.version == batch + 1:
                    found[provider].setdefault(place[0].operator, set()).add(place[0].partition)
        return cls({of: {op: frozenset(parts) for op, parts in ops.items()} for of, ops in found.items()})

    def fits(self, offsets: OffsetLog) -> bool:
        """Return whether a query with these settings finds the version in each partition. Operators with one partition
        show nothing, unless all have one."""
        provider, width = provider_of(offsets.conf), offsets.conf.get(SHUFFLE_PARTITIONS)
        found = [] if provider is None else [*self.partitions.get(provider, {}).values()]
        wide = [partitions for partitions in found if len(partitions) > 1 or width == "1"]
        if width is None or not wide:
            return bool(found)
        return any(len(partitions) == max(partitions) + 1 and str(len(partitions)) == width for partitions in wide)
