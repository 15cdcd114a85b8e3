"""Gathers the facts of a clone. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from statekeeper.statestore.base.errors import NotACheckpoint
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import FilesByStore
from statekeeper.statestore.checkpoint.commit_log import CommitLog
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents.chain import Chain, walk
from statekeeper.statestore.contents.file_logs import positions_at
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import labels
from statekeeper.statestore.maintenance.copies.clones import model
from statekeeper.statestore.maintenance.copies.clones.model import CloneFacts, Place
from statekeeper.statestore.maintenance.upkeep.snapshot.gather import LIVE_MARGIN_VERSIONS
from statekeeper.statestore.root import binding
from statekeeper.statestore.root.binding import rows_at
from statekeeper.statestore.storage import Storage, at_once, list_members


def newest_settled(source: Storage, origin: Origin, newest: int, *, stopped: bool) -> int:
    """Return the newest batch of the source whose files no query replaces any more; below 0 if there is none.

    In structure V1, a running Spark query may replace the changelogs of its newest `LIVE_MARGIN_VERSIONS` batches. This
    does not apply to a query without stores, nor to a clone or a savepoint from which no query has continued. `newest`: the
    newest batch of the source; `stopped`: a person confirms that the query is stopped. Requests, only for a Spark query in
    structure V1: its newest commit, the records of a clone and of a savepoint, a listing of the offset log. Raises as
    `catalog.heads_at`, `record.read` and `labels.read`.
    """
    if stopped or origin is Origin.OWN or catalog.structure_at(source, newest) is Structure.V2:
        return newest
    if not catalog.heads_at(source, newest).heads or _is_unused_copy(source, newest):
        return newest
    return newest - LIVE_MARGIN_VERSIONS


def _is_unused_copy(source: Storage, newest: int) -> bool:
    cloned, label = model.read(source), labels.read(source)
    copied = {made.batch for made in (cloned, label) if made is not None}
    # A query writes the offsets of a batch before its tasks write state.
    return newest in copied and catalog.newest_begun(source) <= newest


def gather(
    source: Storage,
    destination: Storage,
    *,
    batch: int | None = None,
    stopped: bool = False,
    since: int | None = None,
    supported: Collection[Provider] = tuple(Provider),
    only: Collection[StorePath] | None = None,
) -> CloneFacts:
    """Gather the facts for a batch of the source, by default the newest one whose files no longer change.

    `since`: of a mirror that has this older batch: also follow the chains back to it. `supported`: the providers that the
    verb supports. `only`: the chains of these stores, by default of all.

    In structure V1, a running Spark query may replace the files of its newest batches: see `newest_settled`. Requests:
    listings of both roots; for each store the lineage of its newest changelog and its snapshots down to the base; the
    commits down to the oldest base, on demand; one request for each operator, for `metadata` and for the offsets. Raises
    `NotACheckpoint`, `VersionNotLoadable` for a batch that is not committed, `CorruptFile`, `UnknownFormatVersion`,
    `StorageError`.
    """
    newest = catalog.newest_batch(source)
    if newest is None:
        raise NotACheckpoint(
            "has no committed batch: there is nothing to copy",
            path=source.url,
            hint="run this command again after the query has committed its first batch",
        )
    origin = origin_of(source)
    settled = newest_settled(source, origin, newest, stopped=stopped)
    batch = max(0, settled) if batch is None else batch
    log = catalog.commit_log(source, at=batch)
    assert log is not None
    conf = origin.state_conf(source, log.newest, supported)
    entries = {entry.path: entry for entry in source.list("")}
    files = catalog.with_members(list_members(source), entries.values(), conf.provider)
    families = catalog.with_families(entries)
    oldest = batch if since is None else min(batch, since)
    chains = chains_of(source, log, files, families, down_to=oldest + 1, only=only)
    offsets = logs.parse_offsets(source.read(names.offsets(batch)), names.offsets(batch))
    restart.require_original(offsets, batch)
    bound = binding.parse_binding(source.read(names.BINDING)) if origin is Origin.OWN else None
    query_id = logs.parse_metadata(source.read(names.QUERY_METADATA), names.QUERY_METADATA)
    return CloneFacts(
        source_place=Place(url=source.url, location=source.location),
        destination_place=Place(url=destination.url, location=destination.location),
        batch=batch,
        since=oldest,
        floor=0 if since is None else oldest,
        newest=newest,
        settled=settled,
        structure=catalog.structure_at(source, batch),
        query_id=query_id if bound is None else bound.query_id,
        binding=bound,
        chains=chains,
        source=entries,
        positions=positions_at(source, batch, offsets, entries),
        metadata={path: source.read(path) for path in entries if _has_uris(path)},
        rows=rows_at(source, batch, entries) if bound is not None else {},
        existing={entry.path: entry for entry in destination.list("", hidden=True)},
        record=model.read(destination),
    )


def _has_uris(path: str) -> bool:
    """Return whether this is metadata of an operator with column families. A quarantined copy has a longer path."""
    place = names.parse_operator_metadata(path)
    return place is not None and place[1] >= 0


def chains(storage: Storage, *, down_to: int, without: Collection[str] = ()) -> Mapping[StorePath, Chain]:
    """Gather the chains of a checkpoint from its heads back to a base of version `down_to`, as if it lacked the paths of
    `without`. Raises as `gather`."""
    log = catalog.commit_log(storage)
    if log is None:
        return {}
    entries = [entry for entry in storage.list("") if entry.path not in without]
    members = list_members(storage)
    left = tuple(entry for entry in members.entries if entry.log not in without)
    files = catalog.with_members(replace(members, entries=left), entries)
    return chains_of(storage, log, files, catalog.with_families(entry.path for entry in entries), down_to=down_to)


def chains_of(
    storage: Storage,
    log: CommitLog,
    files: FilesByStore,
    families: frozenset[int],
    *,
    down_to: int,
    only: Collection[StorePath] | None = None,
) -> Mapping[StorePath, Chain]:
    """Walk the chains of all stores, or `only` of some, at the newest batch of a log, back to a base of version
    `down_to`."""
    found: dict[StorePath, Chain] = {}

    def look(store: StorePath) -> None:
        committed = log.of_store(store)
        found[store] = walk(
            storage,
            store,
            log.newest.heads[store],
            committed,
            files.of(store),
            down_to=down_to,
            is_first=lambda version: log.is_first(committed, version),
            needs_base=store.operator in families,
        )

    at_once(look, [store for store in log.newest.heads if only is None or store in only])
    return dict(sorted(found.items()))
