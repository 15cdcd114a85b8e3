"""Gathers the facts of a mirror. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.checkpoint.commit_log import batches_of
from statekeeper.statestore.contents.file_logs import positions_at
from statekeeper.statestore.format import mirror_names, names
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.logs import parse_commit, parse_metadata, parse_offsets
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.state_conf import ROCKSDB
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import clones
from statekeeper.statestore.maintenance.copies.mirrors import model as records
from statekeeper.statestore.maintenance.copies.mirrors import plan
from statekeeper.statestore.maintenance.copies.mirrors.model import CleanupFacts, MirrorFacts, MirrorRecord, Owner
from statekeeper.statestore.maintenance.records import holds
from statekeeper.statestore.root.binding import parse_binding
from statekeeper.statestore.storage import Entry, Storage, at_once, read_or_none


def gather(source: Storage, destination: Storage, *, batch: int | None = None, stopped: bool = False) -> MirrorFacts:
    """Gather the facts of a mirror and of its source, by default at the newest batch whose files no longer change.

    Requests: those of `copies.gather`; the records of the mirror and its ids; the newest mirrored entry of both logs in
    both roots; files of both roots that were written in the source since they were copied. Raises as `copies.gather`.
    """
    record = records.read(destination)
    existing = destination.list("")
    lists = tuple(sorted(_numbers(entry.path for entry in existing)))
    since = None if record is None or record.batch < 0 else _since(source, existing, record)
    facts = clones.gather(source, destination, batch=batch, stopped=stopped, since=since, supported=ROCKSDB)
    marks = records.read_marks(destination, list(lists))
    written = (source, destination, facts.source, facts.existing, marks)
    logs = {} if record is None else _logs(source, destination, existing, record)
    return MirrorFacts(
        copy=replace(facts, marks={**marks, **plan.unchanged(*written)}),
        record=record,
        marks=marks,
        lists=lists,
        owner=owner_of(destination) if record is not None else Owner(query_id=None, binding=None),
        structure=None if record is None else _structure(logs, record),
        logs=logs,
        damaged=plan.damaged_metadata(source, facts.source, facts.existing, marks),
    )


def owner_of(destination: Storage) -> Owner:
    """Read the ids in the files of a mirror. Two requests. Raises `CorruptFile`, `StorageError`."""
    metadata, bound = (read_or_none(destination, path) for path in (names.QUERY_METADATA, names.BINDING))
    return Owner(
        query_id=None if metadata is None else parse_metadata(metadata, names.QUERY_METADATA),
        binding=None if bound is None else parse_binding(bound),
    )


def gather_cleanup(source: Storage, destination: Storage) -> CleanupFacts:
    """Gather the facts to delete files of a mirror. Call it with the lease of the mirror: see `holds` for the race. The
    mirror is listed first.

    Requests, if files are to be deleted: those of `copies.chains`, the zips of stores with such tables, the newest offsets
    of the mirror, its holds. Raises `CorruptFile`, `StorageError`.
    """
    record = records.read(destination)
    existing = {entry.path: entry.size_bytes for entry in destination.list("")}
    first = 0 if record is None else _first_needed(destination, record)
    paths = frozenset(entry.path for entry in source.list(""))
    omitted = source.omissions.below("")
    marks = records.read_marks(destination, _numbers(existing))
    gone = {path for path in existing if path in marks} - paths
    return CleanupFacts(
        marks=marks,
        source=paths,
        existing=existing,
        chains=clones.chains(destination, down_to=first + 1, without=gone) if gone else {},
        tables=_named_tables(destination, existing, gone),
        positions=_positions(destination, existing, record) if gone else Positions({}),
        first=first,
        omitted=omitted[0].shown if omitted else None,
    )


def _first_needed(destination: Storage, record: MirrorRecord) -> int:
    """The oldest batch of the mirror that the mirror itself or a run with a hold needs."""
    try:
        held = [hold.batch for hold in holds.current(destination)]
    except CorruptFile:
        return 0  # the held batch is unknown, so all files stay
    return min([record.first, *held])


def _named_tables(destination: Storage, existing: Collection[str], gone: Collection[str]) -> frozenset[str]:
    """The tables that the snapshots of the mirror name, in stores of which the source has deleted tables."""
    stores = {place[0] for path in gone if (place := names.parse_place(path)) and names.parse_shared_file(place[1])}
    found: set[str] = set()

    def read(path: str) -> None:
        place = names.parse_store_path(path)
        assert place is not None
        with suppress(CorruptFile, ObjectMissing, UnknownFormatVersion):  # restores nothing
            snapshot = read_snapshot(destination.read(path), path)
            found.update(place[0].table_file(table.dfs_name) for table in snapshot.metadata.named_files)

    of_stores = ((path, names.parse_store_path(path)) for path in existing if path not in gone)
    zips = [path for path, place in of_stores if place and place[0] in stores and mirror_names.is_snapshot(path)]
    at_once(read, zips)
    return frozenset(found)


def _positions(destination: Storage, existing: Collection[str], record: MirrorRecord | None) -> Positions:
    batch = -1 if record is None else record.batch
    path = names.offsets(batch)
    data = read_or_none(destination, path) if path in existing else None
    return Positions({}) if data is None else positions_at(destination, batch, parse_offsets(data, path), existing)


def _structure(logs: Mapping[str, tuple[bytes | None, bytes | None]], record: MirrorRecord) -> Structure | None:
    """The structure of the newest mirrored batch, in the mirror."""
    path = names.commits(record.batch)
    mirrored = logs.get(path, (None, None))[1]
    return None if mirrored is None else parse_commit(mirrored, path).structure


def _numbers(existing: Iterable[str]) -> list[int]:
    listed = (path for path in existing if path.startswith(f"{mirror_names.MIRRORED}/"))
    return [number for path in listed if (number := mirror_names.parse_mirrored(path)) is not None]


def _since(source: Storage, existing: list[Entry], record: MirrorRecord) -> int:
    """The oldest batch that the mirror has with both logs and that the source may still have.

    Retention of the mirror keeps an older commit of a Python job in structure V1 for its digests, without its offsets. A
    run that started there would copy the offsets that retention has just deleted.
    """
    begun, committed = (
        set(batches_of(entry for entry in existing if entry.path.startswith(f"{folder}/")))
        for folder in (names.OFFSETS, names.COMMITS)
    )
    retained = batches_of(source.list(names.COMMITS))
    return max(record.first, min(begun & committed, default=0), min(retained, default=0))


def _logs(
    source: Storage, destination: Storage, existing: list[Entry], record: MirrorRecord
) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Read the newest mirrored entry of both logs, and all entries that the mirror has after it."""
    paths = [names.offsets(record.batch), names.commits(record.batch)] if record.batch >= 0 else []
    for entry in existing:
        folder, _, name = entry.path.rpartition("/")
        number = names.parse_batch(name)
        if folder in (names.OFFSETS, names.COMMITS) and number is not None and number > record.batch:
            paths.append(entry.path)
    found: dict[str, tuple[bytes | None, bytes | None]] = {}

    def read(path: str) -> None:
        found[path] = (read_or_none(source, path), read_or_none(destination, path))

    at_once(read, paths)
    return found
