"""The request for a load, and the error if it cannot be met."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from statekeeper.statestore.errors import CorruptFile, ObjectMissing, RecordTooLarge, VersionNotLoadable
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.limits import UNKNOWN_ROOT
from statekeeper.statestore.format.names import StorePath, VersionId


@dataclass(frozen=True)
class LoadRequest:
    """One version of one store to load.

    known_snapshots  versions of the store that had a snapshot earlier
    root             the URL of the checkpoint, for the commands in errors
    """

    store: StorePath
    target: VersionId
    known_snapshots: frozenset[VersionId] = frozenset()
    root: str = "ROOT"

    def not_loadable(
        self, culprit: VersionId, problem: str, *, skipped: Collection[str] = (), action: str = "", newest: str = ""
    ) -> VersionNotLoadable:
        """The error that names the changelog of `culprit` and its problem.

        `skipped`: the snapshots that cannot be a base, with their problems; `action` and `newest` replace the usual ends
        of the hint: restore the file, and the newest version that can be loaded.
        """
        unusable = f"; unusable snapshots: {'; '.join(skipped)}" if skipped else ""
        newest = newest or f"the newest version that can be loaded is {VersionId(culprit.version - 1).in_words}"
        return VersionNotLoadable(
            f"{problem}; {self.target.in_words} of {self.store} cannot be loaded{unusable}",
            path=object_of(self.store, culprit),
            hint=f"{action or 'restore the file from a backup'}; {newest}. To see which batches can be loaded, run: "
            f"statekeeper audit {self.root}",
        )

    def unreadable(
        self,
        culprit: VersionId,
        error: ObjectMissing | CorruptFile,
        *,
        skipped: Collection[str] = (),
        of_job: bool = True,
    ) -> VersionNotLoadable:
        """The error for a changelog that cannot be read. One with a value above the limit is intact: no backup helps, but
        a larger limit does. `of_job`: a native query has no such limit, and needs no rewind."""
        if not isinstance(error, RecordTooLarge):
            return self.not_loadable(culprit, error.what, skipped=skipped)
        batch = culprit.version - 2
        back = (
            f". Or stop the query, and go back to batch {batch}: statekeeper rewind {self.root} --to-batch {batch}"
            if of_job and batch >= 0
            else ""
        )
        raised = (error.hint or "").replace(f"StorageSpec({UNKNOWN_ROOT},", f'StorageSpec("{self.root}",')
        return self.not_loadable(culprit, error.what, skipped=skipped, action=f"{raised}{back}")
