"""Every error the library raises, grouped by what its reader does about it.

    StatekeeperError                    exit  code
    ├── CorruptFile                        1  corrupt_file            restore the file, or load an older version
    │   └── RecordTooLarge                 1  record_too_large        give it more memory, or restore the file
    ├── UnknownFormatVersion              12  unknown_format_version  use a Statekeeper that knows it
    ├── NotACheckpoint                    10  not_a_checkpoint        name another path
    ├── StorageError                       1  storage                 look at the store, try again
    │   ├── ObjectMissing                  1  object_missing
    │   ├── AlreadyExists                  1  already_exists          somebody else was first
    │   ├── NoExclusiveCreate              1  no_exclusive_create     use a store that honours If-None-Match
    │   ├── NotAFile                       1  not_a_file              replace the link or device by the file itself
    │   ├── UnsafePath                     1  unsafe_path             correct the path, or restore the file that names it
    │   ├── BucketMissing                  1  bucket_missing
    │   └── AccessDenied                   1  access_denied           give or correct credentials
    ├── LocalStateError                    1  local_state             the host's scratch copy; storage is not affected
    │   ├── LocalStateDamaged              1  local_state_damaged     it is rebuilt by itself
    │   ├── LocalStateLocked              11  local_state_locked      another process is at it
    │   └── LocalDiskFull                  1  local_disk_full         free space or raise the quota
    ├── VersionNotLoadable                 1  version_not_loadable    go back to the version it names
    ├── LineageCeiling                    13  lineage_ceiling         take a snapshot at the head
    ├── RootHeld                          11  root_held               another maintainer is at it: wait, or break its lease
    ├── LeaseLost                         11  lease_lost              another maintainer took over: run it again
    ├── RefusedAsUnsafe                   13  refused_as_unsafe       do what it says first
    │   └── ForeignOwner                  13  foreign_owner           run it as the owner of the checkpoint, or as root
    ├── HalfSwitched                      13  half_switched           finish the switchover, or take it back
    ├── RefusedBatch                      13  refused_batch           state and query do not belong together
    │   ├── ForeignRoot                   13  foreign_root
    │   ├── RootLost                      13  root_lost
    │   ├── BatchConflict                 13  batch_conflict          another driver is at the same root
    │   ├── OtherStructure                13  other_structure         switch the root, or start the job as it is
    │   ├── SinkConflict                  13  sink_conflict
    │   ├── SinkChanged                   13  sink_changed            restore the sink, or accept it as it is
    │   └── UnsafeSink                    13  unsafe_sink             change the sink's configuration
    ├── FailedBatch                        1  failed_batch            Spark tries it again
    │   ├── BaseIdMismatch                 1  base_id_mismatch
    │   ├── PartitionMissing               1  partition_missing
    │   └── ForeignBlock                   1  foreign_block
    ├── BadConfiguration                   2  bad_configuration       correct statekeeper.toml
    ├── UnsupportedType                    2  unsupported_type        use another type
    ├── SchemaMismatch                    13  schema_mismatch         keep the schema, or start a new root
    ├── HotKey                            13  hot_key                 allow pieces, or raise the limit
    ├── WrongResult                        1  wrong_result            correct the update function
    ├── UnusableFunction                   2  unusable_function       correct the update function
    ├── SparkDied                          1  spark_died              start the job again
    ├── PortInUse                          2  port_in_use             stop what listens there, or choose another port
    └── UnsupportedEnvironment             2  unsupported_environment use classic Spark, Java 17 or 21

`code` is stable: logs, JSON and dashboards may rely on it. A message says what is wrong, with the file where there is
one, and then what to do.
"""

from __future__ import annotations

from typing import ClassVar

from statestore.redaction import printable, redacted


class StatekeeperError(Exception):
    """The root of the tree. `path` is the file concerned, when there is one; `hint` says what to do next."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, path: str | None = None, hint: str | None = None) -> None:
        # Errors reach logs, the record of a run and webhooks, and quote URLs and the words of other libraries.
        self.what = printable(redacted(what))
        self.path = path and printable(redacted(path))
        self.hint = hint and printable(redacted(hint))
        super().__init__(self.what, self.path, self.hint)

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        then = f" -> {self.hint}" if self.hint else ""
        return f"{where}{self.what}{then}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel from Spark's Python workers to the driver by pickle; keyword-only arguments need this.
        return (_rebuild, (type(self), self.what, self.path, self.hint))


def _rebuild(kind: type[StatekeeperError], what: str, path: str | None, hint: str | None) -> StatekeeperError:
    return kind(what, path=path, hint=hint)


class CorruptFile(StatekeeperError):
    """Bytes are not what the format says: truncated, flipped, empty, or of another kind."""

    code = "corrupt_file"


class RecordTooLarge(CorruptFile):
    """A record in a changelog claims more bytes than may be held in memory. The file may be whole."""

    code = "record_too_large"


class UnknownFormatVersion(StatekeeperError):
    """A format version that this release does not know; nothing was read beyond its header, nothing written."""

    code = "unknown_format_version"
    exit_code = 12


class NotACheckpoint(StatekeeperError):
    """The path holds no checkpoint directory."""

    code = "not_a_checkpoint"
    exit_code = 10


class StorageError(StatekeeperError):
    """The store did not do what was asked, after retries."""

    code = "storage"


class ObjectMissing(StorageError):
    """The object is not there."""

    code = "object_missing"


class AlreadyExists(StorageError):
    """Create-if-absent found another object of that name with other bytes."""

    code = "already_exists"


class NoExclusiveCreate(StorageError):
    """The store overwrites an object that a create must leave alone. No root is created there."""

    code = "no_exclusive_create"


class NotAFile(StorageError):
    """The name belongs to a symbolic link, FIFO, socket or device, which is never opened."""

    code = "not_a_file"


class UnsafePath(StorageError, ValueError):
    """The path leads out of the root, or nowhere. Where a file of the checkpoint names it, that file is wrong."""

    code = "unsafe_path"


class BucketMissing(StorageError):
    """The bucket does not exist."""

    code = "bucket_missing"


class AccessDenied(StorageError):
    """Credentials are missing or refused."""

    code = "access_denied"


class LocalStateError(StatekeeperError):
    """The host's local copy of a store cannot be used. Storage holds everything that was committed."""

    code = "local_state"


