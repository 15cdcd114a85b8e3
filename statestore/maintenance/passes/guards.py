"""The guards that all verbs share: each returns the error that blocks a run, or None.

A refusal is a typed error as a value, so that a plan can show it and a run can raise it.
"""

from __future__ import annotations

from collections.abc import Iterable

from statestore import switch_journal
from statestore.errors import CorruptFile, HalfSwitched, RefusedAsUnsafe, StatekeeperError, UnknownFormatVersion
from statestore.maintenance.audit import Audit
from statestore.maintenance.config import Mode, Policies
from statestore.storage import Storage

Refusals = tuple[StatekeeperError, ...]


def refusals(*found: StatekeeperError | None) -> Refusals:
    """Those guards that block the run."""
    return tuple(one for one in found if one is not None)


def require_none(found: Iterable[StatekeeperError]) -> None:
    """Raises the first refusal."""
    for refusal in found:
        raise refusal


def deletes(storage: Storage, mode: Mode) -> RefusedAsUnsafe | None:
    """For a verb that deletes: the mode must be `full`."""
    if mode is Mode.FULL:
        return None
    return RefusedAsUnsafe(
        f"mode {mode.value}: nothing may be deleted", path=storage.url, hint="allow it with --mode full"
    )


def adds(storage: Storage, mode: Mode) -> RefusedAsUnsafe | None:
    """For a verb that only adds files: the mode must not be `observe`."""
    if mode is not Mode.OBSERVE:
        return None
    return RefusedAsUnsafe(
        "mode observe: nothing may be written",
        path=storage.url,
        hint="--dry-run shows the plan, --mode snapshots allows it",
    )


def rewrites(storage: Storage, policies: Policies) -> RefusedAsUnsafe | None:
    """For a verb that a person starts and that changes existing files: a configured mode must be `full`."""
    if policies.mode in (None, Mode.FULL):
        return None
    return RefusedAsUnsafe(
        f"mode {policies.mode.value} is configured: nothing may be changed",
        path=storage.url,
        hint='set mode = "full" for it in statekeeper.toml',
    )


def half_switched(storage: Storage) -> StatekeeperError | None:
    """No switchover may be half done, and its journal must be readable. One listing. Raises `StorageError`."""
    try:
        switch_journal.require_none(storage)
    except (HalfSwitched, CorruptFile, UnknownFormatVersion) as error:
        return error
    return None


def is_whole(found: Audit) -> RefusedAsUnsafe | None:
    """The audit must report no lost and no wrong state: what looks like garbage may be the last copy."""
    if not found.breaks:
        return None
    first = found.breaks[0]
    more = f" (and {len(found.breaks) - 1:,} more findings)" if len(found.breaks) > 1 else ""
    return RefusedAsUnsafe(
        f"{first.problem}: while the audit reports errors, nothing is deleted{more}",
        path=first.file,
        hint=f"{first.action}; to delete all the same, list what is lost: statekeeper gc ROOT --accept-loss",
    )
