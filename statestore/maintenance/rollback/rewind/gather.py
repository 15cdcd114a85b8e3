"""Gathers the facts of a rewind. Reads only."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import (
    CorruptFile,
    NotACheckpoint,
    ObjectMissing,
    RefusedAsUnsafe,
    UnknownFormatVersion,
    VersionNotLoadable,
)
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.commit_log import CommitLog, batches_of
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.contents import file_logs, restart
from statekeeper.statestore.contents.chain import Chain, walk
from statekeeper.statestore.format import file_source, logs, names
from statekeeper.statestore.format.logs import OffsetLog
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.provider import PROVIDER, Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.maintenance.records import former_queries, skipped_batches
from statekeeper.statestore.maintenance.records.quarantine import QuarantineRecord, QueryPosition
from statekeeper.statestore.maintenance.rollback.rewind import sources
from statekeeper.statestore.maintenance.rollback.rewind.facts import RewindFacts
from statekeeper.statestore.root import attempts, binding
from statekeeper.statestore.root.attempts import parsed_position
from statekeeper.statestore.root.binding import rows_at
from statekeeper.statestore.storage import Storage, at_once, list_members, read_or_none

Placing = tuple[str | None, str | None]
"""The provider and the number of partitions in an offset log. A query keeps them; a rewrite appends a batch with others."""


def batch_at(storage: Storage, seconds: float) -> int:
    """Find the newest batch that was committed at a time or before, from the times of the commits. One listing.

    `seconds`: since the epoch. Raises `VersionNotLoadable` if no retained batch is that old; `RefusedAsUnsafe` if the
    commits do not have ascending times, as after a copy of the checkpoint; `NotACheckpoint`.
    """
    listed = {names.parse_batch(entry.path): entry for entry in storage.list(names.COMMITS)}
    times = [(batch, listed[batch].modified_at_seconds) for batch in batches_of(listed.values())]
    if not times:
        raise _no_batch(storage)
    known = [(batch, time) for batch, time in times if time is not None]
    in_order = [time for _, time in sorted(known)]
    if len(known) < len(times) or in_order != sorted(in_order):
        raise RefusedAsUnsafe(
            "the modification times of these files are not in the order of the batches, for example because the checkpoint "
            "was copied. So Statekeeper cannot find a batch by its time; nothing was changed",
            path=f"{storage.url}/{names.COMMITS}",
            hint="use --to-batch with the number of a batch instead of --to",
        )
    older = [batch for batch, time in known if time <= seconds]
    if not older:
        first, time = min(known)
        raise VersionNotLoadable(
            f"no retained batch is from {utc(seconds, between=' ')} or earlier: the oldest retained batch, {first}, was "
            f"committed at {utc(time, between=' ')}",
            path=names.commits(first),
            hint="choose a later time, or restore the checkpoint from a backup",
        )
    later = [batch for batch, time in known if time > seconds]
    if later and _began_before(storage, min(later) + 1, seconds):
        raise RefusedAsUnsafe(
            "was written again after its batch was committed, for example by rewind --undo or by a copy of the checkpoint. "
            "So Statekeeper cannot find a batch by its time; nothing was changed",
            path=names.commits(min(later)),
            hint="use --to-batch with the number of a batch instead of --to",
        )
    return max(older)


def _began_before(storage: Storage, batch: int, seconds: float) -> bool:
    """Return whether the offsets of a batch show that it began before a time; False without offsets."""
    path = names.offsets(batch)
    data = read_or_none(storage, path)
    return data is not None and logs.parse_offsets(data, path).timestamp_ms <= seconds * 1000


def gather(storage: Storage, batch: int) -> RewindFacts:
    """Gather the facts for a rewind to a batch.

    Requests: a listing; for each store the lineage of its changelog at the batch and its snapshots down to the base; each
    later commit, and the offsets from the target on; the operators' metadata; one for each later entry of a file source.
    Raises `NotACheckpoint`, `VersionNotLoadable` for a batch that is not committed, `UnsupportedProvider`, `CorruptFile`,
    `UnknownFormatVersion`, `StorageError`.
    """
    newest = catalog.newest_batch(storage)
    log = catalog.commit_log(storage, at=batch)
    if newest is None or log is None:
        raise _no_batch(storage)
    origin = origin_of(storage)
    with suppress(ObjectMissing, CorruptFile):
        origin.state_conf(storage, log.newest, tuple(Provider))  # raises for a provider of another library
    provider = next((store.provider for store in log.newest.heads), Provider.ROCKSDB)
    entries = {entry.path: entry for entry in storage.list("")}
    files = catalog.with_members(list_members(storage), entries.values(), provider)
    families = catalog.with_families(entries)
    chains: dict[StorePath, Chain] = {}

    def look(store: StorePath) -> None:
        head, committed = log.newest.heads[store], log.of_store(store)
        chains[store] = walk(
            storage,
            store,
            head,
            committed,
            files.of(store),
            down_to=head.version,
            is_first=lambda version: log.is_first(committed, version),
            needs_base=store.operator in families,
        )

    at_once(look, list(log.newest.heads))
    later = [one for one in batches_of(entry for entry in entries.values() if _is_commit(entry.path)) if one > batch]
    commits: dict[int, str] = {}
    structures: dict[int, Structure] = {}
    confs: dict[int, Placing] = {}

    def read(one: int) -> None:
        path = names.commits(one)
        data = storage.read(path)
        commits[one] = hashlib.sha256(data).hexdigest()
        with suppress(CorruptFile, UnknownFormatVersion):  # it may be the reason for the rewind
            structures[one] = logs.parse_commit(data, path).structure
        with suppress(CorruptFile, UnknownFormatVersion, ObjectMissing):
            confs[one] = _placing(logs.parse_offsets(storage.read(names.offsets(one)), names.offsets(one)))

    at_once(read, later)
    offsets = _offsets(storage, batch)
    confs[batch] = _placing(offsets)
    newest_offsets = file_logs.newest_offsets(storage, batch, offsets, entries)
    is_own = origin is Origin.OWN
    bound = binding.parse_binding(storage.read(names.BINDING)) if is_own else None
    query_id = logs.parse_metadata(storage.read(names.QUERY_METADATA), names.QUERY_METADATA)
    earlier = former_queries.earlier_rewinds(storage, entries)
    undoable = skipped_batches.rewinds(storage, entries)
    begun = {one for path in entries if (one := _batch_in(path, names.OFFSETS)) is not None}
    described = [names.operator_metadata(operator) for operator in range(len(bound.stores) if bound else 0)]
    return RewindFacts(
        url=storage.url,
        batch=batch,
        newest=newest,
        heads=log.newest,
        chains=dict(sorted(chains.items())),
        structure=catalog.structure_at(storage, batch),
        provider=provider,
        appended=frozenset(one for one in later if confs.get(one) != confs.get(one - 1)) if not is_own else frozenset(),
        crosses_conversion=any(conf[0] != confs[batch][0] for conf in confs.values()),
        newest_structure=structures[max(structures)] if structures else None,
        later_stores=_later_stores(log, entries),
        position=QueryPosition.of(storage, log.newest),
        commits=dict(sorted(commits.items())),
        files={path: entry for path, entry in entries.items() if not path.startswith(f"{names.QUARANTINE}/")},
        positions=file_source.positions(offsets, newest_offsets, entries),
        sources=sources.read(storage, offsets, newest_offsets, entries),
        query_id=query_id if bound is None else bound.query_id,
        former_ids=former_queries.ids(earlier, bound),
        known=max((newest, *begun, *(one for record in undoable for one in record.rewound), *map(_newest_of, earlier))),
        file_sinks=_file_sinks(storage, entries, earlier, undoable),
        skipped=skipped_batches.find(
            undoable,
            committed=[one for path in entries if (one := _batch_in(path, names.COMMITS)) is not None],
            begun=begun,
            newest_version=_newest_version(entries),
        ),
        binding=bound,
        rows=rows_at(storage, batch, entries) if is_own else {},
        metadata={path: storage.read(path) for path in described if path in entries},
        sinks=_sinks_after(storage, batch) if is_own else {},
    )


def _later_stores(log: CommitLog, paths: Collection[str]) -> dict[StorePath, int]:
    """The stores that have no version at the newest batch of `log` or before, and the batch that added each.

    Reads the earlier commits, but only if there are files of such a store.
    """
    batch = log.newest.batch
    versions: dict[StorePath, set[int]] = {}
    for path in paths:
        place = names.parse_place(path)
        file = names.parse_file_of_any_provider(path)
        if place is not None and file is not None:
            versions.setdefault(place[0], set()).add(file[1].version.version)
        elif place is not None and names.parse_shared_file(place[1]) is not None:
            # After an interrupted rewind, only the tables of a store may be left.
            versions.setdefault(place[0], set())
    added = {store: min(found, default=batch + 2) - 1 for store, found in versions.items()}
    later = {store: since for store, since in added.items() if since > batch and store not in log.newest.heads}
    numbers = [names.parse_batch(path) for path in paths if _is_commit(path)] if later else []
    older = [log.at(number) or {} for number in numbers if number is not None and number < batch]
    return {store: since for store, since in later.items() if not any(store in heads for heads in older)}


def _offsets(storage: Storage, batch: int) -> OffsetLog:
    path = names.offsets(batch)
    data = read_or_none(storage, path)
    if data is None:
        raise RefusedAsUnsafe(
            f"is missing, and Spark cannot start after batch {batch} without it; nothing was changed",
            path=path,
            hint="restore the file from a backup, or choose a later batch",
        )
    offsets = logs.parse_offsets(data, path)
    restart.require_original(offsets, batch)
    return offsets


def _placing(log: OffsetLog) -> Placing:
    return log.conf.get(PROVIDER), log.conf.get(logs.SHUFFLE_PARTITIONS)


def _newest_of(body: Mapping[str, Any]) -> int:
    newest = body.get("newest_batch")
    return newest if isinstance(newest, int) else -1


def _file_sinks(
    storage: Storage, paths: Collection[str], earlier: Iterable[Mapping[str, Any]], undoable: Iterable[QuarantineRecord]
) -> frozenset[str]:
    """Return the output folders of a file sink that the records of earlier rewinds and rewrites name."""
    urls = [*(body.get("file_sink") for body in earlier), *(record.file_sink for record in undoable)]
    with suppress(CorruptFile, UnknownFormatVersion):  # a guard reports it
        urls += rewrite_journal.file_sinks(storage, paths)
    return frozenset(url for url in urls if isinstance(url, str))


def _newest_version(paths: Iterable[str]) -> int:
    files = (names.parse_file_of_any_provider(path) for path in paths)
    of_logs = (log[0] for path in paths if (log := names.parse_batch_log(path)) is not None)
    return max((*(file[1].version.version for file in files if file is not None), *of_logs), default=0)


def _is_commit(path: str) -> bool:
    return _batch_in(path, names.COMMITS) is not None


def _batch_in(path: str, log: str) -> int | None:
    folder, _, name = path.rpartition("/")
    return names.parse_batch(name) if folder == log else None


def _sinks_after(storage: Storage, batch: int) -> Mapping[str, int]:
    """Return the tables of the sinks and their versions before the next batch, from the records of its attempts."""
    found: dict[str, int] = {}
    try:
        for _, record in attempts.records_at(storage, batch + 1):
            for body in (record, *(record.get("outputs") or {}).values()):
                position = parsed_position(body.get("sink"))
                if position is not None:
                    found[position.table] = min(position.version, found.get(position.table, position.version))
    except CorruptFile:
        return {}  # only shown; the audit reports the file
    except BAD_VALUES:
        return {}
    return found


def _no_batch(storage: Storage) -> NotACheckpoint:
    return NotACheckpoint(
        "has no committed batch: there is nothing to rewind", path=storage.url, hint="check the location"
    )
