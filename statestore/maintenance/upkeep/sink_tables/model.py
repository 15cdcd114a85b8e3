"""The types of a plan for a sink table: policy, rules, verdicts, merges."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.format.delta_log import DeltaTable, LoggedFile
from statekeeper.statestore.storage import Entry


@dataclass(frozen=True, kw_only=True)
class SinkPolicy:
    """How a sink table is maintained.

    keep_readers_seconds  how long a reader may still read a version after a newer one exists
    file_bytes            size of the files that a merge writes; files of less than a half are small
    compacts, vacuums     whether small files are merged, and whether unneeded files are deleted
    retired               the ids of other queries that wrote the table and never will be rolled back
    """

    keep_readers_seconds: float
    file_bytes: int
    compacts: bool = True
    vacuums: bool = True
    retired: frozenset[str] = frozenset()


class FileRule(Enum):
    """Why a file of the table is kept or deleted. The value is the explanation for people, the name is the stable code."""

    LIVE = "of the newest version of the table"
    REWIND = "of a version that a rewind to a retained batch restores"
    READERS = "of a version that a reader may still read"
    INTERRUPTED = "of an interrupted batch, which adds it when the query restarts"
    YOUNG = "younger than the time for readers; a running batch may commit it"
    UNKNOWN = "not a file of the table"
    UNNEEDED = "no version needs it that a rewind or a reader may read"

    @property
    def deletes(self) -> bool:
        """Return whether a file under this rule is deleted."""
        return self is FileRule.UNNEEDED


class Unmergeable(Enum):
    """Why files must not be merged while the query runs. The value is the explanation for people."""

    MERGES = "the query writes with MERGE, which fails if files are merged at the same time"
    SPARK = (
        "Spark writes the table on S3 or on a local disk, where it can overwrite a commit of another process. A reader "
        "that has read the overwritten commit would miss the rows of a batch"
    )


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The decision about one file."""

    path: str
    size_bytes: int
    rule: FileRule


@dataclass(frozen=True, kw_only=True)
class MergeBin:
    """Small files of one partition that a merge replaces, oldest first."""

    files: tuple[LoggedFile, ...]

    def digest(self, file_bytes: int) -> str:
        """Identify the merge of these files into files of this size."""
        found = hashlib.blake2b(f"{file_bytes}".encode(), digest_size=16)
        for path in sorted(one.file.path for one in self.files):
            found.update(b"\0" + path.encode())
        return found.hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(one.file.size_bytes for one in self.files)

    @property
    def values(self) -> Mapping[str, str | None]:
        """The values of the partition columns."""
        return self.files[0].file.values


@dataclass(frozen=True, kw_only=True)
class SinkFacts:
    """A root and the Delta table that its query writes.

    query_ids       the id of the query and its former ids
    oldest, newest  batches in the commit log: a rewind may go to each
    version         the newest version of the table
    oldest_readable the oldest version whose commits or checkpoint exist; None if there is none
    held            the newest batch of the query in the table; None if the table has none
    newest_commit   its commit; None if the log only has a checkpoint of it
    others          the ids of other queries and jobs that wrote the table
    unmergeable     why files must not be merged while the query runs; None if they can be
    restored        the version that a rewind to the oldest batch restores; None if the log no longer has it
    restored_age_seconds  since the commit after it, or since that version was written
    for_readers     the oldest version that a reader may still read
    live            the data files of the newest version
    last_versions   the newest version that needs a file, by path
    interrupted     files that the record of a batch which is not committed names
    listed          all files in the folder of the table without its log
    keep_seconds    the time for readers: the longer one of the policy and the table; None if the table has an unknown one
    useless         the digests of merges that earlier runs have found to leave as many files
    """

    root: str
    table: str
    query_ids: frozenset[str]
    oldest: int
    newest: int
    version: int
    oldest_readable: int | None
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]
    held: int | None
    newest_commit: bytes | None
    others: frozenset[str]
    unmergeable: Unmergeable | None
    restored: int | None
    restored_age_seconds: float
    for_readers: int
    live: tuple[LoggedFile, ...]
    last_versions: Mapping[str, int]
    interrupted: frozenset[str]
    listed: tuple[Entry, ...]
    keep_seconds: float | None
    now_seconds: float
    useless: frozenset[str] = frozenset()

    @property
    def features(self) -> frozenset[str]:
        """The features that the protocol of the table names."""
        return DeltaTable(protocol=self.protocol).features

    @property
    def configuration(self) -> Mapping[str, str]:
        """The properties of the table."""
        return {str(key): str(value) for key, value in (self.metadata.get("configuration") or {}).items()}


@dataclass(frozen=True, kw_only=True)
class SinkPlan:
    """The merges and deletions.

    bins          the files to merge
    useless       merges that are left out, because earlier runs have found them to leave as many files
    verdicts      the decisions about all files in the folder of the table
    kept_from     the oldest version that stays readable
    small_files   of the newest version
    findings      what a person should change, with the statement in SQL
    notes         why small files are not merged
    needs_stopped whether the plan is safe only while the query is stopped
    """

    bins: tuple[MergeBin, ...]
    verdicts: tuple[FileVerdict, ...]
    kept_from: int
    small_files: int
    useless: tuple[MergeBin, ...] = ()
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    needs_stopped: bool = False
    refusals: tuple[StatekeeperError, ...] = ()

    @property
    def deletions(self) -> list[FileVerdict]:
        """The files to delete, in the order of their paths."""
        return [one for one in self.verdicts if one.rule.deletes]

    @property
    def merged_files(self) -> int:
        return sum(len(one.files) for one in self.bins)
