"""Visits that are not repeated: a visit that had nothing to do has the same result again if no file has changed.

So a sweep of an idle fleet costs one listing of each query instead of a visit. A listing shows all files with their sizes,
times and etags. What it cannot show is noticed by the next whole visit, at most a day later: bytes that change without a
change of size and time, and old records of maintenance, which become garbage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.maintenance.rounds.visit import Visit, visit
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.contract import Run
from statekeeper.statestore.storage import Entry, Reads

WHOLE_VISIT_SECONDS = 86_400.0
"""The most time between two whole visits of a query."""

_SETTLED_SECONDS = 60.0
"""On a file system, a file may be replaced by one of the same size within the resolution of its time."""


@dataclass(frozen=True)
class _Files:
    """The files of a query as a listing showed them. `is_settled`: none of them becomes garbage because of its age, and
    none can be replaced without a change of the listing."""

    digest: bytes
    is_settled: bool


@dataclass(frozen=True)
class _Kept:
    files: _Files
    policies: Policies
    visit: Visit
    at_seconds: float


class Unchanged:
    """Visits queries, and keeps the visits that had nothing to do. Each query is visited by one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def visit(self, name: str, run: Run, *, reads: Reads) -> Visit:
        """Return the result of a visit, which is made only if the last one does not tell it. As `visit.visit`."""
        now, started = self._clock.now_seconds(), self._clock.monotonic_seconds()
        before = run.storage.requests.snapshot()
        kept = self._kept.pop(name, None)
        try:
            files = self._look(run, now)
        except StorageError:
            return visit(name, run, reads=reads)
        if (
            kept is not None
            and (kept.files.digest, kept.policies) == (files.digest, run.policies)
            and 0 <= now - kept.at_seconds < WHOLE_VISIT_SECONDS
        ):
            self._kept[name] = kept
            seconds = self._clock.monotonic_seconds() - started
            return replace(kept.visit, requests=run.storage.requests.since(before), seconds=seconds)
        done = visit(name, run, reads=reads)
        if files.is_settled and _had_nothing_to_do(done):
            # Without the facts, which are large.
            kept_visit = replace(done, snapshots=None, retention=None, audited=None, is_unchanged=True)
            self._kept[name] = _Kept(files, run.policies, kept_visit, now)
        return replace(done, requests=run.storage.requests.since(before))

    def _look(self, run: Run, now_seconds: float) -> _Files:
        entries = run.storage.list("", hidden=True)
        omitted = run.storage.omissions.below("")
        digest = hashlib.blake2b(f"{run.storage.url}\n".encode(), digest_size=16)
        for one in entries:
            digest.update(f"{one.path}\0{one.size_bytes}\0{one.modified_at_seconds}\0{one.etag}\n".encode())
        for skipped in omitted:
            digest.update(f"{skipped.shown}\0{skipped.reason}\n".encode(errors="backslashreplace"))
        return _Files(digest.digest(), _settled_at(entries, run.policies.retention.grace_seconds) <= now_seconds)


def _settled_at(entries: Sequence[Entry], grace_seconds: float) -> float:
    """Return when all files are settled. Files become garbage at the end of the grace period."""
    newest = max((one.modified_at_seconds or float("inf") for one in entries), default=0.0)
    has_etags = all(one.etag is not None for one in entries)
    return newest + max(grace_seconds, 0.0 if has_etags else _SETTLED_SECONDS)


def _had_nothing_to_do(done: Visit) -> bool:
    is_maintained = done.snapshots is not None and done.retention is not None
    is_complete = done.after is not None and (is_maintained or done.is_left_to_spark)
    made = done.taken.taken or done.taken.failed or done.deleted
    return is_complete and not (done.has_failed or done.is_held or made)
