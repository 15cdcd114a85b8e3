"""Reading a snapshot in full before retention deletes the files that replace it.

    record(storage)  ->  Reads  ->  reads_before(chain, base, reads)  ->  SnapshotRead  ->  read_all(storage, reads, ...)

A name and a size do not show that an SST is intact. Retention deletes everything that is older than the snapshots that
the floor is restored from, so each of these is read once: the checksum of every block of every SST is compared, and
RocksDB opens the files together. `_statekeeper/verified.json` records each read. An SST that several snapshots name is
read once, and again only when its size, or its etag or time of modification, has changed.
"""

from statestore.maintenance.verification.plan import SnapshotRead, reads_before
from statestore.maintenance.verification.read_back import ReadBack, read_all
from statestore.maintenance.verification.record import FileRead, Reads, faults, record, remaining, write

__all__ = [
    "FileRead",
    "ReadBack",
    "Reads",
    "SnapshotRead",
    "faults",
    "read_all",
    "reads_before",
    "record",
    "remaining",
    "write",
]
