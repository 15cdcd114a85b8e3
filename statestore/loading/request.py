"""The request for a load, and the error if it cannot be met."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from statestore.errors import VersionNotLoadable
from statestore.format.batch_log import object_of
from statestore.format.names import StorePath, VersionId


@dataclass(frozen=True)
class LoadRequest:
    """One version of one store to load. `known_snapshots`: versions of the store that had a snapshot earlier."""

    store: StorePath
    target: VersionId
    known_snapshots: frozenset[VersionId] = frozenset()

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
            "statekeeper audit ROOT",
        )
