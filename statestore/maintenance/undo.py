"""Undo a repair: restore all quarantined files, or none.

    gather(storage, run)  ->  UndoFacts  ->  plan(gathered)  ->  PutBack actions  ->  execute(storage, run, plan)

Undo requires the query position of the repair. Race otherwise, in structure V1: a repair quarantines a snapshot of a
rolled-back batch; the query commits that version again; undo restores the old snapshot, and a restart loads it. Undo also
requires all SST files of a snapshot.

The query must be stopped. The caller ensures this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from statestore import catalog
from statestore.errors import AlreadyExists, CorruptFile, RefusedAsUnsafe, UnknownFormatVersion
from statestore.format import names
from statestore.format.names import StoreFileKind
from statestore.format.operators import with_schema_uris
from statestore.format.snapshot import read_snapshot
from statestore.maintenance import quarantine
from statestore.maintenance.quarantine import QueryPosition
from statestore.storage import Entry, Storage, at_once, read_or_none

_WHICH_RUN = f"use the run id that `statekeeper repair` printed: {names.QUARANTINE}/ holds one folder for each run id"


class There(Enum):
    """The present content at the original path of a quarantined file."""

    NOTHING = "nothing"
    SAME = "the same bytes"
    REWRITTEN = "the file as the repair rewrote it"
    OTHER = "a file that was written later"


@dataclass(frozen=True)
class Kept:
    """A quarantined file. `lacks`: for a snapshot, an SST file that is missing or has another size."""

    path: str
    there: There
    lacks: str | None = None


@dataclass(frozen=True, kw_only=True)
class UndoFacts:
    """The facts of an undo. `position_at_repair` and `position_now`: the query position."""

    run: str
    url: str
    position_at_repair: QueryPosition | None
    position_now: QueryPosition
    kept: tuple[Kept, ...]


@dataclass(frozen=True)
class PutBack:
    """Restore a file to its path. `replaces`: whether it replaces a file that the repair wrote."""

    path: str
    replaces: bool


def gather(storage: Storage, run: str) -> UndoFacts:
    """Gather the facts. Requests: listings of `state/`, the commit log and the quarantine; two for each quarantined file.

    Raises `RefusedAsUnsafe` for an invalid run id, `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    if not names.is_checkpoint_id(run):
        raise RefusedAsUnsafe(f"{run!r} is not a run id", path=storage.url, hint=_WHICH_RUN)
    heads = catalog.heads(storage)
    position = QueryPosition.of(storage, heads)
    files = catalog.files(storage)
    tables = {entry.path: entry.size_bytes for of_store in files.values() for entry in of_store.tables.values()}
    found: dict[str, Kept] = {}

    def look(entry: Entry) -> None:
        path = _original(run, entry)
        body = storage.read(entry.path)
        found[path] = Kept(path, _there(storage, path, body), _lacks(path, body, tables))

    at_once(look, quarantine.files(storage, names.quarantine(run, "").rstrip("/")))
    return UndoFacts(
        run=run,
        url=storage.url,
        position_at_repair=quarantine.recorded_position(storage, run),
        position_now=position,
        kept=tuple(found[path] for path in sorted(found)),
    )


def plan(gathered: UndoFacts) -> tuple[PutBack, ...]:
    """Plan the undo. Pure. Raises `RefusedAsUnsafe` with the file if any file cannot be restored safely."""
    if not gathered.kept and gathered.position_at_repair is None:
        raise RefusedAsUnsafe(f"run {gathered.run} has no quarantined files", path=gathered.url, hint=_WHICH_RUN)
    if gathered.position_at_repair is None:
        raise RefusedAsUnsafe(
            "is missing; the newest batch at the time of the repair is unknown",
            path=names.quarantine_position(gathered.run),
            hint="if a switchover quarantined these files, run: statekeeper switch ROOT; if not, retention deletes them",
        )
    if gathered.position_at_repair != gathered.position_now:
        batch, newest = gathered.position_at_repair.batch, gathered.position_now.batch
        then = f"after batch {batch}" if batch >= 0 else "before any batch"
        now = f"the newest batch is {newest}" if newest >= 0 else "no batch is committed"
        raise RefusedAsUnsafe(
            f"the repair ran {then}, but now {now} or its commit was replaced; the quarantined files do not belong to the "
            "present state",
            path=names.commits(max(batch, newest)),
            hint=f"if the query has committed since, leave the files in quarantine; if commits were restored since, move "
            f"commits/{batch + 1} and later commits to another folder, run this again, and move these commits back",
        )
    for one in gathered.kept:
        if one.there is There.OTHER:
            raise RefusedAsUnsafe(
                "was written again after the repair; the quarantined file stays in quarantine",
                path=one.path,
                hint="the query has run since; to restore the quarantined file anyway, delete this file and run this again",
            )
        if one.lacks is not None:
            raise RefusedAsUnsafe(
                f"cannot be restored, because its SST file {one.lacks} is missing",
                path=one.path,
                hint=f"restore the SST file from a backup, or delete {names.quarantine(gathered.run, one.path)} to skip it",
            )
    return tuple(PutBack(one.path, one.there is There.REWRITTEN) for one in gathered.kept)


def execute(storage: Storage, run: str, planned: Sequence[PutBack]) -> Iterator[str]:
    """Restore the files. Yields each path after it is restored.

    *Guarantee*: a quarantined file is deleted only after it is restored, so that a crash at any request loses nothing and
    another run completes the undo. Raises `RefusedAsUnsafe` if a file was written meanwhile, `StorageError`.
    """
    for action in planned:
        kept = names.quarantine(run, action.path)
        body = storage.read(kept)
        if action.replaces:
            storage.replace(action.path, body, like=kept)
        else:
            _create(storage, action.path, body, like=kept)
        storage.delete([kept])
        yield action.path
    storage.delete([names.quarantine_position(run)])


def _original(run: str, entry: Entry) -> str:
    return entry.path.removeprefix(names.quarantine(run, ""))


def _there(storage: Storage, path: str, before: bytes) -> There:
    now = read_or_none(storage, path)
    if now is None:
        return There.NOTHING
    if now == before:
        return There.SAME
    if names.parse_operator_metadata(path) is not None:
        return There.REWRITTEN if _is_relocated(before, now, path) else There.OTHER
    try:
        old, new = read_snapshot(before, path), read_snapshot(now, path)
    except (CorruptFile, UnknownFormatVersion):
        return There.OTHER
    same = replace(new.metadata, header=old.metadata.header) == old.metadata and new.files == old.files
    return There.REWRITTEN if same else There.OTHER


def _is_relocated(before: bytes, now: bytes, path: str) -> bool:
    """Return whether two metadata files of an operator differ only in schema URIs."""
    try:
        return with_schema_uris(before, path, _anywhere) == with_schema_uris(now, path, _anywhere)
    except (CorruptFile, UnknownFormatVersion):
        return False


def _anywhere(store: str, file: str) -> str:
    return f"{store}/{file}"


def _lacks(path: str, body: bytes, tables: Mapping[str, int]) -> str | None:
    """Return a missing SST file of the snapshot; None for other files and for an unreadable snapshot."""
    place = names.parse_store_path(path)
    if place is None or place[1].kind is not StoreFileKind.SNAPSHOT:
        return None
    try:
        metadata = read_snapshot(body, path).metadata
    except (CorruptFile, UnknownFormatVersion):
        return None
    named = {place[0].table_file(table.dfs_name): table.size_bytes for table in metadata.named_files}
    return next((table for table, size_bytes in named.items() if tables.get(table) != size_bytes), None)


def _create(storage: Storage, path: str, body: bytes, *, like: str) -> None:
    try:
        storage.create(path, body, like=like)
    except AlreadyExists as error:
        raise RefusedAsUnsafe(
            "was written during the undo: the query is running",
            path=path,
            hint="stop the query, verify that its application has ended, and run this again",
        ) from error
