"""Undo a repair or a rewind: restore all quarantined files, or none.

    gather(storage, run)  ->  UndoFacts  ->  plan(gathered)  ->  PutBack actions  ->  execute(storage, run, plan)

Undo requires the query position of the repair. Race otherwise, in structure V1: a repair quarantines a snapshot of a
rolled-back batch; the query commits that version again; undo restores the old snapshot, and a restart loads it. Undo also
requires all SST files of a snapshot. A rewind may be half done, or half undone: then the newest commit is one of those that
it removes, and all later ones are in quarantine. Its files are restored in the opposite order, so that a crash at any
request leaves a checkpoint that loads. Entries of a file sink are restored in the output folder of the query.

The query must be stopped. The caller ensures this.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from statekeeper.statestore.base.errors import (
    AlreadyExists,
    CorruptFile,
    ObjectMissing,
    RefusedAsUnsafe,
    UnknownFormatVersion,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.contents import file_logs
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_sink import LogEntry, parse_entry
from statekeeper.statestore.format.limits import MOST_READ_BYTES
from statekeeper.statestore.format.names import StoreFileKind
from statekeeper.statestore.format.operators import with_schema_uris
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.maintenance.records import quarantine
from statekeeper.statestore.maintenance.records.quarantine import QuarantineRecord, QueryPosition
from statekeeper.statestore.storage import Entry, Storage, at_once, open_storage, read_or_none

_WHICH_RUN = f"use the id that --apply printed; {names.QUARANTINE}/ has one folder for each id"
_UNDO_LATER = "a later run moved more files to quarantine: undo that run first"
_COMMITTED_SINCE = "the query has committed since: leave the files in quarantine"


class There(Enum):
    """The present content at the original path of a quarantined file."""

    NOTHING = "nothing"
    SAME = "the same bytes"
    REWRITTEN = "the file as the run rewrote it"
    OTHER = "a file that was written later"


@dataclass(frozen=True)
class Kept:
    """A quarantined file. `path`: its original path; `size_bytes`: its size; `lacks`: for a snapshot, an SST file that is
    missing or has another size."""

    path: str
    there: There
    size_bytes: int
    lacks: str | None = None


@dataclass(frozen=True)
class Created:
    """A file that the run created. `there`: `REWRITTEN` while it has the bytes of the run."""

    path: str
    there: There


@dataclass(frozen=True, kw_only=True)
class UndoFacts:
    """The facts of an undo.

    record        of the run, with the query position after it
    position_now  the query position
    sink          the output folder of the query, if the run has moved entries of its file sink
    elsewhere     the runs whose quarantine has an entry of the file sink that the sink needs after this undo
    """

    run: str
    url: str
    record: QuarantineRecord | None
    position_now: QueryPosition
    kept: tuple[Kept, ...]
    sink: Storage | None = None
    elsewhere: tuple[str, ...] = ()
    created: tuple[Created, ...] = ()


@dataclass(frozen=True)
class PutBack:
    """Restore a file to its path. `replaces`: whether it replaces a file that the run wrote."""

    path: str
    replaces: bool
    size_bytes: int


@dataclass(frozen=True)
class Delete:
    """Delete a file that the run created. `digest`: the SHA-256 of its bytes."""

    path: str
    digest: str


UndoAction = PutBack | Delete


def gather(storage: Storage, run: str, open_sink: Callable[[str], Storage] = open_storage) -> UndoFacts:
    """Gather the facts. Requests: listings of `state/`, the commit log and the quarantine; up to two for each quarantined
    file. `open_sink` opens the output folder of a query with a file sink.

    Raises `RefusedAsUnsafe` for an invalid run id, `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    if not names.is_checkpoint_id(run):
        raise RefusedAsUnsafe(
            f"{run!r} is not the id of a run; nothing was restored", path=storage.url, hint=_WHICH_RUN
        )
    heads = catalog.heads(storage)
    position = QueryPosition.of(storage, heads)
    record = quarantine.recorded(storage, run)
    rewritten = {} if record is None else record.rewritten
    files = catalog.files(storage)
    quarantined = quarantine.files(storage, names.quarantine(run, "").rstrip("/"))
    tables = {entry.path: entry.size_bytes for of_store in files.values() for entry in of_store.tables.values()}
    # A rewind also quarantines the tables of stores that the target does not have.
    tables |= {_original(run, entry): entry.size_bytes for entry in quarantined}
    of_sink = any(parse_entry(_original(run, entry)) is not None for entry in quarantined)
    sink = open_sink(record.file_sink) if record is not None and record.file_sink is not None and of_sink else None
    found: dict[str, Kept] = {}

    def look(entry: Entry) -> None:
        path = _original(run, entry)
        place = _place(storage, sink, path)
        if entry.size_bytes > MOST_READ_BYTES:
            # A changelog, or a log of files. A crash between its copy and its deletion leaves both.
            present = place.stat(path)
            is_same = present is not None and present.size_bytes == entry.size_bytes
            state = There.NOTHING if present is None else There.SAME if is_same else There.OTHER
            found[path] = Kept(path, state, entry.size_bytes)
            return
        body = storage.read(entry.path)
        there = _there(place, path, body, rewritten.get(path))
        found[path] = Kept(path, there, entry.size_bytes, _lacks(path, body, tables))

    at_once(look, quarantined)
    return UndoFacts(
        run=run,
        url=storage.url,
        record=record,
        position_now=position,
        kept=tuple(found[path] for path in sorted(found)),
        sink=sink,
        elsewhere=() if record is None else _elsewhere(storage, run, record, found, open_sink),
        created=tuple(
            Created(path, _there(storage, path, b"", digest))
            for path, digest in sorted(({} if record is None else record.created).items())
        ),
    )


def _elsewhere(
    storage: Storage, run: str, record: QuarantineRecord, kept: Collection[str], open_sink: Callable[[str], Storage]
) -> tuple[str, ...]:
    """Return the other runs whose quarantine has entries of the file sink for the batches that this run puts back.

    Failure sequence without it: a rewind leaves the sink as it is; a second rewind removes the entries; the first one is
    undone; the query continues after these batches, and no reader lists their files.
    """
    by_run: dict[str, set[LogEntry]] = {}
    for other in storage.list(names.QUARANTINE):
        place = names.parse_quarantined(other.path)
        entry = parse_entry(place[1]) if place is not None and place[0] != run else None
        if place is not None and entry is not None and entry.batch in record.rewound and entry.path not in kept:
            by_run.setdefault(place[0], set()).add(entry)
    found = []
    for other_run, entries in by_run.items():
        of_other = quarantine.recorded(storage, other_run)
        if of_other is not None and of_other.file_sink is not None:
            there = file_logs.listed(open_sink(of_other.file_sink))
            if not entries <= there.keys():
                found.append(other_run)
    return tuple(sorted(found))


def _place(storage: Storage, sink: Storage | None, path: str) -> Storage:
    """Return the storage in which a quarantined file was."""
    return storage if sink is None or parse_entry(path) is None else sink


def plan(gathered: UndoFacts) -> tuple[UndoAction, ...]:
    """Plan the undo. Pure. Raises `RefusedAsUnsafe` with the file if any file cannot be restored safely."""
    record = gathered.record
    if not gathered.kept and record is None:
        raise RefusedAsUnsafe(
            f"run {gathered.run} has no files in quarantine; nothing was restored", path=gathered.url, hint=_WHICH_RUN
        )
    if record is None:
        raise RefusedAsUnsafe(
            "is missing; without it, this run cannot be undone",
            path=names.quarantine_position(gathered.run),
            hint="if this run was a switchover, reverse it with: statekeeper switch ROOT --to v1 (or v2). Otherwise, leave "
            "the files of this run in quarantine: gc deletes them later",
        )
    _require_position(record, gathered.position_now)
    _require_all_commits(gathered, record)
    if gathered.elsewhere:
        raise RefusedAsUnsafe(
            f"a later rewind, {gathered.elsewhere[0]}, has moved entries of the file sink to quarantine that belong to the "
            "batches of this run; nothing was restored",
            path=names.quarantine_position(gathered.elsewhere[0]),
            hint=f"first run: statekeeper rewind {gathered.url} --undo {gathered.elsewhere[0]} --confirm-stopped",
        )
    of_run: list[Kept | Created] = [*gathered.kept, *gathered.created]
    for one in of_run:
        if one.there is There.OTHER:
            is_of_sink = gathered.sink is not None and parse_entry(one.path) is not None
            raise RefusedAsUnsafe(
                "was written again after the run; nothing was restored",
                path=f"{record.file_sink}/{one.path}" if is_of_sink else one.path,
                hint="the query has run since. To restore the quarantined file nevertheless, delete this file. Then run "
                "this command again",
            )
        if isinstance(one, Kept) and one.lacks is not None:
            raise RefusedAsUnsafe(
                f"needs the SST file {one.lacks}, which is missing; nothing was restored",
                path=one.path,
                hint=f"restore the SST file from a backup, or delete {names.quarantine(gathered.run, one.path)} to skip it",
            )
    removed = {path: number for number, path in enumerate(record.order)}
    in_order = sorted(gathered.kept, key=lambda one: (-removed.get(one.path, len(removed)), one.path))
    restored = (PutBack(one.path, one.there is There.REWRITTEN, one.size_bytes) for one in in_order)
    created = (one.path for one in gathered.created if one.there is There.REWRITTEN)
    return (*restored, *(Delete(path, record.created[path]) for path in created))


def _require_position(record: QuarantineRecord, now: QueryPosition) -> None:
    """Require the position of the query after the run, or one during a rewind."""
    if now == record.position or (now.commit and record.rewound.get(now.batch) == now.commit):
        return
    batch, newest = record.position.batch, now.batch
    then = f"at batch {batch}" if batch >= 0 else "before its first batch"
    present = f"the newest batch is {newest}" if newest >= 0 else "no batch is committed"
    verb = "rewind" if record.order else "repair"
    hint = (
        f"if the query has committed since, leave the files in quarantine. If a person has restored commits since, move "
        f"commits/{batch + 1} and later commits to another folder, run this command again, and move these commits back"
    )
    raise RefusedAsUnsafe(
        f"after the {verb}, the query was {then}; now {present}. Batches were committed or replaced since, so the "
        "quarantined files no longer match the checkpoint; nothing was restored",
        path=names.commits(max(batch, newest)),
        hint=hint if not record.order else _UNDO_LATER if newest < batch else _COMMITTED_SINCE,
    )


def _require_all_commits(gathered: UndoFacts, record: QuarantineRecord) -> None:
    """Require that this run has quarantined each commit that the undo of a rewind restores: without a gap."""
    kept = {one.path for one in gathered.kept}
    for batch in sorted(record.rewound):
        path = names.commits(batch)
        if batch > gathered.position_now.batch and path not in kept:
            raise RefusedAsUnsafe(
                "is not in the quarantine of this run; nothing was restored",
                path=path,
                hint=_UNDO_LATER,
            )


def execute(
    storage: Storage,
    run: str,
    planned: Sequence[UndoAction],
    *,
    sink: Storage | None = None,
    scratch: Path | None = None,
) -> Iterator[str]:
    """Restore the files. Yields each path after it is restored. `sink`: as in the facts; `scratch`: a folder for large
    files; None for the system's.

    *Guarantee*: a quarantined file is deleted only after it is restored, so that a crash at any request loses nothing and
    another run completes the undo. Raises `RefusedAsUnsafe` if a file was written meanwhile, `StorageError`.
    """
    for action in planned:
        if isinstance(action, Delete):
            body = storage.read(action.path)
            if hashlib.sha256(body).hexdigest() != action.digest:
                raise _written_during_undo(action.path)
            quarantine.require_deleted(storage, action.path, body)
            yield action.path
            continue
        kept = names.quarantine(run, action.path)
        place = _place(storage, sink, action.path)
        if action.size_bytes > MOST_READ_BYTES:
            _copy_back(storage, kept, place, action.path, scratch or Path(tempfile.gettempdir()))
        elif action.replaces:
            storage.replace(action.path, storage.read(kept), like=kept)
        else:
            _create(place, action.path, storage.read(kept), like=kept if place is storage else None)
        storage.delete([kept])
        yield action.path
    storage.delete([names.quarantine_position(run)])


def _original(run: str, entry: Entry) -> str:
    return entry.path.removeprefix(names.quarantine(run, ""))


def _there(storage: Storage, path: str, before: bytes, rewritten: str | None) -> There:
    """`rewritten`: the SHA-256 of the file that a rewind wrote at this path."""
    now = read_or_none(storage, path)
    if now is None:
        return There.NOTHING
    if now == before:
        return There.SAME
    if rewritten is not None:
        return There.REWRITTEN if hashlib.sha256(now).hexdigest() == rewritten else There.OTHER
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


def _copy_back(storage: Storage, kept: str, place: Storage, path: str, scratch: Path) -> None:
    entry = storage.stat(kept)
    if entry is None:
        raise ObjectMissing("was deleted during the undo", path=kept)
    quarantine.copy_file(storage, entry, place, path, scratch=scratch)


def _create(storage: Storage, path: str, body: bytes, *, like: str | None) -> None:
    try:
        storage.create(path, body, like=like)
    except AlreadyExists as error:
        raise _written_during_undo(path) from error


def _written_during_undo(path: str) -> RefusedAsUnsafe:
    return RefusedAsUnsafe(
        "was written during the undo: the query is running",
        path=path,
        hint="stop the query, verify that its application has ended, and run this command again",
    )
