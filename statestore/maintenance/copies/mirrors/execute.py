"""Executes a run of a mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from statekeeper.statestore.base.errors import AlreadyExists, DestinationNotEmpty, SourceChanged
from statekeeper.statestore.format import mirror_names
from statekeeper.statestore.maintenance.copies.clones.execute import (
    BEFORE_LOGS,
    CopyEach,
    copy_all,
    copy_file,
    copy_logs,
    replace_file,
)
from statekeeper.statestore.maintenance.copies.clones.model import CopyFile, Part
from statekeeper.statestore.maintenance.copies.mirrors import model as records
from statekeeper.statestore.maintenance.copies.mirrors.cleanup import CleanupPlan, Obsolete
from statekeeper.statestore.maintenance.copies.mirrors.gather import owner_of
from statekeeper.statestore.maintenance.copies.mirrors.plan import MirrorPlan, started_by_another
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.storage import DELETE_BATCH, Storage


def begin(destination: Storage, planned: MirrorPlan) -> None:
    """Write the record of a new mirror, the first file of the destination. Raises `DestinationNotEmpty` if another process
    has begun another mirror there since the plan; `StorageError`."""
    if planned.before is not None:
        return
    try:
        destination.create(mirror_names.MIRROR, replace(planned.record, batch=-1, first=0).encoded())
    except AlreadyExists as error:
        raise DestinationNotEmpty(
            "another process has begun a mirror here; nothing was written",
            path=destination.url,
            hint="choose an empty destination, or wait until the other process has ended and run this command again",
        ) from error


def execute(
    source: Storage,
    destination: Storage,
    planned: MirrorPlan,
    *,
    executor: Executor,
    scratch: Path,
    copied: Callable[[CopyFile], None],
) -> None:
    """Copy the files of the plan after `begin`; call `copied` after each, from one thread at a time.

    *Guarantee*: after each request, the newest commit of the mirror can be loaded and cloned. Files of state come first;
    then the offsets and the commit of one batch after the other, as Spark writes them. A run after a crash completes the
    mirror. Nothing in the source changes. Raises the first error of a file: `ObjectMissing`, `SourceChanged`,
    `StorageError`; `SourceChanged` if another process has continued the mirror since the plan, `MirrorStarted` if a query
    has claimed it.

    *Exception*: the source has deleted the batch that follows the newest one of the mirror. After a crash between the logs
    of the next batch that it has, Spark cannot start from the mirror itself, because it requires the offsets before the
    newest ones. A clone has only committed batches, so Spark can start from it; a rewind of the mirror to its newest batch
    removes the offsets.
    """
    now = records.read(destination)
    begun = planned.before or replace(planned.record, batch=-1, first=0)
    if now != begun:
        raise SourceChanged(
            "another process copies files to this mirror at the same time; this run copied nothing",
            path=f"{destination.url}/{mirror_names.MIRROR}",
            hint="wait until the other process finishes, then run this command again",
        )
    # Race: the run is planned; a claim makes another query the owner of the mirror; the run would revert the binding.
    started = started_by_another(owner_of(destination), begun, destination.url)
    if started is not None:
        raise started
    # The list announces the files: a leftover with an announced mark would count as copied.
    destination.delete(planned.leftovers)
    if planned.marks:
        destination.create(mirror_names.mirrored(planned.number), records.encode_marks(planned.marks))
    if planned.merged:
        destination.delete([mirror_names.mirrored(number) for number in planned.merged])
    files = planned.to_copy(*BEFORE_LOGS)
    others = [file for file in files if file.path not in planned.rewritten]
    copies = CopyEach(source, destination)
    copy_all(copies, others, _is_replaced, executor=executor, scratch=scratch, copied=copied)
    # A rewritten zip may name new tables, and its checksum comes after it.
    for file in (file for file in files if file.path in planned.rewritten):
        _copy(source, destination, file, scratch)
        copied(file)
    copy_logs(source, destination, planned.files, planned.structure, copied)
    destination.replace(mirror_names.MIRROR, planned.record.encoded())


def execute_cleanup(
    destination: Storage, planned: CleanupPlan, before: Callable[[], None]
) -> Iterator[Sequence[Obsolete]]:
    """Delete the files of the plan, in its order; call `before` before each request, and yield its files after it. Raises
    `StorageError`."""
    for start in range(0, len(planned.obsolete), DELETE_BATCH):
        before()
        files = planned.obsolete[start : start + DELETE_BATCH]
        destination.delete([file.path for file in files])
        yield files


def _is_replaced(file: CopyFile) -> bool:
    """A repair rewrites zips; Spark overwrites some metadata, such as the schema of a store after a change."""
    return file.part is not Part.STATE or mirror_names.is_snapshot(file.path)


def _copy(source: Storage, destination: Storage, file: CopyFile, scratch: Path) -> None:
    try:
        copy_file(source, destination, file, scratch)
    except AlreadyExists:
        if not _is_replaced(file):
            raise
        replace_file(source, destination, file, scratch)
