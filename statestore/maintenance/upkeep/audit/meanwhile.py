"""What a query, Spark and retention change while a deep audit reads the files, which can take hours. Pure.

A store is read at one time, and the checkpoint is judged as it is at the end: a file that is deleted by then is no loss if
no version needs it, and the problems of the other files count. Files that were written since are counted and not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.upkeep.audit.facts import NotAudited, StoreAuditFacts, StoreResult
from statekeeper.statestore.maintenance.upkeep.audit.store import with_problems
from statekeeper.statestore.storage import Entry

MOST_TRIES = 3
"""Reads of a store whose newest version is deleted before it is read."""


def is_outrun(found: StoreResult) -> bool:
    """Return whether the newest changelog of a store was deleted after it was listed and before it was read. Retention
    deletes the oldest versions first, so that nothing of the store was read that a start still needs."""
    if isinstance(found, NotAudited):
        return False
    head = found.chain.head
    bad = found.changelogs.get(head)
    return head in found.chain.files.changelogs and bad is not None and bad.flaw is Flaw.MISSING


def outrun(store: StorePath) -> NotAudited:
    """Return the result of a store that was outrun in each try."""
    problem = FileProblem(
        store.folder, Flaw.MISSING, f"was not read: in {MOST_TRIES} tries, its files were deleted before they were read"
    )
    return NotAudited(
        store, problem, "audit a copy: statekeeper savepoint ROOT COPY, then statekeeper audit COPY --deep"
    )


def as_it_is_now(
    read: Mapping[StorePath, StoreResult], now: Mapping[StorePath, StoreResult]
) -> tuple[dict[StorePath, StoreResult], int]:
    """Return the stores as they are now, with the problems that a read has found in files that still exist, and the number
    of files that no read has covered. `now`: a look at names, sizes and headers."""
    found: dict[StorePath, StoreResult] = {}
    unread = 0
    for store, one in now.items():
        former = read.get(store)
        if isinstance(former, NotAudited):
            found[store] = former
        elif isinstance(one, NotAudited):
            found[store] = one
        elif former is None:
            found[store] = one
            unread += len(one.chain.files.changelogs) + len(one.chain.files.snapshots)
        else:
            found[store] = _with_problems_of(former, one)
            unread += _unread(former.chain, one.chain)
    return found, unread


def _with_problems_of(read: StoreAuditFacts, now: StoreAuditFacts) -> StoreAuditFacts:
    is_same = _sameness(read.chain, now.chain)
    changelogs = {version: bad for version, bad in read.changelogs.items() if is_same(_changelog, version)}
    snapshots = {version: bad for version, bad in read.snapshots.items() if is_same(_snapshot, version)}
    changelogs, snapshots = changelogs | dict(now.changelogs), snapshots | dict(now.snapshots)
    former, present = ({one.path: one for one in of.chain.files.entries} for of in (read, now))
    refused = [
        replace(one, versions=kept)
        for one in read.refused
        if one.file in present
        and former.get(one.file) == present[one.file]
        and (kept := tuple(version for version in one.versions if version in now.chain.versions))
    ]
    known = {(one.keeper, one.file) for one in refused}
    return replace(
        now,
        chain=with_problems(now.chain, changelogs, snapshots),
        changelogs=changelogs,
        snapshots=snapshots,
        unnoticed=now.unnoticed | {version for version in read.unnoticed if version in snapshots},
        decoded=read.decoded,
        refused=(*refused, *(one for one in now.refused if (one.keeper, one.file) not in known)),
    )


_Of = Callable[[Chain, VersionId], Entry | None]


def _changelog(chain: Chain, version: VersionId) -> Entry | None:
    return chain.files.changelogs.get(version)


def _snapshot(chain: Chain, version: VersionId) -> Entry | None:
    return chain.files.snapshots.get(version)


def _sameness(read: Chain, now: Chain) -> Callable[[_Of, VersionId], bool]:
    """Return how to tell whether a file of a version was read and is the same now."""
    both = {*read.versions} & {*now.versions}
    return lambda of, version: (
        version in both and of(now, version) is not None and of(read, version) == of(now, version)
    )


def _unread(read: Chain, now: Chain) -> int:
    is_same = _sameness(read, now)
    return sum(
        of(now, one) is not None and not is_same(of, one) for one in now.versions for of in (_changelog, _snapshot)
    )
