"""What one load knows and finds out, until it is decided from which files the version comes.

Which files give a version is decided by `lineage`, in structure V1 of our own by `confirmed`; here the facts are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion, VersionNotLoadable
from statestore.format.names import EMPTY, StoreFileKind, StorePath, VersionId, parse_store_file
from statestore.lineage import BaseKind, Lineage, LoadPlan, LocalCopy, NeedsHeader, NotLoadable, next_step
from statestore.loading.changelogs import Changelogs
from statestore.loading.confirmed import plan_confirmed
from statestore.loading.loaded import LoadMetrics
from statestore.storage import Storage


@dataclass
class Attempt:
    """One load of `target`. `snapshots`: the versions with one that was not found damaged, as far as it is known."""

    store: StorePath
    storage: Storage
    target: VersionId
    snapshots: set[VersionId]
    changelogs: Changelogs
    metrics: LoadMetrics = field(default_factory=LoadMetrics)
    _listed: bool = False
    _headers: dict[VersionId, Lineage] = field(default_factory=dict)

    def plan(self, local: LocalCopy | None = None) -> LoadPlan:
        """Look up what the decision still needs, until there is one. Raises `VersionNotLoadable`, `StorageError`."""
        if self.target.digest is not None:
            return self._plan_confirmed()
        while True:
            step = next_step(self.target, snapshots=self.snapshots, local=local, headers=self._headers)
            match step:
                case LoadPlan(base_kind=kind) if kind is BaseKind.LOCAL or self._listed or self.target == EMPTY:
                    self.metrics.base = kind
                    return step
                case NeedsHeader(version) if local is not None or self._listed:
                    self._read_header(version)
                case _ if not self._listed:
                    # A cold load: one listing finds what maintenance made since the driver last looked.
                    self._list_snapshots()
                case NotLoadable(missing, reason):
                    raise VersionNotLoadable(
                        f"{self.target.in_words} of {self.store} has no base: {reason}{self.skipped}",
                        path=self.store.changelog(missing),
                        hint="restore that file, or a snapshot of its version, or go back to a version with a snapshot",
                    )

    @property
    def skipped(self) -> str:
        """Which snapshots were tried, and what is wrong with them."""
        return "".join(f"; {reason}" for reason in self.metrics.skipped_snapshots)

    def plan_from(self, holds: LocalCopy, *, fetch: bool) -> LoadPlan | None:
        """From the local copy; None when it is no ancestor of the target. Without `fetch`, in structure V1, by what this
        host has at hand."""
        if self.target.digest is None:
            plan = self.plan(holds)
            return plan if plan.base_kind is BaseKind.LOCAL else None
        try:
            replay = self.changelogs.chain(holds.version, self.target, fetch=fetch)
        except ObjectMissing:
            return None
        if replay is None:
            return None
        self.metrics.base = BaseKind.LOCAL
        return LoadPlan(BaseKind.LOCAL, holds.version, replay, ())

    def _plan_confirmed(self) -> LoadPlan:
        if not self._listed:
            self._list_snapshots()
        tried = self.metrics.skipped_snapshots
        found = plan_confirmed(self.storage, self.store, self.target, self.snapshots, self.changelogs, tried)
        self.metrics.base = found.plan.base_kind
        self.metrics.skipped_snapshots += tuple(
            reason for reason in found.skipped if reason not in self.metrics.skipped_snapshots
        )
        return found.plan

    def _list_snapshots(self) -> None:
        self._listed = True
        for entry in self.storage.list(self.store.folder):
            folder, _, name = entry.path.rpartition("/")
            parsed = parse_store_file(name)
            if folder == self.store.folder and parsed is not None and parsed.kind is StoreFileKind.SNAPSHOT:
                self.snapshots.add(parsed.version)

    def _read_header(self, version: VersionId) -> None:
        path = self.store.changelog(version)
        try:
            header = self.changelogs.header(version)
        except (ObjectMissing, CorruptFile) as error:
            if not self._listed:
                # A snapshot of just this version makes its changelog superfluous: retention may have removed it.
                self._list_snapshots()
                return
            older = max((s for s in self.snapshots if s.version < version.version), default=None)
            back = f"the newest older snapshot is of {older.in_words}" if older else "there is no older snapshot"
            raise VersionNotLoadable(
                f"{self.target.in_words} of {self.store} cannot be loaded: {error.what}{self.skipped}",
                path=path,
                hint=f"restore the file, or go back to {VersionId(version.version - 1).in_words}; {back}",
            ) from error
        if header.lineage is None:
            raise UnknownFormatVersion("a changelog without lineage under an id", path=path, hint="nothing was changed")
        self._headers[version] = header.lineage
