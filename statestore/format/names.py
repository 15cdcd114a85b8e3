"""Every file name of a checkpoint, built and parsed. No other module contains file names, except `mirror_names`.

    metadata                                   the query's id
    offsets/<batch>   commits/<batch>          the query's logs
    state/<operator>/_metadata/metadata        the stores of the operator
    state/<operator>/_metadata/v2/<batch>      the same for operators with column families; valid from that batch on
    state/<operator>/0/_metadata/schema        their key and value schemas; for a named store in its own folder
    state/<operator>/_stateSchema/<store>/     the same for operators with column families; one file per change
    state/<operator>/<partition>/              a store
        <version>.changelog     <version>_<id>.changelog         structure V1, V2
        <version>.zip           <version>_<id>.zip
        <version>.delta, <version>.snapshot                  the same two files of Spark's default provider
        <changelog or zip>.crc                               its checksum, by Spark 4.1 and later
        SSTs/<local number>-<uuid>.sst
        logs/<local number>-<uuid>.log                           archived write-ahead logs
    .<name>.crc                                Hadoop's checksum of any file, on a local disk
    _statekeeper/                              control files of Statekeeper; Spark does not read them
        binding.json            the query that the root belongs to
        schemas/<batch>.json    a later state schema, valid from that batch on
        pending/<batch>-<attempt>.json
        log/<version>-<tag>.log batch log: the record of an attempt and its changelogs (FLIP-158)
        lease/<epoch>.json      the maintainer of the root
        deleting/<run>.jsonl    tables that a retention run is about to delete
        history/<time>-<verb>-<run>.<part>.jsonl
        cloned.json             the source of a clone
        retained.json           the findings of the last retention pass
        verified.json           the snapshot files that retention has read in full
        drills.json             the last drill of each store: its rows as a digest, and its seconds
        useless_merges.json     merges of a sink table that would leave as many files
        aside/<run>/<path>      quarantine: the original of a file that a repair or a switchover moved or changed
        aside/<run>.json        the position of the query at that time
        switchover/<number>/begun.json, ended.json, made-<operator>-<partition>-<store>.json
        tmp/                    unfinished files; listings of parent folders omit them
            rewrite/<run>/<operator>-<store>/<part>-<number>-<attempt>.rows, .snapshot, .json
                                what the tasks of a rewrite on a cluster hand to each other

Batch N turns version N into version N+1; version 0 is empty and has no file (SPARK-43421, SPARK-49374).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from statekeeper.statestore.format.provider import Provider

QUERY_METADATA = "metadata"
OFFSETS = "offsets"
COMMITS = "commits"
SOURCES = "sources"
STATE = "state"
CONTROL = "_statekeeper"
BINDING = f"{CONTROL}/binding.json"
PENDING = f"{CONTROL}/pending"
BATCH_LOGS = f"{CONTROL}/log"
CACHED_BATCH_LOGS = "batch-logs"
"""Folder of a root's batch logs on a host, beside the local copies of its stores."""
SCHEMAS = f"{CONTROL}/schemas"
LEASES = f"{CONTROL}/lease"
DELETING = f"{CONTROL}/deleting"
HISTORY = f"{CONTROL}/history"
CLONED = f"{CONTROL}/cloned.json"
RETAINED = f"{CONTROL}/retained.json"
VERIFIED = f"{CONTROL}/verified.json"
DRILLS = f"{CONTROL}/drills.json"
USELESS_MERGES = f"{CONTROL}/useless_merges.json"
QUARANTINE = f"{CONTROL}/aside"
SWITCHOVERS = f"{CONTROL}/switchover"
TEMPORARY = "_statekeeper/tmp"
"""Listings of other folders omit it."""
HANDED_OVER = f"{TEMPORARY}/rewrite"
_HANDED = re.compile(r"(?P<part>[a-z]+)-(?P<number>[0-9]{1,10})-(?P<attempt>[0-9a-f-]{36})\.(?P<suffix>[a-z]+)")
DEFAULT_STORE = "default"
TABLES = "SSTs/"
"""Folder of a store's tables, below the store's folder."""
ARCHIVED_LOGS = "logs/"
"""Folder of a store's archived write-ahead logs."""
_LOG = ".log"
SIDECAR = ".crc"
"""The suffix of a checksum file after the name of its file."""

