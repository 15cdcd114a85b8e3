"""What differs from rewrite to rewrite: `RewriteSteps`. `execute` and `revert` call the steps; nothing else does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Made, RewriteJournal
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.rewrites.engine.commit import former_heads
from statekeeper.statestore.maintenance.rewrites.engine.model import (
    Machine,
    Plan,
    Progress,
    ProgressCallback,
    RewritePhase,
)
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Storage, read_or_none

P = TypeVar("P", bound=Plan)


@dataclass(kw_only=True)
class Rewriting:
    """A rewrite whose journal is open, while it is executed or reversed.

    made        the snapshots that are published and verified; the execution adds its own
    is_cleared  see `rewrite_journal.note_cleared`
    progress    called after each step, also from other threads, one at a time
    still_held  raises an error if the lease is lost
    sink        the output folder of the query's file sink, if the rewrite has an entry in its log
    is_rolled_back  another maintainer has rolled back the rewrite during its execution
    """

    storage: Storage
    begun: Begun
    made: dict[StorePath, Made]
    is_cleared: bool
    progress: ProgressCallback
    still_held: Callable[[], None]
    sink: Storage | None
    is_rolled_back: bool = False

    @classmethod
    def of(
        cls,
        storage: Storage,
        opened: RewriteJournal,
        progress: ProgressCallback,
        still_held: Callable[[], None],
        open_sink: Callable[[str], Storage],
    ) -> Self:
        """Continue from a journal. `open_sink`: opens the output folder of the query's file sink by its URL."""
        entry = opened.begun.file_sink
        return cls(
            storage=storage,
            begun=opened.begun,
            made=dict(opened.made),
            is_cleared=opened.is_cleared,
            progress=progress,
            still_held=still_held,
            sink=None if entry is None else open_sink(entry.url),
        )

    def tell(self, phase: RewritePhase, done: int = 0, of: int = 0) -> None:
        """Report a step."""
        self.progress(Progress(phase=phase, done=done, of=of))


class RewriteSteps(ABC, Generic[P]):
    """The steps of one kind of rewrite. Each is idempotent, and a crash may follow any request of a step.

    The execution calls `verify`, `begin`, `prepare`, `make_snapshots`, `commit`, `clean_up` and `release`, in this order;
    the rollback calls `restore` and `clean_up_restored`. An execution that completes an interrupted one calls all of them
    again but the first two.
    """

    def verify(self, storage: Storage, planned: P, machine: Machine, progress: ProgressCallback) -> None:
        """Verify the inputs before the journal is opened: a failure leaves no half-done rewrite."""

    def is_as_planned(self, storage: Storage, planned: P) -> bool:
        """Return whether the checkpoint is as it was when the plan of a new rewrite was made."""
        assert planned.batch is not None
        commit = read_or_none(storage, names.commits(planned.batch))
        return commit == planned.commit.encode() and catalog.newest_batch(storage) == planned.batch

    @abstractmethod
    def begin(self, storage: Storage, planned: P, *, number: int, run: str, ids: Ids) -> Begun:
        """Return the contents of the journal. Reads only."""

    @abstractmethod
    def prepare(self, work: Rewriting, planned: P) -> None:
        """Make sure that no query starts from a part of the new snapshots."""

    @abstractmethod
    def make_snapshots(self, work: Rewriting, planned: P, machine: Machine) -> None:
        """Make the missing snapshots of `begun.built`, with `snapshots.make_each`."""

    @abstractmethod
    def commit(self, work: Rewriting, planned: P, machine: Machine) -> RewritePhase:
        """Make the new state that of the query, once, unless the query has continued with it. Return the phase."""

    @abstractmethod
    def clean_up(self, work: Rewriting, planned: P) -> None:
        """Allow the start of the query."""

    def release(self, work: Rewriting, planned: P) -> None:
        """Allow the start of the query after a clean audit, if `clean_up` did not."""

    @abstractmethod
    def is_committed(self, storage: Storage, begun: Begun) -> bool:
        """Return whether the newest commit is that of the rewrite."""

    @abstractmethod
    def continued_to(self, work: Rewriting) -> int | None:
        """Return the newest batch if the query has committed it with the new state; None otherwise."""

    @abstractmethod
    def restore(self, work: Rewriting) -> None:
        """Make the former state that of the query again. The new snapshots still exist."""

    def own_snapshots(self, work: Rewriting) -> list[str]:
        """Return the paths of the new snapshots, which nothing else has written."""
        return sorted(store.snapshot(version) for store, version in work.begun.built.items())

    def clean_up_restored(self, work: Rewriting) -> None:
        """Allow the start of the query, after the new snapshots are deleted."""

    def require_unused(self, storage: Storage, begun: Begun, stays: str) -> None:
        """Require that nothing has been begun on the state of a completed rewrite. `stays`: that nothing was changed.
        Raises `RefusedAsUnsafe`."""

    def problems_of_former(self, storage: Storage, begun: Begun) -> Iterator[tuple[StorePath, str]]:
        """Yield the stores whose version before a completed rewrite can no longer be restored, with the reason."""
        files = catalog.files(storage)
        for store, head in former_heads(begun).items():
            problem = snapshot.facts_of(storage, store, head, files.of(store)).problem
            if problem is not None:
                yield store, problem
