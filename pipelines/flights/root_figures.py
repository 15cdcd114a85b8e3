"""Figures of a state root beside its running job: size of the state, time of a restart, newest maintenance."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import history
from statekeeper.statestore.maintenance.upkeep.snapshot import gather
from statekeeper.statestore.storage import Storage

_VERBS = ("snapshot", "gc")


@dataclass(frozen=True, kw_only=True)
class RootFigures:
    """The figures of a root at its newest committed batch.

    size_bytes, files     the changelogs and snapshots, also those that retention will delete
    restart_seconds       predicted replay of all tails, one after another, if the job restarted on a new host now
    longest_tail          changelogs that a restart replays for one store, at most
    maintained_seconds    Unix time of the newest snapshots or deletions of Statekeeper; None if there are none
    """

    size_bytes: int
    files: int
    restart_seconds: float
    longest_tail: int
    maintained_seconds: float | None


def root_figures(root: Storage) -> RootFigures | None:
    """Look at the root; None before the first commit, and while a rewrite changes its files. Raises `StorageError`."""
    try:
        facts = gather(root)
    except CorruptFile:
        return None
    if facts.batch is None:
        return None
    entries = [*root.list(names.STATE), *root.list(names.BATCH_LOGS)]
    return RootFigures(
        size_bytes=sum(entry.size_bytes for entry in entries),
        files=len(entries),
        restart_seconds=sum(facts.restore_seconds(fact) for fact in facts.stores),
        longest_tail=max((len(fact.load.replay) for fact in facts.stores if fact.load is not None), default=0),
        maintained_seconds=max(history.starts_of_runs(root, _VERBS), default=None),
    )