class LocalStateDamaged(LocalStateError):
    """The local RocksDB cannot be opened or read; it is set aside and rebuilt from storage."""

    code = "local_state_damaged"


class LocalStateLocked(LocalStateError):
    """Another process holds the local RocksDB."""

    code = "local_state_locked"
    exit_code = 11


class LocalDiskFull(LocalStateError):
    """No space is left on the local disk, or under its quota."""

    code = "local_disk_full"


class VersionNotLoadable(StatekeeperError):
    """No snapshot and gapless chain of changelogs leads to the version."""

    code = "version_not_loadable"


class LineageCeiling(StatekeeperError):
    """The lineage in a changelog's header would pass the 65,535 bytes that Spark can read (SPARK-49374)."""

    code = "lineage_ceiling"
    exit_code = 13


class RootHeld(StatekeeperError):
    """Another maintainer holds the root's lease and was seen not long ago."""

    code = "root_held"
    exit_code = 11


class LeaseLost(StatekeeperError):
    """The lease was broken, or taken over after a long silence; nothing more is deleted under it."""

    code = "lease_lost"
    exit_code = 11


class RefusedAsUnsafe(StatekeeperError):
    """What was asked for could lose state as things stand. Nothing was changed."""

    code = "refused_as_unsafe"
    exit_code = 13


class ForeignOwner(RefusedAsUnsafe):
    """The files of the checkpoint belong to a user or group that this process cannot give to the files that it adds.
    Nothing was written."""

    code = "foreign_owner"


class HalfSwitched(StatekeeperError):
    """A switchover between the structures V1 and V2 was interrupted. Nothing else may be done before it has ended."""

    code = "half_switched"
    exit_code = 13


class RefusedBatch(StatekeeperError):
    """The batch was not started: this state root and this query or batch do not belong together."""

    code = "refused_batch"
    exit_code = 13


class ForeignRoot(RefusedBatch):
    """The state root is bound to another streaming query."""

    code = "foreign_root"


class RootLost(RefusedBatch):
    """The query has a past that the state root does not have."""

    code = "root_lost"


class BatchConflict(RefusedBatch):
    """The root holds this batch with other content: two drivers, or another time line."""

    code = "batch_conflict"


class OtherStructure(RefusedBatch):
    """The root is of structure V1 and the job asks for V2, or the other way round. Nothing was written."""

    code = "other_structure"


class SinkConflict(RefusedBatch):
    """The sink holds this batch from an attempt that this root does not know."""

    code = "sink_conflict"


class SinkChanged(RefusedBatch):
    """The sink was deleted, replaced or rolled back since the previous batch wrote to it."""

    code = "sink_changed"


class UnsafeSink(RefusedBatch):
    """The sink is configured so that a crash could write a batch twice."""

    code = "unsafe_sink"


class FailedBatch(StatekeeperError):
    """The batch failed before anything was committed; the same batch can run again."""

    code = "failed_batch"


class BaseIdMismatch(FailedBatch):
    """A task built its version on another base than the driver sent (SPARK-56205)."""

    code = "base_id_mismatch"


class PartitionMissing(FailedBatch):
    """A partition did not report a commit."""

    code = "partition_missing"


class ForeignBlock(FailedBatch):
    """The sink was about to read rows of an attempt that was not chosen."""

    code = "foreign_block"


class BadConfiguration(StatekeeperError):
    """`statekeeper.toml` cannot be read, or says something that is not known."""

    code = "bad_configuration"
    exit_code = 2


class UnsupportedType(StatekeeperError):
    """A column type that Spark's row encoding, or a state key, cannot hold."""

    code = "unsupported_type"
    exit_code = 2


class SchemaMismatch(StatekeeperError):
    """The state's schema is not the one that the root was made with."""

    code = "schema_mismatch"
    exit_code = 13


class HotKey(StatekeeperError):
    """One key has more rows in one batch than fit into a piece."""

    code = "hot_key"
    exit_code = 13


class WrongResult(StatekeeperError):
    """The update function returned something else than its declaration says."""

    code = "wrong_result"


class UnusableFunction(StatekeeperError):
    """The update function cannot be sent to Spark's workers, or does not take the rows and the state."""

    code = "unusable_function"
    exit_code = 2


class SparkDied(StatekeeperError):
    """The JVM ended under a running query: killed, or out of memory. State and sink are as the last commit left them,
    or one batch ahead; the next start finds out."""

    code = "spark_died"


class UnsupportedEnvironment(StatekeeperError):
    """Spark Connect, no Java, a wrong Java, or a configuration under which the protocol does not hold."""

    code = "unsupported_environment"
    exit_code = 2


class PortInUse(StatekeeperError):
    """Somebody listens where Dagster's webserver is to listen. Nothing was started."""

    code = "port_in_use"
    exit_code = 2


DAMAGES: tuple[type[StatekeeperError], ...] = (CorruptFile, UnknownFormatVersion, VersionNotLoadable)
"""What another try does not mend: it is in the files."""
