"""The length of a lineage, and the point at which a store stops because Spark could not read a longer one."""

from __future__ import annotations

from collections.abc import Collection

from statekeeper.statestore.errors import LineageCeiling
from statekeeper.statestore.format.changelog_writer import lineage_bytes
from statekeeper.statestore.format.java_io import UTF_LIMIT_BYTES
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.lineage import MOST_REPLAYED, Lineage

LINEAGE_STOP_BYTES = 62_000
"""Spark reads at most 65,535 bytes of lineage. The store stops about 45 versions earlier, in time for a snapshot."""

LINEAGE_WARN_BYTES = 50_000
"""From this size on, a job should warn that snapshots are missing."""

_HINT = "run: statekeeper snapshot ROOT --all. Then start the query again"


def tail_changelogs(base: VersionId, lineage: Lineage, snapshots: Collection[VersionId]) -> int:
    """Return the number of changelogs since the newest snapshot, including the next one. `lineage`: that of the next
    version."""
    if base.digest is not None:
        return base.version + 1 - max((s.version for s in snapshots if s.version <= base.version), default=0)
    # A lineage starts at a snapshot or at version 1.
    begins_with_snapshot = bool(lineage) and (lineage[0].version > 1 or lineage[0] in snapshots)
    return len(lineage) + 1 - begins_with_snapshot


def check_ceiling(
    store: StorePath, base: VersionId, lineage: Lineage, most_bytes: int, snapshots: Collection[VersionId] = ()
) -> None:
    """Raise `LineageCeiling` if the lineage of the version after `base` takes more than `most_bytes`; in structure V1, if
    no load could replay the changelogs since the newest of the known `snapshots`."""
    if (tail := tail_changelogs(base, lineage, snapshots)) > MOST_REPLAYED:
        raise LineageCeiling(
            f"{tail:,} changelogs since the newest snapshot are more than the {MOST_REPLAYED:,} that a load replays; no "
            f"batch after batch {base.version - 1} (version {base.version}) can be committed",
            path=store.folder,
            hint=_HINT,
        )
    needed = lineage_bytes(lineage)
    if needed > most_bytes:
        raise LineageCeiling(
            f"the lineage of {len(lineage)} versions since the newest snapshot takes {needed:,} bytes, and the limit is "
            f"{UTF_LIMIT_BYTES:,}; no batch after batch {base.version - 1} (version {base.version}) can be committed",
            path=store.folder,
            hint=_HINT,
        )
