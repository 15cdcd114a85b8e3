"""Executes a clone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.errors import (
    AlreadyExists,
    DestinationNotEmpty,
    ObjectMissing,
    SourceChanged,
    StatekeeperError,
    StorageError,
)
from statekeeper.statestore.format import names
from statekeeper.statestore.format.limits import MOST_READ_BYTES
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones.gather import gather
from statekeeper.statestore.maintenance.copies.clones.model import CopyFile, Part, Way
from statekeeper.statestore.maintenance.copies.clones.plan import ClonePlan, files_of_stores
from statekeeper.statestore.maintenance.executors import Executor, Place
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.storage.base import changed

AT_ONCE = 8
"""Files that this machine copies at the same time."""

_FILES_OF_A_TASK = 32
"""Files of a task on a cluster, which copies `storage.parallel.AT_ONCE` at a time: most of a copy is waiting."""

BEFORE_LOGS = (Part.STATE, Part.METADATA, Part.SOURCES)


def execute(
    source: Storage,
    destination: Storage,
    planned: ClonePlan,
    *,
    executor: Executor,
    scratch: Path,
    copied: Callable[[CopyFile], None],
) -> None:
    """Copy the files of the plan after `begin`; call `copied` after each, from one thread at a time.

    *Guarantee*: after each commit, the destination is a checkpoint of its newest commit, and a run after a crash completes
    the clone. Nothing in the source changes. `scratch`: a folder for large files that pass through this machine. Raises the
    first error of a file: `ObjectMissing`, `SourceChanged`, `StorageError`.
    """

    def is_replaced(file: CopyFile) -> bool:
        # An earlier run may have copied bytes that the source has replaced since.
        return planned.structure is Structure.V1 and file.part is Part.STATE

    for part in BEFORE_LOGS:
        copies = CopyEach(source, destination)
        copy_all(copies, planned.to_copy(part), is_replaced, executor=executor, scratch=scratch, copied=copied)
    copy_logs(source, destination, planned.files, planned.structure, copied)


def copy_stores(
    source: Storage,
    destination: Storage,
    batch: int,
    stores: Collection[StorePath],
    *,
    executor: Executor,
    scratch: Path,
) -> None:
    """Copy some stores at a batch to an empty location, so that Spark's reader shows them: see `files_of_stores`.

    Raises the first reason not to copy; as `gather`, `copy_all` and `copy_logs`.
    """
    gathered = gather(source, destination, batch=batch, since=batch, stopped=True, only=stores)
    files, refusals = files_of_stores(gathered)
    if refusals:
        raise refusals[0]
    before = [file for file in files if not file.is_log]
    copies = CopyEach(source, destination)
    copy_all(copies, before, lambda file: False, executor=executor, scratch=scratch, copied=lambda file: None)
    copy_logs(source, destination, files, gathered.structure, lambda file: None)


def require_unchanged(source: Storage, files: Iterable[CopyFile]) -> None:
    """Require, before anything is written, that the source still has the files to copy as they were planned.

    One listing. Raises `SourceChanged`, `StorageError`.
    """
    now = {entry.path: entry for entry in source.list("")}
    for file in files:
        if file.way is not Way.PRESENT and now.get(file.path) != file.entry:
            state = "changed" if file.path in now else "was deleted"
            raise SourceChanged(
                f"{state} after the plan was made; nothing was written",
                path=f"{source.url}/{file.path}",
                hint="run this command again",
            )


def begin(destination: Storage, planned: ClonePlan) -> None:
    """Write the record of the clone, the first file of the destination. Raises `DestinationNotEmpty` if another process has
    begun another clone there since the plan; `StorageError`."""
    try:
        destination.create(names.CLONED, planned.record.encoded())
    except AlreadyExists as error:
        raise DestinationNotEmpty(
            "another process has begun a clone here; nothing was written",
            path=destination.url,
            hint="choose an empty destination, or wait for the other process",
        ) from error


Conflicts = Mapping[int, AlreadyExists]
"""The files of a task that exist in the destination with other bytes, by their number."""


@dataclass(frozen=True)
class CopyEach:
    """The task of a copy: some files. It only creates files, because it may run twice, on two hosts at the same time."""

    source: Storage
    destination: Storage

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.source, self.destination)

    def __call__(self, files: Sequence[CopyFile], place: Place) -> Conflicts:
        conflicts: dict[int, AlreadyExists] = {}

        def copy(number: int) -> None:
            try:
                copy_file(self.source, self.destination, files[number], place.folder)
            except AlreadyExists as error:
                conflicts[number] = error

        at_once(copy, range(len(files)))
        return conflicts


def copy_all(
    copies: CopyEach,
    files: Sequence[CopyFile],
    is_replaced: Callable[[CopyFile], bool],
    *,
    executor: Executor,
    scratch: Path,
    copied: Callable[[CopyFile], None],
) -> None:
    """Copy files, several at a time; call `copied` after each, from one thread at a time.

    A file that exists with other bytes is an error, unless it `is_replaced`. Then this process replaces it, after all
    others and under the lease. Raises the first error of a file; files that are being copied then are completed.

    Race: on a cluster, a copy is repeated on another host, and the first try stalls; the next run replaces the file by
    newer bytes; the stalled try puts the old bytes in place of them. It cannot, because it does not replace.
    """
    errors, replaced = list[StatekeeperError](), list[CopyFile]()

    def ended(some: Sequence[CopyFile], outcome: Conflicts | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            errors.append(outcome)
            raise errors[0]
        for number, file in enumerate(some):
            if number not in outcome:
                copied(file)
            elif is_replaced(file):
                replaced.append(file)
            else:
                errors.append(outcome[number])
        if errors:
            raise errors[0]

    several = 1 if executor.is_here else _FILES_OF_A_TASK
    executor.map(copies, [files[first : first + several] for first in range(0, len(files), several)], ended)
    for file in replaced:
        replace_file(copies.source, copies.destination, file, scratch)
        copied(file)


def copy_file(source: Storage, destination: Storage, file: CopyFile, scratch: Path) -> None:
    """Copy a file in its way. Raises `AlreadyExists`, `ObjectMissing`, `SourceChanged`, `StorageError`."""
    if file.body is None and file.way is Way.SERVICE:
        destination.copy(file.path, source.location, file.entry)
    else:
        with _content(source, file, scratch) as content:
            destination.create(file.path, content)


def replace_file(source: Storage, destination: Storage, file: CopyFile, scratch: Path) -> None:
    """Copy a file over another one. Raises `ObjectMissing`, `StorageError`."""
    with _content(source, file, scratch) as content:
        destination.replace(file.path, content)


@contextmanager
def _content(source: Storage, file: CopyFile, scratch: Path) -> Iterator[bytes | Path]:
    """Return the bytes of a file, or a local copy of a large one."""
    if file.body is not None or file.entry.size_bytes <= MOST_READ_BYTES:
        yield source.read(file.path) if file.body is None else file.body
        return
    from statekeeper.statestore.store.engine.scratch import work_folder

    with work_folder(scratch, "copy") as folder:
        piece = folder / "file"
        source.download(file.path, piece)
        yield piece


def copy_logs(
    source: Storage,
    destination: Storage,
    files: Sequence[CopyFile],
    structure: Structure,
    copied: Callable[[CopyFile], None],
) -> None:
    """Copy the log entries among the files of a plan, in its order, after all other files.

    *Guarantee*: all entries are read, and then verified with the other files as in `require_all`, before the first one is
    written. If the source has deleted or replaced an entry since the plan, nothing is written: a query that was rolled back
    meanwhile may have committed other state under the same number. Raises as `require_all`, and `AlreadyExists`.
    """
    bodies: dict[str, bytes] = {}
    logs = [file for file in files if file.is_log and file.way is not Way.PRESENT]

    def read(file: CopyFile) -> None:
        bodies[file.path] = source.read(file.path)

    at_once(read, logs)
    require_all(source, destination, files, structure)
    for file in logs:
        destination.create(file.path, bodies[file.path])
        copied(file)


def require_all(source: Storage, destination: Storage, files: Iterable[CopyFile], structure: Structure) -> None:
    """Require that all files of state and metadata are in the destination, and that those of the source did not change:
    the log entries to copy and, in structure V1, the state.

    Two listings. Raises `ObjectMissing`, `SourceChanged`, `StorageError`.
    """
    there = {entry.path: entry.size_bytes for entry in destination.list("", hidden=True)}
    now = {entry.path: entry for entry in source.list("")}
    for file in files:
        if file.is_log:
            if file.way is not Way.PRESENT and now.get(file.path) != file.entry:
                raise changed(f"{source.url}/{file.path}")
            continue
        if file.path not in there:
            raise ObjectMissing(
                "was copied, but it no longer exists in the destination; the copy is not complete",
                path=f"{destination.url}/{file.path}",
                hint="stop the process that deletes files there, then run this command again",
            )
        if there[file.path] != file.size_bytes:
            raise StorageError(
                f"has {there[file.path]:,} bytes instead of {file.size_bytes:,}; the copy is not complete",
                path=f"{destination.url}/{file.path}",
                hint="delete the destination, then run this command again",
            )
        if structure is Structure.V1 and file.part is Part.STATE and now.get(file.path) != file.entry:
            raise changed(f"{source.url}/{file.path}")
