"""All errors of the library, grouped by the action that they require.

    StatekeeperError                    exit  code
    ├── CorruptFile                        1  corrupt_file            restore the file, or load an older version
    │   └── RecordTooLarge                 1  record_too_large        raise the limit, or rewind to the batch before
    ├── UnknownFormatVersion              12  unknown_format_version  upgrade Statekeeper
    │   └── UnsupportedProvider           12  unsupported_provider    convert the checkpoint to RocksDB
    ├── NotACheckpoint                    10  not_a_checkpoint        give another path
    ├── StorageError                       1  storage                 check the storage, try again
    │   ├── ObjectMissing                  1  object_missing          run an audit, which names the next step
    │   ├── AlreadyExists                  1  already_exists          run it again: another process was first
    │   ├── SourceChanged                  1  source_changed          run the copy again
    │   ├── NoExclusiveCreate              1  no_exclusive_create     use a storage that supports If-None-Match
    │   ├── NotAFile                       1  not_a_file              replace the link or device by a regular file
    │   ├── UnsafePath                     1  unsafe_path             correct the path, or restore the file that names it
    │   ├── BucketMissing                  1  bucket_missing          correct the URL, or create the bucket
    │   └── AccessDenied                   1  access_denied           give or correct credentials
    ├── LocalStateError                    1  local_state             run it again: the copy in storage is not affected
    │   ├── LocalStateDamaged              1  local_state_damaged     run it again: the next load rebuilds it
    │   ├── LocalStateLocked              11  local_state_locked      wait for the other process
    │   └── LocalDiskFull                  1  local_disk_full         free space or raise the quota
    ├── VersionNotLoadable                 1  version_not_loadable    restore the file, or roll back to the named version
    ├── LineageCeiling                    13  lineage_ceiling         take a snapshot at the head
    ├── TooLarge                          13  too_large               make the value smaller, or raise the limit
    ├── RootHeld                          11  root_held               wait for the other maintainer, or break its lease
    ├── LeaseLost                         11  lease_lost              run the command again
    ├── RefusedAsUnsafe                   13  refused_as_unsafe       follow the hint first
    │   ├── DestinationNotEmpty           13  destination_not_empty   choose an empty destination
    │   ├── MirrorStarted                 13  mirror_started          mirror to an empty destination
    │   ├── MirrorDiverged                13  mirror_diverged         mirror to an empty destination
    │   ├── ForeignOwner                  13  foreign_owner           run it as the owner of the checkpoint, or as root
    │   └── UnknownPartitioning           13  unknown_partitioning    keep the number of partitions, or start a new query
    ├── HalfSwitched                      13  half_switched           finish or reverse the switchover
    ├── RefusedBatch                      13  refused_batch           restore the matching state, or use a new root
    │   ├── ForeignRoot                   13  foreign_root            start the query that owns the root, or claim it
    │   ├── RootLost                      13  root_lost               restore the root, or start a new query and root
    │   ├── BatchConflict                 13  batch_conflict          stop the other driver
    │   ├── OtherStructure                13  other_structure         switch the root, or start the job with its structure
    │   ├── SinkConflict                  13  sink_conflict           start the job as it was until the batch commits
    │   ├── SinkChanged                   13  sink_changed            restore the sink, or accept its current state
    │   ├── UnsafeSink                    13  unsafe_sink             change the sink's configuration
    │   └── UnsupportedTable              13  unsupported_table       let Spark write the table
    ├── FailedBatch                        1  failed_batch            wait: Spark runs the batch again
    │   ├── BaseIdMismatch                 1  base_id_mismatch
    │   ├── PartitionMissing               1  partition_missing
    │   └── ForeignBlock                   1  foreign_block
    ├── BadConfiguration                   2  bad_configuration       correct statekeeper.toml
    ├── WrongOption                        2  wrong_option            choose a value from the message
    ├── UnsupportedType                    2  unsupported_type        use another type
    ├── SchemaMismatch                    13  schema_mismatch         keep the schema, or start a new root
    ├── WrongInitial                      13  wrong_initial           correct `initial`, or start a new root
    ├── WrongInput                        13  wrong_input             correct the rows of the stream
    ├── HotKey                            13  hot_key                 set `split_hot_keys`, or raise the limit
    ├── WrongResult                        1  wrong_result            correct the update function
    ├── UnusableFunction                   2  unusable_function       correct the update function
    ├── SparkDied                          1  spark_died              start the job again
    ├── TaskLost                           1  task_lost               run the command again
    ├── PortInUse                          2  port_in_use             stop the other process, or choose another port
    └── UnsupportedEnvironment             2  unsupported_environment use classic Spark, Java 17 or 21

`code` is stable: logs, JSON and dashboards may rely on it. A message has the file and its problem, the consequence, and the
next command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import ClassVar

from statekeeper.statestore.base.redaction import printable, redacted

_BRANCH = re.compile(r"[│├└─ ]+(?P<name>[A-Z]\w+) +(?P<exit>\d+) +(?P<code>\w+)(?: +(?P<action>.*))?")
RESTORE = "restore the file from a backup; to list the batches that can be restored, run: statekeeper audit ROOT"
"""The hint of an error about a file of a checkpoint that is lost or damaged."""
_FIND_DAMAGE = "to find the damage, run: statekeeper audit ROOT"


class StatekeeperError(Exception):
    """The base class. `path`: the file with the problem, if there is one; `hint`: the next action."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, path: str | None = None, hint: str | None = None) -> None:
        # Errors reach logs, run records and webhooks. They quote URLs and messages of other libraries.
        self.what = printable(redacted(what))
        self.path = path and printable(redacted(path))
        self.hint = hint and printable(redacted(hint))
        super().__init__(self.what, self.path, self.hint)
        self._names_root = False

    def name_root(self, named: Callable[[str], str]) -> None:
        """Complete the commands of the message, which have a placeholder for the root. `named`: returns a text with
        complete commands. A second call changes nothing: the name of the root may look like the placeholder."""
        if not self._names_root:
            self._names_root = True
            self.what, self.hint = named(self.what), self.hint and named(self.hint)
            self.args = (self.what, self.path, self.hint)

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        then = f" -> {self.hint}" if self.hint else ""
        return f"{where}{self.what}{then}"

    def __reduce__(self) -> tuple[object, ...]:
        # Spark pickles errors from Python workers to the driver. Keyword-only arguments need this method.
        return (_rebuild, (type(self), self.what, self.path, self.hint))