_STORE_FILE = re.compile(r"(?P<version>0|[1-9][0-9]*)(?:_(?P<id>[0-9a-f-]{36}))?\.(?P<suffix>[a-z]+)")
LARGEST_VERSION = 2**63 - 1
"""Spark stores versions in a long and fails on a larger number in a name."""
LARGEST_NUMBER = 2**31 - 1
"""Spark stores the numbers of operators and partitions in an int."""
MOST_PARTITIONS = 100_000
"""Maximum number of partitions of an operator. The limit prevents a loop of billions over a damaged number."""
_OPERATOR_METADATA = re.compile(
    rf"{STATE}/(?P<operator>0|[1-9][0-9]{{0,9}})/_metadata/(?:metadata|v2/(?P<batch>0|[1-9][0-9]{{0,18}}))"
)
TABLE_NAME = re.compile(r"[0-9]{1,20}-[0-9A-Za-z-]{1,200}\.sst")
STORE_NAME = re.compile(r"[A-Za-z0-9$][A-Za-z0-9$_-]*")
CHECKPOINT_ID = re.compile(r"[0-9a-f-]{36}")
_BATCH = re.compile(r"0|[1-9][0-9]*")
_LEASE = re.compile(r"(?P<epoch>[0-9]{8})\.json")
LARGEST_EPOCH = 99_999_999
"""The largest epoch of a lease that a file name can have."""
_HISTORY = re.compile(rf"{HISTORY}/[0-9TZ]+-(?P<verb>[a-z]+)-[0-9a-f-]{{36}}\.(?P<part>[a-z]+)\.jsonl")
_ASIDE = re.compile(rf"{QUARANTINE}/(?P<run>[0-9a-f-]{{36}})(?:\.json|/(?P<path>.+))")
_SWITCHOVER = re.compile(rf"{SWITCHOVERS}/(?P<number>[0-9]{{8}})/(?P<part>[^/]+)\.json")
_TAG = "[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}"
_BATCH_LOG = re.compile(rf"{BATCH_LOGS}/(?P<version>[1-9][0-9]{{0,18}})-(?P<tag>{_TAG})\.log")
_PENDING = re.compile(r"(?P<batch>0|[1-9][0-9]*)-(?P<attempt>[0-9a-f-]{36})\.json")


@dataclass(frozen=True, order=True, slots=True)
class VersionId:
    """One version of one store: its number and, in structure V2, its checkpoint id. Version 0 has no id.

    `digest`: in structure V1 and a root of Statekeeper, the digest of the committed content; see `checkpoint.digests`.
    It is not part of a file name, and `==` ignores it: use `is_same`.
    """

    version: int
    id: str | None = None
    digest: str | None = field(default=None, compare=False)

    @property
    def mark(self) -> str | None:
        """The id, or in structure V1 the digest. It tells the version from others with the same number."""
        return self.id or self.digest

    @property
    def in_words(self) -> str:
        """The batch that wrote the version: the one word of messages for the position of a query."""
        return f"batch {self.version - 1}" if self.version else "the empty state"

    def is_same(self, other: VersionId) -> bool:
        """Return whether both have the same content. In structure V1, files with the same name can differ in
        content."""
        return self == other and self.digest == other.digest

    def __str__(self) -> str:
        return str(self.version) if self.id is None else f"{self.version}_{self.id}"


EMPTY = VersionId(0)
"""The version of every store before its first batch."""


class StoreFileKind(Enum):
    """The kind of a file directly inside a store's folder."""

    CHANGELOG = "changelog"
    SNAPSHOT = "snapshot"

    __hash__ = object.__hash__  # that of Enum is written in Python


_SUFFIXES = {
    Provider.ROCKSDB: {StoreFileKind.CHANGELOG: "changelog", StoreFileKind.SNAPSHOT: "zip"},
    Provider.HDFS_BACKED: {StoreFileKind.CHANGELOG: "delta", StoreFileKind.SNAPSHOT: "snapshot"},
}


@dataclass(frozen=True)
class StoreFile:
    """A changelog or snapshot, by its name."""

    kind: StoreFileKind
    version: VersionId
    provider: Provider = Provider.ROCKSDB

    @property
    def name(self) -> str:
        return f"{self.version}.{_SUFFIXES[self.provider][self.kind]}"


def changelog(version: VersionId, provider: Provider = Provider.ROCKSDB) -> str:
    """Return the file name of a version's changelog."""
    return StoreFile(StoreFileKind.CHANGELOG, version, provider).name


