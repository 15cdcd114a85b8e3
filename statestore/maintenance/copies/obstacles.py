"""The reasons not to copy a checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from statekeeper.statestore import restart
from statekeeper.statestore.errors import (
    DestinationNotEmpty,
    RefusedAsUnsafe,
    StatekeeperError,
    StorageError,
    VersionNotLoadable,
)
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.copies.copy_file import CopyFile, Way
from statekeeper.statestore.maintenance.copies.facts import CloneFacts
from statekeeper.statestore.maintenance.copies.record import CloneRecord
from statekeeper.statestore.maintenance.starts import lost_logs


def obstacles(gathered: CloneFacts, files: Iterable[CopyFile]) -> Iterator[StatekeeperError]:
    """Yield the reasons that block any copy of these files."""
    yield from misplaced(gathered)
    yield from not_loadable(gathered)
    if gathered.binding is None:
        # A mirror keeps entries of sources that its source has lost since.
        yield from lost_logs(
            gathered.batch,
            gathered.source,
            gathered.positions,
            has_state=bool(gathered.chains),
            copied=gathered.existing,
        )
    yield from _too_large(gathered, files)


def uncertain_sources(facts: CloneFacts) -> Iterator[RefusedAsUnsafe]:
    """Yield an error for each named file source whose entries up to the batch are unknown.

    A clone gets all entries that the batch may have read: its query reads the others in its next batch. A mirror cannot,
    because the source may be rolled back and write these entries again.
    """
    for folder in sorted(facts.positions.uncertain):
        yield RefusedAsUnsafe(
            f"has entries that batch {facts.batch} may or may not have read: offsets/{facts.batch} does not contain the "
            "names of the sources, and more than one source can be this one; nothing was written",
            path=f"{names.SOURCES}/{folder}",
            hint="run this command again after the next batch of the query. To exclude this error, start a new query with "
            "spark.sql.streaming.offsetLog.formatVersion=2",
        )


def misplaced(gathered: CloneFacts) -> Iterator[StatekeeperError]:
    """Yield an error if one of both locations contains the other."""
    source, destination = gathered.source_place, gathered.destination_place
    if source.location.contains(destination.location) or destination.location.contains(source.location):
        yield RefusedAsUnsafe(
            f"overlaps with the source {source.url}: one of them contains the other; nothing was written",
            path=destination.url,
            hint="choose a destination outside the checkpoint",
        )


def occupied(gathered: CloneFacts, record: CloneRecord, command: str) -> Iterator[StatekeeperError]:
    if not gathered.existing:
        return
    earlier, place = gathered.record, gathered.destination_place
    verb, _, options = command.partition(" ")
    if earlier is None:
        yield DestinationNotEmpty(
            f"is not empty: it contains {min(gathered.existing)}; nothing was written",
            path=place.url,
            hint="choose an empty destination",
        )
    elif earlier != record:
        yield DestinationNotEmpty(
            f"contains a clone of {earlier.source} at batch {earlier.batch}; nothing was written",
            path=place.url,
            hint=f"choose an empty destination, or continue that copy: statekeeper {verb} {earlier.source} {place.url} "
            f"--batch {earlier.batch}{f' {options}' if options else ''}",
        )
    elif newer := _newer(gathered.existing, record.batch):
        yield DestinationNotEmpty(
            f"is a clone at batch {record.batch}, and its query has already written {newer}; nothing was written",
            path=place.url,
            hint="choose an empty destination",
        )


def _too_large(gathered: CloneFacts, files: Iterable[CopyFile]) -> Iterator[StatekeeperError]:
    place = gathered.destination_place
    needed = sum(file.size_bytes for file in files if file.way in (Way.STREAM, Way.REWRITE))
    free = place.location.free
    if free is not None and needed > free:
        yield StorageError(
            f"has {free:,} bytes of free space, but the copy needs {needed:,}; nothing was written",
            path=place.url,
            hint="free space, or choose another destination",
        )


def _newer(paths: Iterable[str], batch: int) -> str | None:
    """The offsets or commit of a batch after `batch` among these paths; None if there is none."""
    for path in paths:
        folder, _, name = path.rpartition("/")
        number = names.parse_batch(name)
        if folder in (names.OFFSETS, names.COMMITS) and number is not None and number > batch:
            return path
    return None


def not_loadable(gathered: CloneFacts) -> Iterator[StatekeeperError]:
    """Yield an error for each store that cannot be loaded at the batch."""
    for lost in restart.lost_versions(gathered.chains):
        yield VersionNotLoadable(
            f"{lost.problem.text}; {lost.version.in_words} of {lost.store} cannot be loaded, and nothing was written",
            path=lost.problem.path,
            hint=f"to find a batch that can be loaded, run: statekeeper audit {gathered.source_place.url}. Then give this "
            "batch with --batch",
        )