def _rebuild(kind: type[StatekeeperError], what: str, path: str | None, hint: str | None) -> StatekeeperError:
    return kind(what, path=path, hint=hint)


class CorruptFile(StatekeeperError):
    """A file does not follow its format: it is truncated, altered, empty or of another kind."""

    code = "corrupt_file"


class RecordTooLarge(CorruptFile):
    """A record in a changelog exceeds the limit of its readers, `SizeLimits.record_bytes`. The file may be valid."""

    code = "record_too_large"


class UnknownFormatVersion(StatekeeperError):
    """A file has a format version that this release does not know. Only its header was read; nothing was written."""

    code = "unknown_format_version"
    exit_code = 12


class UnsupportedProvider(UnknownFormatVersion):
    """The command does not support the state store provider of the query. Nothing was changed."""

    code = "unsupported_provider"


class NotACheckpoint(StatekeeperError):
    """The path is no checkpoint directory."""

    code = "not_a_checkpoint"
    exit_code = 10


class StorageError(StatekeeperError):
    """A storage request failed after retries."""

    code = "storage"


class ObjectMissing(StorageError):
    """The object does not exist."""

    def __init__(self, what: str, *, path: str | None = None, hint: str | None = _FIND_DAMAGE) -> None:
        super().__init__(what, path=path, hint=hint)

    code = "object_missing"


class AlreadyExists(StorageError):
    """An object with this name and other bytes exists."""

    code = "already_exists"


class SourceChanged(StorageError):
    """An object changed while it was copied."""

    code = "source_changed"


class NoExclusiveCreate(StorageError):
    """The storage does not support create-if-absent. No root is created there."""

    code = "no_exclusive_create"


class NotAFile(StorageError):
    """The path is a symbolic link, FIFO, socket or device, which is never opened."""

    code = "not_a_file"


class UnsafePath(StorageError, ValueError):
    """The path is outside of the root, or invalid. If a file of the checkpoint names it, that file is corrupt."""

    code = "unsafe_path"


class BucketMissing(StorageError):
    """The bucket does not exist."""

    code = "bucket_missing"


class AccessDenied(StorageError):
    """Credentials are missing or rejected."""

    code = "access_denied"


