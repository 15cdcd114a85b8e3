"""Every file name of a checkpoint, both directions; the only module that knows them.

    metadata                                   the query's id
    offsets/<batch>   commits/<batch>          the query's logs
    state/<operator>/_metadata/metadata        which stores the operator has
    state/<operator>/_metadata/v2/<batch>      the same, of operators with column families; from that batch on
    state/<operator>/0/_metadata/schema        their key and value schemas; of a named store below its own folder
    state/<operator>/_stateSchema/<store>/     the same, of operators with column families; a file for each change
    state/<operator>/<partition>/              a store
        <version>.changelog     <version>_<id>.changelog         structure V1, V2
        <version>.zip           <version>_<id>.zip
        <changelog or zip>.crc                               its checksum, of Spark 4.1 and later
        SSTs/<local number>-<uuid>.sst
        logs/<local number>-<uuid>.log                           archived write-ahead logs
    .<name>.crc                                on a local disk, beside any file: Hadoop's checksum of it
    _statekeeper/                              ours; Spark never looks there
        binding.json            which query the root belongs to
        schemas/<batch>.json    a later state schema, and from which batch on it holds
        pending/<batch>-<attempt>.json
        lease/<epoch>.json      who maintains the root
        deleting/<run>.jsonl    tables that a retention run is about to delete
        history/<time>-<verb>-<run>.<part>.jsonl
        retained.json           what the last retention pass found
        verified.json           the files of snapshots that retention has read in full
        aside/<run>/<path>      what a repair or a switchover has taken away or changed, as it was
        aside/<run>.json        where the query stood then
        switchover/<number>/begun.json, ended.json, made-<operator>-<partition>-<store>.json

Batch N turns version N into version N+1; version 0 is empty and has no file (SPARK-43421, SPARK-49374).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

QUERY_METADATA = "metadata"
OFFSETS = "offsets"
COMMITS = "commits"
STATE = "state"
CONTROL = "_statekeeper"
BINDING = f"{CONTROL}/binding.json"
PENDING = f"{CONTROL}/pending"
SCHEMAS = f"{CONTROL}/schemas"
LEASES = f"{CONTROL}/lease"
DELETING = f"{CONTROL}/deleting"
HISTORY = f"{CONTROL}/history"
RETAINED = f"{CONTROL}/retained.json"
VERIFIED = f"{CONTROL}/verified.json"
QUARANTINE = f"{CONTROL}/aside"
SWITCHOVERS = f"{CONTROL}/switchover"
DEFAULT_STORE = "default"
TABLES = "SSTs/"
"""Where a store's tables lie, below its folder."""
ARCHIVED_LOGS = "logs/"
"""Where its archived write-ahead logs lie."""
_LOG = ".log"
SIDECAR = ".crc"
"""What stands behind the name of a file in the name of its checksum."""

_ZIP = ".zip"
_PARSED = (_ZIP, ".changelog")
_STORE_FILE = re.compile(r"(?P<version>0|[1-9][0-9]*)(?:_(?P<id>[0-9a-f-]{36}))?\.(?P<kind>changelog|zip)")
_LARGEST_VERSION = 2**63 - 1
"""Spark, which keeps versions in a long, fails over a name with more."""
LARGEST_NUMBER = 2**31 - 1
"""Spark keeps the numbers of operators and partitions in an int."""
MOST_PARTITIONS = 100_000
"""More of one operator there are not: a damaged number is not to become a loop of billions."""
_OPERATOR_METADATA = re.compile(
    rf"{STATE}/(?P<operator>0|[1-9][0-9]{{0,9}})/_metadata/(?:metadata|v2/(?P<batch>0|[1-9][0-9]{{0,18}}))"
)
_TABLE_NAME = re.compile(r"[0-9]{1,20}-[0-9A-Za-z-]{1,200}\.sst")
_STORE_NAME = re.compile(r"[A-Za-z0-9$][A-Za-z0-9$_-]*")
_CHECKPOINT_ID = re.compile(r"[0-9a-f-]{36}")
_BATCH = re.compile(r"0|[1-9][0-9]*")
_LEASE = re.compile(r"(?P<epoch>[0-9]{8})\.json")
_HISTORY = re.compile(rf"{HISTORY}/[0-9TZ]+-(?P<verb>[a-z]+)-[0-9a-f-]{{36}}\.(?P<part>[a-z]+)\.jsonl")
_ASIDE = re.compile(rf"{QUARANTINE}/(?P<run>[0-9a-f-]{{36}})(?:\.json|/(?P<path>.+))")
_SWITCHOVER = re.compile(rf"{SWITCHOVERS}/(?P<number>[0-9]{{8}})/(?P<part>[^/]+)\.json")
_PENDING = re.compile(r"(?P<batch>0|[1-9][0-9]*)-(?P<attempt>[0-9a-f-]{36})\.json")


