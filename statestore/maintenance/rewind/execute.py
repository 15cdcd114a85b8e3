"""Executes a rewind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance import quarantine
from statekeeper.statestore.maintenance.rewind.plan import RewindAction, RewindPlan, RewindReason, Rewrite
from statekeeper.statestore.storage import Storage


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
