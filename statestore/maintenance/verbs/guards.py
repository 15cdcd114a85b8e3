"""The guards of all verbs. Each guard returns the error that blocks a run, or None.

A refusal is a typed error as a value: a plan displays it, and a run raises it. `contract.prepare` collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import (
    CorruptFile,
    HalfSwitched,
    RefusedAsUnsafe,
    RootHeld,
    StatekeeperError,
    UnknownFormatVersion,
)
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import holds, lease
from statekeeper.statestore.maintenance.upkeep.audit import Audit
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.storage import Storage

Refusals = tuple[StatekeeperError, ...]


def refusals(*found: StatekeeperError | None) -> Refusals:
    """Collect the errors of the guards that block the run."""
    return tuple(one for one in found if one is not None)


def require_none(found: Iterable[StatekeeperError]) -> None:
    """Raise the first refusal, if there is one."""
    for refusal in found:
        raise refusal


def deletes(storage: Storage, mode: Mode) -> RefusedAsUnsafe | None:
    """Require mode `full`, for a verb that deletes files."""
    if mode is Mode.FULL:
        return None
    return RefusedAsUnsafe(
        f"the mode of this root is {mode.value}, which allows no deletions; nothing was deleted",
        path=storage.url,
        hint="to allow deletions, add --mode full",
    )


def adds(storage: Storage, mode: Mode) -> RefusedAsUnsafe | None:
    """Require a mode other than `observe`, for a verb that only adds files."""
    if mode is not Mode.OBSERVE:
        return None
    return RefusedAsUnsafe(
        "the mode of this root is observe, which allows no new files; nothing was written",
        path=storage.url,
        hint="to see the plan, add --dry-run; to allow new files, add --mode snapshots",
    )


def rewrites(storage: Storage, policies: Policies) -> RefusedAsUnsafe | None:
    """Require that a configured mode is `full`, for a verb that a person starts and that changes existing files."""
    if policies.mode in (None, Mode.FULL):
        return None
    return RefusedAsUnsafe(
        f"the configured mode of this root is {policies.mode.value}, which allows no change of existing files; nothing was "
        "changed",
        path=storage.url,
        hint='to allow changes, set mode = "full" for this root in statekeeper.toml',
    )


def is_query_id(storage: Storage, query_id: str | None) -> RefusedAsUnsafe | None:
    """Require the form of Spark's query ids; None is no id."""
    if query_id is None or names.is_checkpoint_id(query_id):
        return None
    return RefusedAsUnsafe(
        f"the query id {query_id!r} is not a UUID, but Spark's query ids are UUIDs; nothing was written",
        path=storage.url,
        hint="give a UUID such as 6ad1c2f0-0000-4000-8000-000000000000, or leave out the query id",
    )


def half_switched(storage: Storage) -> StatekeeperError | None:
    """Require that no switchover is half done and that its journal is readable. One listing. Raises `StorageError`."""
    return _error_of(lambda: rewrite_journal.require_none(storage))


def unheld(storage: Storage, clock: Clock) -> StatekeeperError | None:
    """Require that no other maintainer holds the lease. Raises `StorageError`."""
    return _error_of(lambda: lease.require_free(storage, clock=clock))


def copies(source: Storage, destination: Storage, mode: Mode, clock: Clock) -> Refusals:
    """Require that no verb deletes files of the source of a copy, and that no other maintainer holds the lease of the
    destination. In mode `observe`, a copy does not hold its batch in the source. Raises `StorageError`."""
    return refusals(*reads(source, mode, clock), unheld(destination, clock))


def reads(source: Storage, mode: Mode, clock: Clock) -> Refusals:
    """Require that no verb deletes files of a root that is read for long. In mode `observe`, no hold is written. Raises
    `StorageError`."""
    return refusals(None if mode is Mode.OBSERVE else _error_of(lambda: holds.require_possible(source, clock=clock)))


def _error_of(require: Callable[[], None]) -> StatekeeperError | None:
    try:
        require()
    except (HalfSwitched, RootHeld, CorruptFile, UnknownFormatVersion) as error:
        return error
    return None


def is_whole(found: Audit) -> RefusedAsUnsafe | None:
    """Require that the audit reports no lost and no wrong state: an unneeded file may be the last copy."""
    if not found.breaks:
        return None
    first = found.breaks[0]
    more = f" (one of {len(found.breaks):,} errors)" if len(found.breaks) > 1 else ""
    return RefusedAsUnsafe(
        f"{first.problem}{more}; gc deletes nothing while the audit reports errors",
        path=first.file,
        hint=f"{first.action}. To delete files nevertheless, first list the batches that are lost: statekeeper gc ROOT "
        "--accept-loss",
    )