@dataclass(frozen=True, order=True, slots=True)
class VersionId:
    """One version of one store: its number and, in structure V2, its checkpoint id. Version 0 has no id.

    `digest`: in structure V1, what the commit of a root of our own says that the version is; see `statestore.digests`. It
    is in no file name, and two versions that differ by it alone are equal: ask `is_same`.
    """

    version: int
    id: str | None = None
    digest: str | None = field(default=None, compare=False)

    @property
    def mark(self) -> str | None:
        """What tells it from other versions of its number: the id, in structure V1 the digest."""
        return self.id or self.digest

    @property
    def in_words(self) -> str:
        """With the batch that made it: version N + 1 is what batch N left."""
        return f"version {self.version} (batch {self.version - 1})" if self.version else "version 0, the empty one"

    def is_same(self, other: VersionId) -> bool:
        """Whether both hold the same, also where files of one name may hold this or that."""
        return self == other and self.digest == other.digest

    def __str__(self) -> str:
        return str(self.version) if self.id is None else f"{self.version}_{self.id}"


EMPTY = VersionId(0)
"""What every store is before its first batch."""


class StoreFileKind(Enum):
    """What a file directly inside a store's folder holds."""

    CHANGELOG = "changelog"
    SNAPSHOT = "zip"


@dataclass(frozen=True)
class StoreFile:
    """A changelog or snapshot, by its name."""

    kind: StoreFileKind
    version: VersionId

    @property
    def name(self) -> str:
        return f"{self.version}.{self.kind.value}"


def changelog(version: VersionId) -> str:
    """The file name of a version's changelog."""
    return StoreFile(StoreFileKind.CHANGELOG, version).name


def snapshot(version: VersionId) -> str:
    """The file name of a version's snapshot."""
    return StoreFile(StoreFileKind.SNAPSHOT, version).name


def cached_changelog(version: VersionId) -> str:
    """The file name of a version's changelog on a host: there files of one number are told apart in structure V1, too."""
    return changelog(VersionId(version.version, version.mark))


def parse_cached_digest(name: str) -> VersionId | None:
    """The version of structure V1 whose changelog on a host has that name, unless it is an id of V2 that the name has; None
    for another name."""
    file = parse_store_file(name)
    if file is None or file.kind is not StoreFileKind.CHANGELOG or file.version.id is None:
        return None
    return VersionId(file.version.version, digest=file.version.id)


def is_checkpoint_id(text: str) -> bool:
    """Whether the text can be the id of a version in structure V2, or its digest in structure V1."""
    return _CHECKPOINT_ID.fullmatch(text) is not None


def parse_store_file(name: str) -> StoreFile | None:
    """What a file name inside a store's folder says; None for a name that Spark would not have written."""
    match = _STORE_FILE.fullmatch(name)
    if match is None or int(match["version"]) > _LARGEST_VERSION:
        return None
    return StoreFile(StoreFileKind(match["kind"]), VersionId(int(match["version"]), match["id"]))


def is_sidecar(name: str) -> bool:
    """Whether a file name inside a store's folder is that of a checksum which Spark 4.1 and later put beside a file."""
    return name.endswith(SIDECAR) and parse_store_file(name.removesuffix(SIDECAR)) is not None


def sidecar(path: str) -> str:
    """The path of the checksum that Spark 4.1 and later put beside a changelog or snapshot."""
    return f"{path}{SIDECAR}"


