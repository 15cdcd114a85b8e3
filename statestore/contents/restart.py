"""What a query reads from its checkpoint when it starts after a batch: one answer for audits, copies, rewinds and repairs.

    offsets/L, offsets/L-1     L is the newest batch in the offset log: the newest commit, or a batch that did not complete
    commits/N                  the newest commit
    state/<operator>/...       version N+1 of each store that batch N has; not of partitions that a rescale removed
    sources/<folder>/...       the log of a file source: all entries since its newest compaction

Spark decides (`MicroBatchExecution.populateStartOffsets`, `CompactibleFileStreamLog.allFiles`). Jobs on `pipelines` read
only the offsets of batch N. This module reads nothing: its functions take what a verb has read or listed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import file_source, names
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.logs import OffsetLog
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.storage import Entry

REBUILT_FROM = "statekeeper.rebuiltFrom"
"""The conf that marks rebuilt offsets. Its value is the batch whose offsets they repeat. Spark ignores other confs than its
own."""


@dataclass(frozen=True)
class LostVersion:
    """A version of a store that does not load, and the first problem on its chain."""

    store: StorePath
    version: VersionId
    problem: FileProblem


class Way(Enum):
    """How a query gets to a start after a batch."""

    AS_IS = "start the query"
    REPAIR = "statekeeper repair rebuilds the offsets of the batch before the newest one; then start the query"
    REWIND = "statekeeper rewind moves the logs and the state of later batches away; then start the query"


def offsets_read(newest: int, begun: int, origin: Origin = Origin.NATIVE) -> frozenset[int]:
    """Return the batches whose offsets a start reads.

    `newest`: the newest committed batch; `begun`: the newest one in the offset log, which may be an incomplete batch. Spark
    reads the newest offsets and those of the batch before. After a rewind to batch N, both numbers are N.
    """
    return frozenset({newest, begun} if origin is Origin.OWN else {max(0, begun - 1), begun})


def way(
    batch: int, *, newest: int, begun: int, lost: Collection[int], needed_from: Iterable[int], origin: Origin
) -> Way | None:
    """Return how the query can start after a committed batch, as far as its logs decide; None if it cannot.

    newest, begun  as in `offsets_read`
    lost           the batches whose offsets are missing or unusable
    needed_from    for lost entries of a source: the first batch that has read them

    Offsets are rebuilt from those of the newest batch, if it is committed and only those before it are lost. Spark uses
    them only to ask its sources for the newest batch again. It then asks for an empty range, instead of the rows of a batch
    that is complete. A rewind to the batch before stays impossible: see `require_original`.
    """
    begun = max(begun, newest)
    entries = [*needed_from]
    if batch == newest and not entries and begun <= newest + 1:
        missing = offsets_read(newest, begun, origin).intersection(lost)
        if not missing:
            return Way.AS_IS
        if origin is Origin.NATIVE and begun == newest and missing == {newest - 1}:
            return Way.REPAIR
    is_lost = not offsets_read(batch, batch, origin).isdisjoint(lost)
    return None if is_lost or any(batch >= first for first in entries) else Way.REWIND


def is_rebuilt(offsets: OffsetLog) -> bool:
    """Return whether a repair wrote these offsets with the positions of the next batch."""
    return REBUILT_FROM in offsets.conf


def require_original(offsets: OffsetLog, batch: int) -> None:
    """Require that no repair wrote the offsets of the last batch of a copy or a rewind. Raises `RefusedAsUnsafe`.

    Failure sequence otherwise: a repair rebuilds the offsets of a batch; the query is rolled back to this batch; Spark
    continues after the positions of the next batch, and never reads its rows.
    """
    if is_rebuilt(offsets):
        later = offsets.conf[REBUILT_FROM]
        raise RefusedAsUnsafe(
            f"was written by a repair, with the positions of batch {later}: a query that continues after batch {batch} "
            f"does not read the rows of batch {later}; nothing was changed",
            path=names.offsets(batch),
            hint="choose an earlier or a later batch",
        )


def lost_offsets(batch: int, files: Mapping[str, Entry], *, has_state: bool = True) -> Iterator[FileProblem]:
    """Yield the offsets that a start after a batch reads and that are missing or empty.

    `batch`: the newest batch of a copy or after a rewind; `files`: by path; `has_state`: whether the query has state. With
    asynchronous progress tracking, a query without state logs only some batches: of these it has offsets and a commit.
    """
    for one in sorted(offsets_read(batch, batch)):
        path = names.offsets(one)
        if not has_state and one != batch and names.commits(one) not in files:
            continue
        if path not in files:
            yield FileProblem(path, Flaw.MISSING, "is missing")
        elif files[path].size_bytes == 0:
            yield FileProblem(path, Flaw.CORRUPT, "is empty")


@dataclass(frozen=True)
class LostEntries:
    """Consecutive entries in the log of a file source that are missing, or one that is empty. `first`: the oldest one."""

    folder: str
    first: int
    problem: FileProblem


def _is_empty(entry: Entry) -> FileProblem | None:
    return None if entry.size_bytes else FileProblem(entry.path, Flaw.CORRUPT, "is empty")


def lost_entries(
    positions: Positions,
    files: Mapping[str, Entry],
    problem_of: Callable[[Entry], FileProblem | None] = _is_empty,
) -> Iterator[LostEntries]:
    """Yield the entries in the logs of file sources that a start reads and that are missing or damaged. Newest first.

    `positions`: of the newest offsets; `files`: by path; `problem_of`: finds the damage of an entry. Spark reads all
    entries from the newest compaction on, also those that no batch has read yet. The root of a job has no such logs: do not
    ask for them.
    """
    there: dict[str, dict[int, Entry]] = {}
    for path, entry in files.items():
        if (parsed := file_source.parse(path)) is not None:
            folder, number = parsed
            of_folder = there.setdefault(folder, {})
            if number not in of_folder or _is_compaction(path):
                of_folder[number] = entry
    for folder in sorted(positions.entries):
        held = there.get(folder, {})
        # Of a named source whose position is unknown, only gaps between its entries are certain.
        read = positions.entries.get(folder, -1) if folder not in positions.uncertain else -1
        expected = max((read, *held))
        for number in (*sorted(held, reverse=True), -1):
            if number < expected:
                first = number + 1
                text = "is missing" if first == expected else f"and all entries up to {expected} are missing"
                path = f"{names.SOURCES}/{folder}/{first}"
                yield LostEntries(folder, first, FileProblem(path, Flaw.MISSING, text))
            if number < 0:
                break
            if (problem := problem_of(held[number])) is not None:
                yield LostEntries(folder, number, problem)
            if _is_compaction(held[number].path):
                break
            expected = number - 1


def read_entries(positions: Positions, files: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of file sources up to `positions`: those that a copy has and that a rewind leaves. Later entries
    stay if a compaction among them has the earlier ones."""
    kept: dict[str, Entry] = {}
    for path, entry in files.items():
        parsed = file_source.parse(path)
        if parsed is None:
            continue
        newest = positions.entries.get(parsed[0], parsed[1])
        if parsed[1] <= newest or not file_source.is_complete(parsed[0], newest, files):
            kept[path] = entry
    return kept


