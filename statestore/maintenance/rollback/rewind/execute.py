"""Executes a rewind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint.commit_log import Heads
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.executors import Executor, Place
from statekeeper.statestore.maintenance.records import quarantine
from statekeeper.statestore.maintenance.rollback.rewind.plan import RewindAction, RewindPlan, RewindReason, Rewrite
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import EngineLimits
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.loader import Loader


def execute(
    storage: Storage, planned: RewindPlan, *, run: str, scratch: Path, sink: Storage | None = None
) -> Iterator[RewindAction]:
    """Execute the plan. Yields each action after it is done. `sink`: the output folder, if the plan has a file sink.

    *Guarantee*: each file is quarantined before it is removed or rewritten, and a crash at any request leaves a checkpoint
    that loads. The next plan contains the remaining actions; `undo` reverses the executed ones. `scratch`: a folder for
    large files, if the storage service cannot copy. Raises `ObjectMissing`, `SourceChanged` if a file has changed since the
    plan, `StorageError`.
    """
    if planned.actions:
        quarantine.begin(storage, run, planned.record)
    for action in planned.actions:
        source = storage
        if action.reason is RewindReason.FILE_SINK:
            assert sink is not None
            source = sink
        quarantine.copy_file(source, action.entry, storage, names.quarantine(run, action.path), scratch=scratch)
        if isinstance(action, Rewrite):
            storage.replace(action.path, action.body)
        else:
            source.delete([action.path])
        yield action


_LIMITS = EngineLimits(block_bytes=4096)


@dataclass(frozen=True)
class RestoreEach:
    """The task of a proof: a store and the version to restore. It keeps nothing."""

    storage: Storage
    conf: StateConf

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.storage,)

    def __call__(self, head: tuple[StorePath, VersionId], place: Place) -> None:
        store, version = head
        with work_folder(place.folder, "rewind") as folder:
            cache = LocalCopyFolder(folder / "store", _LIMITS, place.ids)
            loader = Loader(
                store, self.storage, cache, _LIMITS, clock=place.clock, lock_timeout_seconds=0, conf=self.conf
            )
            with loader.restore(version, folder / "database").database:
                pass


def prove(
    storage: Storage,
    heads: Heads,
    conf: StateConf,
    *,
    executor: Executor,
    restored: Callable[[StorePath], None] = lambda store: None,
) -> dict[StorePath, StatekeeperError]:
    """Restore each store at its version in `heads`, and return the errors of those that cannot be restored.

    `restored` is called after each store, from one thread at a time. A task has one store on local disk. Reads only.
    """
    failed: dict[StorePath, StatekeeperError] = {}

    def ended(head: tuple[StorePath, VersionId], outcome: StatekeeperError | None) -> None:
        store, _ = head
        if outcome is not None:
            failed[store] = outcome
        restored(store)

    executor.map(RestoreEach(storage, conf), [one for one in heads.heads.items() if one[1] != EMPTY], ended)
    return failed
