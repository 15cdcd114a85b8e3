"""The commit of a rewrite: an appended batch of a native query (`batch`), or the rewritten head of an own root (`head`)."""

from __future__ import annotations

from types import ModuleType

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.rewrites.engine import batch, evolve, head
from statekeeper.statestore.maintenance.rewrites.engine.model import RewritePlan
from statekeeper.statestore.maintenance.rewrites.switchover.commit import has_gone_on
from statekeeper.statestore.storage import Storage


def commit(storage: Storage, begun: Begun, planned: RewritePlan) -> None:
    """Make the rewritten state the state of the query, or complete that. Raises as `batch.append` and `head.rewrite`."""
    if begun.replaced is None:
        batch.append(storage, begun, planned)
    else:
        _head(begun).rewrite(storage, begun)


def _head(begun: Begun) -> ModuleType:
    return evolve if begun.rewrite is RewriteKind.EVOLVE else head


def is_committed(storage: Storage, begun: Begun) -> bool:
    """Return whether the rewritten state is the state of the query. One request."""
    return batch.is_appended(storage, begun) if begun.replaced is None else head.is_rewritten(storage, begun)


def continued_to(storage: Storage, begun: Begun) -> int | None:
    """Return the newest batch if the query has committed it with the rewritten state; None otherwise."""
    newest = catalog.newest_batch(storage)
    if begun.replaced is not None:
        return newest if has_gone_on(storage, begun) else None
    is_later = newest is not None and newest > begun.batch + 1
    return newest if is_later and batch.is_appended(storage, begun) else None


def withdraw(storage: Storage, begun: Begun) -> None:
    """Make the former state the state of the query again. The query has not continued with the rewritten state."""
    if begun.replaced is not None:
        _head(begun).put_back(storage, begun)
    elif batch.is_appended(storage, begun):
        # The offsets first: with them alone, Spark would start the batch with the new number of partitions.
        storage.delete([names.offsets(begun.batch + 1)])
        storage.delete([names.commits(begun.batch + 1)])