def hidden_checksum(path: str) -> str:
    """The path of the checksum that Hadoop keeps of a file on a local disk."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}{SIDECAR}" if folder else f".{name}{SIDECAR}"


def stops_loads(name: str) -> bool:
    """Whether Spark cannot load a store of structure V1 while its folder holds a file of that name: it takes every name
    that ends in `.zip`, hidden or not, for the number of a version."""
    if not name.endswith(_ZIP) or "/" in name:
        return False
    parsed = parse_store_file(name)
    return parsed is None or parsed.version.id is not None


def counted_as(name: str) -> int | None:
    """The version of which Spark's clean-up takes a file of that name for a snapshot; None when it takes it for none."""
    number = name.removesuffix(_ZIP).partition("_")[0]
    is_taken = name.endswith(_ZIP) and "/" not in name and not stops_cleanup(name)
    return int(number) if is_taken else None


def stops_cleanup(name: str) -> bool:
    """Whether Spark's clean-up of a store fails, each time and without a word, over a file of that name in its folder: it
    wants a number, and nothing or one word after it."""
    base, dot, kind = name.rpartition(".")
    number, *words = base.split("_")
    if f"{dot}{kind}" not in _PARSED or "/" in name:
        return False
    return len(words) > 1 or not (number.isascii() and number.isdecimal() and int(number) <= _LARGEST_VERSION)


@dataclass(frozen=True, order=True, slots=True)
class StorePath:
    """Where a store lives: the unit that has versions. `store` is a folder of its own unless it is `default`."""

    operator: int
    partition: int
    store: str = DEFAULT_STORE

    @property
    def folder(self) -> str:
        base = f"{STATE}/{self.operator}/{self.partition}"
        return base if self.store == DEFAULT_STORE else f"{base}/{self.store}"

    def changelog(self, version: VersionId) -> str:
        """The path of a version's changelog, relative to the checkpoint."""
        return f"{self.folder}/{changelog(version)}"

    def snapshot(self, version: VersionId) -> str:
        """The path of a version's snapshot, relative to the checkpoint."""
        return f"{self.folder}/{snapshot(version)}"

    def table_file(self, dfs_name: str) -> str:
        """The path of an SST, or of an archived log, that a snapshot names."""
        return f"{self.folder}/{ARCHIVED_LOGS if dfs_name.endswith(_LOG) else TABLES}{dfs_name}"

    def __str__(self) -> str:
        return self.folder


def parse_place(path: str) -> tuple[StorePath, str] | None:
    """The store that a path relative to the checkpoint lies in, and the name there; None for what is in no store.

    Only for a path that the store itself would write: `state/00/0/…` and `state/0/0/default/…` are nobody's.
    """
    match path.split("/"):
        case [folder, operator, partition, *inside] if folder == STATE and _are_store(operator, partition):
            pass
        case _:
            return None
    store = DEFAULT_STORE
    if len(inside) > 1 and f"{inside[0]}/" not in (TABLES, ARCHIVED_LOGS):
        store, *inside = inside
    if not inside or "_metadata" in (store, inside[0]):
        return None
    place, name = StorePath(int(operator), int(partition), store), "/".join(inside)
    return (place, name) if f"{place.folder}/{name}" == path else None


def _are_store(operator: str, partition: str) -> bool:
    is_number = all(text.isascii() and text.isdecimal() and len(text) <= 10 for text in (operator, partition))
    return is_number and int(operator) <= LARGEST_NUMBER and int(partition) < MOST_PARTITIONS


def is_table_name(name: str) -> bool:
    """Whether a table can have that name below `SSTs/`."""
    return _TABLE_NAME.fullmatch(name) is not None


def is_store_name(name: str) -> bool:
    """Whether an operator can have a store of that name: it becomes a folder."""
    return _STORE_NAME.fullmatch(name) is not None


def parse_shared_file(name: str) -> str | None:
    """What snapshots call a table or an archived log, by its path inside its store's folder; None for other files."""
    folder, slash, dfs_name = name.partition("/")
    expected = ARCHIVED_LOGS if dfs_name.endswith(_LOG) else TABLES
    return dfs_name if f"{folder}{slash}" == expected else None


def parse_store_path(path: str) -> tuple[StorePath, StoreFile] | None:
    """The store and the changelog or snapshot that a path relative to the checkpoint names; None for all others."""
    place = parse_place(path)
    file = parse_store_file(place[1]) if place else None
    return None if place is None or file is None else (place[0], file)


def offsets(batch: int) -> str:
    """The path of a batch's offset log file."""
    return f"{OFFSETS}/{batch}"