class LocalStateError(StatekeeperError):
    """The local copy of a store cannot be used. Storage has all committed versions."""

    code = "local_state"


class LocalStateDamaged(LocalStateError):
    """The local RocksDB is corrupt. The next load rebuilds it from storage."""

    code = "local_state_damaged"


class LocalStateLocked(LocalStateError):
    """Another process uses the local RocksDB."""

    code = "local_state_locked"
    exit_code = 11


class LocalDiskFull(LocalStateError):
    """The local disk or its quota is full."""

    code = "local_disk_full"
    remedy: ClassVar[str] = (
        "free space on this disk, raise its quota, or choose a folder on a larger disk (command line: --scratch; Dagster: "
        "STATEKEEPER_SCRATCH; a job on pipelines: Host.local_folder)"
    )


class VersionNotLoadable(StatekeeperError):
    """A file that the version needs is missing or corrupt."""

    code = "version_not_loadable"


class LineageCeiling(StatekeeperError):
    """The lineage in the next changelog would exceed the 65,535 bytes that Spark can read (SPARK-49374). In structure V1: a
    load would have to replay more than a million changelogs."""

    code = "lineage_ceiling"
    exit_code = 13


class TooLarge(StatekeeperError):
    """A value or a file would exceed the limit of its readers, so that it could not be read again. It was not written, and
    its batch was not committed. `key`: the key of the value in its store, in the process that raised the error."""

    code = "too_large"
    exit_code = 13
    key: bytes | None = None


class RootHeld(StatekeeperError):
    """Another maintainer holds an unexpired lease of the root."""

    code = "root_held"
    exit_code = 11


class LeaseLost(StatekeeperError):
    """The lease was broken, or it expired and was acquired by another maintainer. No further file is deleted."""

    code = "lease_lost"
    exit_code = 11


class RefusedAsUnsafe(StatekeeperError):
    """The action could lose state. Nothing was changed."""

    code = "refused_as_unsafe"
    exit_code = 13


class ForeignOwner(RefusedAsUnsafe):
    """This process cannot give new files the owner and group of the checkpoint. Nothing was written."""

    code = "foreign_owner"


class UnknownPartitioning(RefusedAsUnsafe):
    """The partition in which Spark looks for the rows of a store cannot be computed. Nothing was written."""

    code = "unknown_partitioning"


class DestinationNotEmpty(RefusedAsUnsafe):
    """The destination of a copy contains files. Nothing was written."""

    code = "destination_not_empty"


class MirrorStarted(RefusedAsUnsafe):
    """A query has been started from the mirror: the mirror contains batches that were not copied, or a claim or a rewind
    has changed its owner. Nothing was written."""

    code = "mirror_started"


class MirrorDiverged(RefusedAsUnsafe):
    """Source and mirror have no common history: the source was restarted from an earlier batch or rewritten. Nothing was
    written."""

    code = "mirror_diverged"


class HalfSwitched(StatekeeperError):
    """A switchover or a rewrite of the state was interrupted. No other change is possible before it ends."""

    code = "half_switched"
    exit_code = 13


class RefusedBatch(StatekeeperError):
    """The batch was not started: the state root does not match the query, batch or sink."""

    code = "refused_batch"
    exit_code = 13


class ForeignRoot(RefusedBatch):
    """The state root is bound to another streaming query."""

    code = "foreign_root"


class RootLost(RefusedBatch):
    """The state root lacks batches that the query has committed."""

    code = "root_lost"


class BatchConflict(RefusedBatch):
    """The root has this batch with other content: two drivers run the query, or checkpoint and root have diverged."""

    code = "batch_conflict"


class OtherStructure(RefusedBatch):
    """The structure of the root is not that of the job. Nothing was written."""

    code = "other_structure"


class SinkConflict(RefusedBatch):
    """The root has no matching record of the attempt that wrote this batch to the sink. Or only some sinks of the job have
    the batch, and the job cannot write the same rows to the others."""

    code = "sink_conflict"


class SinkChanged(RefusedBatch):
    """The sink was deleted, replaced or rolled back since the previous batch."""

    code = "sink_changed"


class UnsafeSink(RefusedBatch):
    """With the configuration of the sink, a crash could write a batch twice."""

    code = "unsafe_sink"


