"""The changelogs of one store for one load: fetched once onto this host, read in windows.

`planning` chooses the changelogs; `replay` reads them and reports a corrupt one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing
from statekeeper.statestore.checkpoint import digests
from statekeeper.statestore.checkpoint.lineage import Lineage
from statekeeper.statestore.checkpoint.sidecars import readable
from statekeeper.statestore.format import records
from statekeeper.statestore.format.changelog import Changes
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.compression import Readable
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import translated


class Changelogs:
    """The changelogs of one store, for one load. `fetched_files`: the number of files fetched from storage;
    `most_record_bytes`: see `read_changelog`."""

    def __init__(
        self, store: StorePath, storage: Storage, folder: LocalCopyFolder, conf: StateConf, *, most_record_bytes: int
    ) -> None:
        self.fetched_files = 0
        self._conf = conf
        self._most_record_bytes = most_record_bytes
        self._store = store
        self._storage = storage
        self._folder = folder
        self._fetched: set[VersionId] = set()

    def are_here(self, versions: Iterable[VersionId]) -> bool:
        """Whether all of these files are on this host."""
        return all(self._folder.cached_changelog(version).exists() for version in versions)

    def chain(self, base: VersionId, target: VersionId, *, fetch: bool) -> Lineage | None:
        """Find the versions after `base` whose changelogs lead to `target`, in structure V1. None if there are none.

        With `fetch`, changelogs that are not on this host are fetched. All changelogs of the result are on this host.
        Raises `ObjectMissing`, `StorageError`, `LocalDiskFull`.
        """
        if base.id is not None or base.version > target.version:
            return None
        here: dict[int, list[VersionId]] = {}
        for version in self._folder.cached_digests():
            if version.version != target.version or version.is_same(target):
                here.setdefault(version.version, []).append(version)
        absent = [n for n in range(base.version + 1, target.version + 1) if n not in here]
        if absent and not fetch:
            return None
        with self._downloaded(absent) as files:
            found = [base]
            while found[-1].version < target.version:
                continuing = [v for v in here.get(found[-1].version + 1, ()) if self._continues(found[-1], v)]
                if len(continuing) != 1:
                    # Either none, or the host has the changelogs of two attempts. Storage has one of them.
                    if not fetch:
                        return None
                    continuing = [self._kept(found[-1], files)]
                found += continuing
        return tuple(found[1:]) if found[-1].is_same(target) else None

    def as_stored(self, base: VersionId, target: VersionId) -> Lineage:
        """The versions that the changelogs in storage add to `base`, up to the number of the target, in structure V1.

        Raises as `chain`.
        """
        with self._downloaded(range(base.version + 1, target.version + 1)) as files:
            found = [base]
            while found[-1].version < target.version:
                found.append(self._kept(found[-1], files))
        return tuple(found[1:])

    def _continues(self, base: VersionId, version: VersionId) -> bool:
        with translated(self._folder.folder), contextlib.suppress(FileNotFoundError):
            return digests.following(self._store, base, self._folder.cached_changelog(version)).is_same(version)
        return False

    @contextlib.contextmanager
    def _downloaded(self, numbers: Sequence[int]) -> Iterator[dict[int, Path]]:
        """Download the changelogs of these versions of structure V1 into temporary files."""
        files: dict[int, Path] = {}

        def download(number: int) -> None:
            files[number] = self._download(VersionId(number))

        try:
            at_once(download, numbers)
            self.fetched_files += len(files)
            yield files
        finally:
            for file in files.values():
                file.unlink(missing_ok=True)

    def _kept(self, base: VersionId, files: dict[int, Path]) -> VersionId:
        """Cache the next changelog after `base` in storage. Return its version, with its digest."""
        number = base.version + 1
        if number not in files:
            files[number] = self._download(VersionId(number))
            self.fetched_files += 1
        file = files.pop(number)
        with translated(file):
            version = digests.following(self._store, base, file)
            file.replace(self._folder.cached_changelog(version))
        self._fetched.add(version)
        return version

    def _download(self, version: VersionId) -> Path:
        unfinished = self._folder.unfinished_file()
        path = self._store.changelog(version)
        try:
            with translated(unfinished):
                self._storage.download(path, unfinished)
        except ObjectMissing as error:
            raise ObjectMissing(error.what, path=path) from error
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return unfinished

    def header(self, version: VersionId, *, base: VersionId = EMPTY) -> Header:
        """Read the header of a changelog. `base`: the version before it; needed only if `version` has a digest.

        Raises `ObjectMissing`; `CorruptFile` if the file in storage is corrupt, too.
        """
        self.fetch(base, [version])
        path = self._store.changelog(version)
        try:
            return records.header_of(self._content(version), path, self._conf)
        except CorruptFile:
            self.fetch_again(base, [version])
            return records.header_of(self._content(version), path, self._conf)

    def windows(self, versions: Iterable[VersionId], memory_bytes: int) -> Iterator[Changes]:
        """Read the changes of these versions in windows of bounded size, oldest first.

        A window has the last record of each key, in key order. No window is empty. The files must be on this host and
        contain only puts and deletions. Raises `CorruptFile` when it reaches the corrupt bytes.
        """
        return records.windows(itertools.chain.from_iterable(map(self.pieces, versions)), memory_bytes)

    def pieces(self, version: VersionId) -> Iterator[Changes]:
        """Read the records of one changelog in order. Raises as `windows`."""
        path = self._store.changelog(version)
        content = self._content(version)
        return records.changes_of(content, path, self._conf, most_record_bytes=self._most_record_bytes)[1]

    def check(self, version: VersionId) -> bool:
        """Read a changelog to its end. Return whether it contains only puts and deletions. Raises as `windows`."""
        kinds = [piece.kinds is None for piece in self.pieces(version)]
        return all(kinds)

    def small(
        self, versions: Iterable[VersionId], *, most_records: int, most_bytes: int
    ) -> dict[bytes, bytes | None] | None:
        """Read the changes of these versions into one map; None if they exceed a limit. Bytes are uncompressed.

        At most the limits plus one piece of a changelog are in memory. Raises as `windows`.
        """
        changes: dict[bytes, bytes | None] = {}
        records = plain_bytes = 0
        for version in versions:
            for piece in self.pieces(version):
                records += len(piece)
                plain_bytes += len(piece.buffer)
                if records > most_records or plain_bytes > most_bytes:
                    return None
                changes.update(piece.pairs())
        return changes

    def fetch(self, base: VersionId, replay: Sequence[VersionId]) -> None:
        """Fetch the changelogs of `replay`, the versions after `base`, that are not on this host.

        Raises `ObjectMissing`, `StorageError`, `LocalDiskFull`; `CorruptFile` if a file has another digest.
        """
        absent = [
            (before, version)
            for before, version in itertools.pairwise((base, *replay))
            if not self._folder.cached_changelog(version).exists()
        ]
        at_once(self._fetch_one, absent)
        self._fetched.update(version for _, version in absent)
        self.fetched_files += sum(version.digest is None for _, version in absent)

    def fetch_again(self, base: VersionId, replay: Sequence[VersionId]) -> None:
        """Replace unreadable changelogs on this host by those in storage, except those that this load fetched."""
        for version in replay:
            if version not in self._fetched:
                self._folder.cached_changelog(version).unlink(missing_ok=True)
        self.fetch(base, replay)

    def _fetch_one(self, step: tuple[VersionId, VersionId]) -> None:
        before, version = step
        if version.digest is None:
            file = self._download(version)
            with translated(file):
                file.replace(self._folder.cached_changelog(version))
        elif not self._kept(before, {}).is_same(version):
            raise CorruptFile(
                "is not the committed file: its digest is not the one in the commit",
                path=self._store.changelog(version),
            )

    def _content(self, version: VersionId) -> Readable:
        try:
            return readable(self._folder.cached_changelog(version))
        except FileNotFoundError as error:
            # Race: this load has no lock, and the process with the lock removes the changelog.
            raise CorruptFile("was removed from the local cache", path=self._store.changelog(version)) from error