def commits(batch: int) -> str:
    """The path of a batch's commit log file."""
    return f"{COMMITS}/{batch}"


def parse_batch(name: str) -> int | None:
    """The batch that a file of `offsets/` or `commits/` belongs to; None for another name."""
    # Spark keeps batches in a long, and the version after a batch, too.
    return int(name) if _BATCH.fullmatch(name) and int(name) < _LARGEST_VERSION else None


def operator_metadata(operator: int) -> str:
    """The path of an operator's metadata, version 1 of the file."""
    return f"{STATE}/{operator}/_metadata/metadata"


def operator_metadata_by_batch(operator: int) -> str:
    """The folder of an operator's metadata, version 2: one file for each batch from which on it holds."""
    return f"{STATE}/{operator}/_metadata/v2"


def parse_operator_metadata(path: str) -> tuple[int, int] | None:
    """The operator that a path is the metadata of, and the batch from which on it holds, -1 in version 1; None for
    another path."""
    match = _OPERATOR_METADATA.fullmatch(path)
    return (int(match["operator"]), int(match["batch"] or -1)) if match else None


def state_schema(operator: int) -> str:
    """The path of an operator's state schema, version 2 of the file."""
    return store_schema(operator, DEFAULT_STORE)


def store_schema(operator: int, store: str) -> str:
    """The path of the schema of one of an operator's stores, which holds for all partitions; version 2 of the file."""
    return f"{StorePath(operator, 0, store).folder}/_metadata/schema"


def family_schemas(operator: int, store: str, file: str) -> str:
    """The path of the schemas of a store's column families; version 3 of the file."""
    return f"{STATE}/{operator}/_stateSchema/{store}/{file}"


def later_schema(batch: int) -> str:
    """The path of the record that the state's schema changes with a batch."""
    return f"{SCHEMAS}/{batch}.json"


def pending(batch: int, attempt: str) -> str:
    """The path of the record that an attempt leaves before it writes to the sink."""
    return f"{PENDING}/{batch}-{attempt}.json"


def parse_pending(name: str) -> tuple[int, str] | None:
    """Batch and attempt of a file name in `pending/`; None for another name."""
    match = _PENDING.fullmatch(name)
    return (int(match["batch"]), match["attempt"]) if match else None


def lease(epoch: int) -> str:
    """The path of a lease; the one with the highest epoch counts."""
    return f"{LEASES}/{epoch:08}.json"


def parse_lease(name: str) -> int | None:
    """The epoch of a file name in `lease/`; None for another name."""
    match = _LEASE.fullmatch(name)
    return int(match["epoch"]) if match else None


def quarantine(run: str, path: str) -> str:
    """Where a repair keeps what was at a path."""
    return f"{QUARANTINE}/{run}/{path}"


def quarantine_position(run: str) -> str:
    """Where a repair keeps where the query stood."""
    return f"{QUARANTINE}/{run}.json"


def parse_quarantined(path: str) -> tuple[str, str] | None:
    """The run that put a file aside and the path that it had, "" for where the query stood; None for another path."""
    match = _ASIDE.fullmatch(path)
    return (match["run"], match["path"] or "") if match else None


def switchover(number: int, part: str) -> str:
    """The path of a part of a switchover's journal; the one with the highest number counts."""
    return f"{SWITCHOVERS}/{number:08}/{part}.json"


def parse_switchover(path: str) -> tuple[int, str] | None:
    """Number and part of a journal's path; None for another path."""
    match = _SWITCHOVER.fullmatch(path)
    return (int(match["number"]), match["part"]) if match else None


def deleting(run: str) -> str:
    """The path where a retention run announces what it is about to delete."""
    return f"{DELETING}/{run}.jsonl"


def history(stamp: str, verb: str, run: str, part: str) -> str:
    """The path of a record of what a maintenance run planned or did; names sort by time."""
    return f"{HISTORY}/{stamp}-{verb}-{run}.{part}.jsonl"


def parse_history(path: str) -> tuple[str, str] | None:
    """Verb and part of a record's path; None for another path."""
    match = _HISTORY.fullmatch(path)
    return (match["verb"], match["part"]) if match else None


def outcome_of(plan: str) -> str:
    """The path of the outcome that belongs to a plan's record."""
    return plan.removesuffix(".plan.jsonl") + ".outcome.jsonl"
