"""Plan which snapshots to read in full. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.maintenance.upkeep.verification.record import Reads
from statekeeper.statestore.storage import Entry


class ReadReason(Enum):
    """The reason for a read."""

    NEW = "never read in full"
    CHANGED = "a file has changed since it was read"


@dataclass(frozen=True, kw_only=True)
class SnapshotRead:
    """Read a snapshot in full. `files`: the zip and the SST files that are not on record; `known`: the SST files on record.
    `size_bytes` is that of `files`."""

    store: StorePath
    version: VersionId
    files: tuple[Entry, ...]
    known: tuple[Entry, ...]
    reason: ReadReason
    conf: StateConf = OURS

    @property
    def size_bytes(self) -> int:
        """The number of bytes to read."""
        return sum(entry.size_bytes for entry in self.files)

    @property
    def explained(self) -> str:
        """The reason with its figures."""
        return f"{self.reason.value}: {counted(len(self.files), 'file')}, {self.size_bytes:,} bytes"


def reads_before(chain: Chain, base: VersionId, reads: Reads, conf: StateConf = OURS) -> SnapshotRead | None:
    """Return the read that must succeed before files older than `base` are deleted; None if it is on record. `base`: an
    intact snapshot of the chain."""
    facts = chain.snapshots[base]
    zipped = chain.files.snapshots[base]
    tables = [chain.files.tables[table.dfs_name] for table in facts.metadata.tables] if facts.metadata else []
    unread = [entry for entry in tables if not _is_on_record(entry, reads)]
    if not unread and _is_on_record(zipped, reads):
        return None
    changed = any(entry.path in reads for entry in (zipped, *unread))
    known = tuple(entry for entry in tables if entry not in unread)
    return SnapshotRead(
        store=chain.store,
        version=base,
        files=(zipped, *unread),
        known=known,
        reason=ReadReason.CHANGED if changed else ReadReason.NEW,
        conf=conf,
    )


def _is_on_record(entry: Entry, reads: Reads) -> bool:
    one = reads.get(entry.path)
    return one is not None and one.fault is None and one.is_of(entry)
