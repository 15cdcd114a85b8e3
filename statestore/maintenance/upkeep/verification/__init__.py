"""Reading a snapshot in full before retention deletes the files that replace it.

    record(storage)  ->  Reads  ->  reads_before(chain, base, reads)  ->  SnapshotRead  ->  read_all(storage, reads, ...)

Name and size do not prove that an SST file is intact. Retention deletes all files older than the base of the retention
floor, so each base is read once in full: the checksum of every block is verified, and RocksDB opens the files together.
`_statekeeper/verified.json` records each read. A shared SST file is read once, and again only if its size, etag or
modification time changes.
"""

from statekeeper.statestore.maintenance.upkeep.verification.plan import SnapshotRead, reads_before
from statekeeper.statestore.maintenance.upkeep.verification.record import (
    FileRead,
    Reads,
    faults,
    record,
    remaining,
    write,
)

__all__ = [
    "FileRead",
    "Reads",
    "SnapshotRead",
    "faults",
    "reads_before",
    "record",
    "remaining",
    "write",
]
