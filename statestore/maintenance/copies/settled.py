"""Finds the newest batch whose files no query replaces any more. Reads only."""

from __future__ import annotations

from statekeeper.statestore import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance import labels
from statekeeper.statestore.maintenance.copies import record
from statekeeper.statestore.maintenance.snapshot.gather import LIVE_MARGIN_VERSIONS
from statekeeper.statestore.origin import Origin
from statekeeper.statestore.storage import Storage


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
    cloned, label = record.read(source), labels.read(source)
    copied = {made.batch for made in (cloned, label) if made is not None}
    # A query writes the offsets of a batch before its tasks write state.
    return newest in copied and catalog.newest_begun(source) <= newest