def snapshot(version: VersionId, provider: Provider = Provider.ROCKSDB) -> str:
    """Return the file name of a version's snapshot."""
    return StoreFile(StoreFileKind.SNAPSHOT, version, provider).name


def cached_changelog(version: VersionId) -> str:
    """Return the file name of a version's changelog in a host's local copy. There the mark is part of the name in
    structure V1, too."""
    return changelog(VersionId(version.version, version.mark))


def parse_cached_digest(name: str) -> VersionId | None:
    """Return the V1 version of a changelog with this name in a host's local copy; None for another name.

    An id of V2 in the name cannot be told from a digest: the caller must know that the structure is V1.
    """
    file = parse_store_file(name)
    if file is None or file.kind is not StoreFileKind.CHANGELOG or file.version.id is None:
        return None
    return VersionId(file.version.version, digest=file.version.id)


def is_checkpoint_id(text: str) -> bool:
    """Return whether the text has the form of a checkpoint id (structure V2) or of a digest (structure V1)."""
    return CHECKPOINT_ID.fullmatch(text) is not None


def parse_store_file(name: str, provider: Provider = Provider.ROCKSDB) -> StoreFile | None:
    """Parse a file name inside a store's folder; None for a name that Spark does not write with this provider."""
    match = _STORE_FILE.fullmatch(name)
    if match is None or int(match["version"]) > LARGEST_VERSION:
        return None
    kind = next((kind for kind, suffix in _SUFFIXES[provider].items() if suffix == match["suffix"]), None)
    # Only RocksDB has checkpoint ids.
    if kind is None or (match["id"] and provider is not Provider.ROCKSDB):
        return None
    return StoreFile(kind, VersionId(int(match["version"]), match["id"]), provider)


def is_sidecar(name: str, provider: Provider = Provider.ROCKSDB) -> bool:
    """Return whether a file name inside a store's folder is that of a sidecar of Spark 4.1 or later."""
    return name.endswith(SIDECAR) and parse_store_file(name.removesuffix(SIDECAR), provider) is not None


def sidecar(path: str) -> str:
    """Return the path of the checksum that Spark 4.1 and later write beside a changelog or snapshot."""
    return f"{path}{SIDECAR}"


def hidden_checksum(path: str) -> str:
    """Return the path of Hadoop's checksum of a file on a local disk."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}{SIDECAR}" if folder else f".{name}{SIDECAR}"


@dataclass(frozen=True, order=True, slots=True)
class StorePath:
    """The path of a store, the unit of versioning. A store has its own folder unless its name is `default`.

    `provider`: decides the names of its files. `==` ignores it, because a folder is one store.
    """

    operator: int
    partition: int
    store: str = DEFAULT_STORE
    provider: Provider = field(default=Provider.ROCKSDB, compare=False)

    @property
    def folder(self) -> str:
        base = f"{STATE}/{self.operator}/{self.partition}"
        return base if self.store == DEFAULT_STORE else f"{base}/{self.store}"

    def changelog(self, version: VersionId) -> str:
        """Return the path of a version's changelog, relative to the checkpoint."""
        return f"{self.folder}/{changelog(version, self.provider)}"

    def snapshot(self, version: VersionId) -> str:
        """Return the path of a version's snapshot, relative to the checkpoint."""
        return f"{self.folder}/{snapshot(version, self.provider)}"

    def table_file(self, dfs_name: str) -> str:
        """Return the path of an SST or archived log with the name that a snapshot gives it."""
        return f"{self.folder}/{ARCHIVED_LOGS if dfs_name.endswith(_LOG) else TABLES}{dfs_name}"

    def __str__(self) -> str:
        return self.folder


_PLACE = re.compile(rf"{STATE}/(0|[1-9][0-9]{{0,9}})/(0|[1-9][0-9]{{0,9}})/(.*)", re.DOTALL)