class UnsupportedTable(RefusedBatch):
    """The sink's table has a feature that the chosen writer does not support."""

    code = "unsupported_table"


class FailedBatch(StatekeeperError):
    """The batch failed before its commit. It can run again."""

    code = "failed_batch"


class BaseIdMismatch(FailedBatch):
    """A task started from another version of a store than the version that the driver sent (SPARK-56205)."""

    code = "base_id_mismatch"


class PartitionMissing(FailedBatch):
    """A partition did not report a commit."""

    code = "partition_missing"


class ForeignBlock(FailedBatch):
    """The sink received rows of an attempt that was not chosen."""

    code = "foreign_block"


class BadConfiguration(StatekeeperError):
    """`statekeeper.toml` or another file of settings cannot be read, or has an unknown or invalid setting."""

    code = "bad_configuration"
    exit_code = 2


class WrongOption(StatekeeperError):
    """An option does not fit the checkpoint, for example the location of a table that the query does not read. Nothing was
    changed."""

    code = "wrong_option"
    exit_code = 2


class UnsupportedType(StatekeeperError):
    """A type that Spark's row encoding or a state key does not support."""

    code = "unsupported_type"
    exit_code = 2


class SchemaMismatch(StatekeeperError):
    """The schema of the job is not that of the root."""

    code = "schema_mismatch"
    exit_code = 13


class WrongInitial(StatekeeperError):
    """The initial rows of a job are invalid, have changed, or do not belong to this root. Nothing was committed."""

    code = "wrong_initial"
    exit_code = 13


class WrongInput(StatekeeperError):
    """A row of the stream has no event time. Nothing was committed."""

    code = "wrong_input"
    exit_code = 13


class HotKey(StatekeeperError):
    """One key has more rows or bytes in a batch than `Pieces.hot_key_rows` or `Pieces.hot_key_bytes` allows."""

    code = "hot_key"
    exit_code = 13


class WrongResult(StatekeeperError):
    """The result of the update function does not match its declaration."""

    code = "wrong_result"


class UnusableFunction(StatekeeperError):
    """The update function cannot be pickled, does not accept rows and state, or reads a column that does not exist."""

    code = "unusable_function"
    exit_code = 2


class SparkDied(StatekeeperError):
    """The JVM of a running query was killed or ran out of memory. State and sink are at the last commit, or one batch
    ahead; the next start determines which."""

    code = "spark_died"


class TaskLost(StatekeeperError):
    """Spark gave up a task of a verb: its executor died several times, or the job was cancelled. Finished
    items are kept."""

    code = "task_lost"


class UnsupportedEnvironment(StatekeeperError):
    """Spark Connect, a missing or unsupported Java, or an unsafe configuration."""

    code = "unsupported_environment"
    exit_code = 2


class PortInUse(StatekeeperError):
    """Another process uses the port of Dagster's webserver. Nothing was started."""

    code = "port_in_use"
    exit_code = 2


DAMAGES: tuple[type[StatekeeperError], ...] = (CorruptFile, UnknownFormatVersion, VersionNotLoadable)
"""Errors that a retry does not resolve, because files are damaged."""


@contextmanager
def naming_root(named: Callable[[str], str]) -> Iterator[None]:
    """Complete the commands of an error that is raised. `named`: as for `StatekeeperError.name_root`."""
    try:
        yield
    except StatekeeperError as error:
        error.name_root(named)
        raise


def error_classes(of: type[StatekeeperError] = StatekeeperError) -> Iterator[type[StatekeeperError]]:
    """Yield the error classes of this module, parents before children, in the order of their definition."""
    for kind in of.__subclasses__():
        if kind.__module__ == __name__:
            yield kind
            yield from error_classes(kind)


@cache
def drawn_tree() -> dict[str, tuple[int, str, str]]:
    """Return the tree in the docstring of this module: class -> (exit code, code, action)."""
    lines = (_BRANCH.fullmatch(line) for line in (__doc__ or "").splitlines())
    return {one["name"]: (int(one["exit"]), one["code"], one["action"] or "") for one in lines if one is not None}


def action_of(kind: type[StatekeeperError]) -> str:
    """Return the action that the tree requires for a class: its own, or that of the class above."""
    drawn = (drawn_tree().get(one.__name__, (0, "", ""))[2] for one in kind.__mro__)
    return next(filter(None, drawn), "")
