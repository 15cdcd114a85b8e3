"""Executes a clone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from statestore.errors import AlreadyExists, DestinationNotEmpty, ObjectMissing, StatekeeperError, StorageError
from statestore.format import names
from statestore.format.structure import Structure
from statestore.maintenance.copies.copy_file import CopyFile, Part, Way
from statestore.maintenance.copies.plan import ClonePlan
from statestore.maintenance.pool import in_pool
from statestore.storage import Storage, at_once
from statestore.storage.base import MOST_READ_BYTES, changed

AT_ONCE = 8
"""Files that are copied at the same time."""

BEFORE_LOGS = (Part.STATE, Part.METADATA, Part.SOURCES)


def execute(
    source: Storage, destination: Storage, planned: ClonePlan, *, scratch: Path, copied: Callable[[CopyFile], None]
) -> None:
    """Copy the files of the plan after `begin`; call `copied` after each, from one thread at a time.

    *Guarantee*: after each commit, the destination is a checkpoint of its newest commit, and a run after a crash completes
    the clone. Nothing in the source changes. `scratch`: a folder for large files that pass through this machine. Raises the
    first error of a file: `ObjectMissing`, `SourceChanged`, `StorageError`.
    """
    for part in BEFORE_LOGS:
        _copy_all(source, destination, planned, planned.to_copy(part), scratch, copied)
    require_all(source, destination, planned.files, planned.structure)
    copy_logs(source, destination, planned.to_copy(Part.OFFSETS, Part.COMMITS), copied)


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


def _copy_all(
    source: Storage,
    destination: Storage,
    planned: ClonePlan,
    files: list[CopyFile],
    scratch: Path,
    copied: Callable[[CopyFile], None],
) -> None:
    errors: list[StatekeeperError] = []

    def ended(file: CopyFile, outcome: StatekeeperError | None) -> None:
        if isinstance(outcome, StatekeeperError):
            errors.append(outcome)
        else:
            copied(file)

    def copy(file: CopyFile) -> None:
        if not errors:
            _copy(source, destination, planned, file, scratch)

    in_pool(copy, files, ended, workers=AT_ONCE)
    for error in errors:
        raise error


def _copy(source: Storage, destination: Storage, planned: ClonePlan, file: CopyFile, scratch: Path) -> None:
    if planned.structure is Structure.V1 and file.part is Part.STATE:
        # An earlier run may have copied bytes that the source has replaced since.
        destination.delete([file.path])
    copy_file(source, destination, file, scratch)


def copy_file(source: Storage, destination: Storage, file: CopyFile, scratch: Path) -> None:
    """Copy a file in its way. Raises `AlreadyExists`, `ObjectMissing`, `SourceChanged`, `StorageError`."""
    if file.body is not None:
        destination.create(file.path, file.body)
    elif file.way is Way.SERVICE:
        destination.copy(file.path, source.location, file.entry)
    elif file.entry.size_bytes <= MOST_READ_BYTES:
        destination.create(file.path, source.read(file.path))
    else:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            piece = Path(folder) / "file"
            source.download(file.path, piece)
            destination.create(file.path, piece)


def copy_logs(
    source: Storage, destination: Storage, files: Sequence[CopyFile], copied: Callable[[CopyFile], None]
) -> None:
    """Copy log entries in the order of the plan, after all of them are read.

    *Guarantee*: if the source has deleted an entry since the plan, nothing is written. Raises `ObjectMissing`,
    `AlreadyExists`, `StorageError`.
    """
    bodies: dict[str, bytes] = {}

    def read(file: CopyFile) -> None:
        bodies[file.path] = source.read(file.path)

    at_once(read, files)
    for file in files:
        destination.create(file.path, bodies[file.path])
        copied(file)


def require_all(source: Storage, destination: Storage, files: Iterable[CopyFile], structure: Structure) -> None:
    """Require that all files of state and metadata are in the destination, and that those of the source did not change.

    Two listings. Raises `ObjectMissing`, `SourceChanged`, `StorageError`.
    """
    there = {entry.path: entry.size_bytes for entry in destination.list("", hidden=True)}
    now = {entry.path: entry for entry in source.list("")}
    for file in files:
        if file.is_log:
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