def parse_place(path: str, provider: Provider = Provider.ROCKSDB) -> tuple[StorePath, str] | None:
    """Split a path relative to the checkpoint into its store and the name inside the store; None for a path in no
    store.

    Accepts only paths that a store writes: not `state/00/0/…` and `state/0/0/default/…`.
    """
    found = _PLACE.fullmatch(path)
    if found is None:
        return None
    operator, partition, name = int(found[1]), int(found[2]), found[3]
    if operator > LARGEST_NUMBER or partition >= MOST_PARTITIONS:
        return None
    store, (first, slash, rest) = DEFAULT_STORE, name.partition("/")
    if slash and f"{first}/" not in (TABLES, ARCHIVED_LOGS):
        if first == DEFAULT_STORE:
            return None
        store, name = first, rest
        first = name.partition("/")[0]
    if "_metadata" in (store, first):
        return None
    return StorePath(operator, partition, store, provider), name


def is_store_name(name: str) -> bool:
    """Return whether this is a valid name of a store. The name becomes a folder."""
    return STORE_NAME.fullmatch(name) is not None


def is_source_name(name: str) -> bool:
    """Return whether this can be the id of a source. The id becomes a folder below `sources/`."""
    return 0 < len(name) <= 255 and not set("/\0\\") & set(name) and not name.startswith(".")


def parse_shared_file(name: str) -> str | None:
    """Return the name that snapshots give to a table or archived log, from its path in the store's folder; None for
    other files."""
    folder, slash, dfs_name = name.partition("/")
    expected = ARCHIVED_LOGS if dfs_name.endswith(_LOG) else TABLES
    return dfs_name if f"{folder}{slash}" == expected else None


def parse_store_path(path: str, provider: Provider = Provider.ROCKSDB) -> tuple[StorePath, StoreFile] | None:
    """Parse a path relative to the checkpoint into the store and its changelog or snapshot; None for all other
    paths."""
    place = parse_place(path, provider)
    file = parse_store_file(place[1], provider) if place else None
    return None if place is None or file is None else (place[0], file)


def parse_file_of_any_provider(path: str) -> tuple[StorePath, StoreFile] | None:
    """As `parse_store_path`, for the files of each provider and for their sidecars: a conversion leaves files of both."""
    found = (parse_store_path(path.removesuffix(SIDECAR), provider) for provider in Provider)
    return next((place for place in found if place is not None), None)


def batch_of(path: str) -> int | None:
    """Return the batch that wrote a changelog, a snapshot, a sidecar of these, or a batch log: one less than the number in
    its name. None for other paths."""
    file = parse_file_of_any_provider(path)
    place = parse_batch_log(path)
    version = file[1].version.version if file else place[0] if place else 0
    return version - 1 if version else None


def with_batch(path: str) -> str:
    """Return the path, with its batch if its name has the number of a version: the two differ by one."""
    batch = batch_of(path)
    return path if batch is None else f"{path} (of batch {batch})"


def offsets(batch: int) -> str:
    """Return the path of a batch's offset log."""
    return f"{OFFSETS}/{batch}"


def commits(batch: int) -> str:
    """Return the path of a batch's commit log."""
    return f"{COMMITS}/{batch}"


def parse_batch(path: str) -> int | None:
    """Return the batch of a path or file name in `offsets/` or `commits/`; None for another name."""
    name = path.rpartition("/")[2]
    # Spark stores both the batch and its version, batch + 1, in a long.
    return int(name) if _BATCH.fullmatch(name) and int(name) < LARGEST_VERSION else None


def operator_metadata(operator: int) -> str:
    """Return the path of an operator's metadata, version 1 of the file."""
    return f"{STATE}/{operator}/_metadata/metadata"


def operator_metadata_by_batch(operator: int) -> str:
    """Return the folder of an operator's metadata, version 2: one file per change, named by the first batch that it
    applies to."""
    return f"{STATE}/{operator}/_metadata/v2"


def parse_operator_metadata(path: str) -> tuple[int, int] | None:
    """Return the operator of a metadata path and the first batch that the file applies to, -1 in version 1; None for
    another path."""
    match = _OPERATOR_METADATA.fullmatch(path)
    return (int(match["operator"]), int(match["batch"] or -1)) if match else None


def state_schema(operator: int) -> str:
    """Return the path of an operator's state schema, version 2 of the file."""
    return store_schema(operator, DEFAULT_STORE)


def store_schema(operator: int, store: str) -> str:
    """Return the path of the schema of an operator's store; it applies to all partitions. Version 2 of the file."""
    return f"{StorePath(operator, 0, store).folder}/_metadata/schema"


def family_schemas(operator: int, store: str, file: str) -> str:
    """Return the path of the schemas of a store's column families; version 3 of the file."""
    return f"{STATE}/{operator}/_stateSchema/{store}/{file}"