def _is_compaction(path: str) -> bool:
    return path.endswith(".compact")


def lost_versions(chains: Mapping[StorePath, Chain]) -> Iterator[LostVersion]:
    """Yield the heads of these chains that do not load."""
    for store, chain in chains.items():
        if chain.conflicts is not None:
            problem = FileProblem(chain.conflicts.path, Flaw.MISMATCH, chain.conflicts.text)
            yield LostVersion(store, chain.head, problem)
        elif chain.head not in chain.bases and chain.head != EMPTY:
            found = next((chain.broken[version] for version in chain.versions if version in chain.broken), chain.end)
            missing = FileProblem(object_of(store, chain.head), Flaw.MISSING, "is missing")
            yield LostVersion(store, chain.head, found or missing)


def removed(stores: Collection[StorePath], newest: Collection[StorePath]) -> frozenset[StorePath]:
    """Return the stores that the newest batch does not have: a rescale removed their partitions, or a conversion replaced
    their files. No start needs them, only a rewind to an earlier batch."""
    return frozenset(stores) - frozenset(newest)


def lost_logs(
    batch: int,
    files: Mapping[str, Entry],
    positions: Positions,
    *,
    has_state: bool,
    copied: Mapping[str, Entry] | None = None,
) -> Iterator[RefusedAsUnsafe]:
    """Yield the logs that a start after a batch needs and that are missing or empty: offsets, and entries of file sources
    up to `positions`. `files`: of the checkpoint, by path; `has_state`: whether the query has state; `copied`: files
    that a copy of the checkpoint has already."""
    for problem in lost_offsets(batch, files, has_state=has_state):
        yield RefusedAsUnsafe(
            f"{problem.text}; Spark cannot start after batch {batch} without it",
            path=problem.path,
            hint="restore the file from a backup, or choose a later batch",
        )
    if names.BINDING in files:
        return  # the logs of the sources of a job are in its outer checkpoint
    entries = read_entries(positions, {**(copied or {}), **files})
    for lost in lost_entries(positions, entries):
        yield RefusedAsUnsafe(
            f"{lost.problem.text}; Spark cannot start after batch {batch} without the log of this source",
            path=lost.problem.path,
            hint="restore the file from a backup, or choose an earlier batch",
        )