def later_schema(batch: int) -> str:
    """Return the path of the record that the state schema changes with a batch."""
    return f"{SCHEMAS}/{batch}.json"


def pending(batch: int, attempt: str) -> str:
    """Return the path of the record that an attempt creates before it writes to the sink."""
    return f"{PENDING}/{batch}-{attempt}.json"


def parse_pending(path: str) -> tuple[int, str] | None:
    """Return the batch and attempt of a path or file name in `pending/`; None for another name."""
    match = _PENDING.fullmatch(path.rpartition("/")[2])
    return (int(match["batch"]), match["attempt"]) if match else None


def batch_log(version: int, tag: str) -> str:
    """Return the path of the batch log with the changelogs of a version."""
    return f"{BATCH_LOGS}/{version}-{tag}.log"


def parse_batch_log(path: str) -> tuple[int, str] | None:
    """Parse the path of a batch log: its version and its tag; None for another path."""
    match = _BATCH_LOG.fullmatch(path)
    return (int(match["version"]), match["tag"]) if match else None


def lease(epoch: int) -> str:
    """Return the path of a lease; the lease with the highest epoch is valid."""
    return f"{LEASES}/{epoch:08}.json"


def parse_lease(path: str) -> int | None:
    """Return the epoch of a path or file name in `lease/`; None for another name."""
    match = _LEASE.fullmatch(path.rpartition("/")[2])
    return int(match["epoch"]) if match else None


def quarantine(run: str, path: str) -> str:
    """Return the quarantine path of a file."""
    return f"{QUARANTINE}/{run}/{path}"


def quarantine_position(run: str) -> str:
    """Return the path of the record of the query's position before a repair."""
    return f"{QUARANTINE}/{run}.json"


def is_quarantine_position(path: str) -> bool:
    """Return whether a path is that of `quarantine_position`."""
    match = _ASIDE.fullmatch(path)
    return match is not None and match["path"] is None


def parse_quarantined(path: str) -> tuple[str, str] | None:
    """Return the run that quarantined a file, and the file's original path ("" for the record of the query's position);
    None for another path."""
    match = _ASIDE.fullmatch(path)
    return (match["run"], match["path"] or "") if match else None


def switchover(number: int, part: str) -> str:
    """Return the path of a part of a switchover's journal; the journal with the highest number is valid."""
    return f"{SWITCHOVERS}/{number:08}/{part}.json"


def parse_switchover(path: str) -> tuple[int, str] | None:
    """Return the number and part of a journal path; None for another path."""
    match = _SWITCHOVER.fullmatch(path)
    return (int(match["number"]), match["part"]) if match else None


def deleting(run: str) -> str:
    """Return the path where a retention run announces the files that it will delete."""
    return f"{DELETING}/{run}.jsonl"


def history(stamp: str, verb: str, run: str, part: str) -> str:
    """Return the path of the record of a maintenance run's plan or outcome; names sort by time."""
    return f"{HISTORY}/{stamp}-{verb}-{run}.{part}.jsonl"


def parse_history(path: str) -> tuple[str, str] | None:
    """Return the verb and part of a record's path; None for another path."""
    match = _HISTORY.fullmatch(path)
    return (match["verb"], match["part"]) if match else None


def outcome_of(plan: str) -> str:
    """Return the path of the outcome for a plan's record."""
    return plan.removesuffix(".plan.jsonl") + ".outcome.jsonl"


def handed_over(run: str, operator: int | None = None, store: str = DEFAULT_STORE) -> str:
    """Return the folder of what the tasks of a rewrite hand to each other: of all stores, or of an operator's store."""
    folder = f"{HANDED_OVER}/{run}"
    return folder if operator is None else f"{folder}/{operator}-{store}"


def handed(part: str, number: int, attempt: str, suffix: str) -> str:
    """Return the name of a file in such a folder: of an attempt at one item of a part of the work."""
    return f"{part}-{number}-{attempt}.{suffix}"


def parse_handed(path: str) -> tuple[str, int, str, str] | None:
    """Return the part, the number, the attempt and the suffix of such a path or file name; None for another name."""
    match = _HANDED.fullmatch(path.rpartition("/")[2])
    return (match["part"], int(match["number"]), match["attempt"], match["suffix"]) if match else None
