"""A switchover as data: what is to become of each store, what is quarantined, and every reason not to go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from statestore.catalog import StoreFiles
from statestore.format.names import StorePath, VersionId
from statestore.format.state_conf import OURS, StateConf
from statestore.format.structure import Structure
from statestore.lineage import LoadPlan
from statestore.maintenance.audit import Audit
from statestore.switch_journal import OpenJournal


class Source(Enum):
    """Where a store's snapshot in the other structure comes from."""

    REUSED = "the snapshot at its head, as it is"
    BUILT = "a load of its head"


@dataclass(frozen=True)
class StoreSwitchFacts:
    """One store at the newest commit. `load` says how its head is loaded, None when it cannot be, and `problem` why not;
    `base_bytes` are those of the tables and the zip that a load starts from, `tail_bytes` of what it replays."""

    store: StorePath
    head: VersionId
    load: LoadPlan | None
    base_bytes: int
    tail_bytes: int
    problem: str | None = None


@dataclass(frozen=True)
class SwitchoverFacts:
    """The facts. `batch` is None, and `structure` too, before the first commit.

    stores           in the order in which the commit log names them
    commit           the newest commit, as text
    is_plain_commit  whether there is nothing in it that is not known here
    begun            the newest batch that the offset log knows, -1 for none
    pending          what attempts of our own jobs at the batch after it have left
    partitions       that the offset log of the newest commit pins, None where it does not say
    repartitions     whether the batch after it has another number of them
    audit            None while a switchover is half done: it was clean when that began
    free_bytes       of local disk
    """

    is_own: bool
    batch: int | None = None
    structure: Structure | None = None
    stores: tuple[StoreSwitchFacts, ...] = ()
    files: Mapping[StorePath, StoreFiles] | None = None
    commit: str = ""
    is_plain_commit: bool = True
    begun: int = -1
    pending: tuple[str, ...] = ()
    partitions: int | None = None
    repartitions: bool = False
    conf: StateConf = OURS
    may_be_of_4_0: bool = False
    audit: Audit | None = None
    half_done: OpenJournal | None = None
    free_bytes: int = 0
    replay_bytes_per_second: float = 1.0


@dataclass(frozen=True)
class StoreStep:
    """What becomes of one store. `read_bytes` are fetched, `write_bytes` sent: what is known beforehand."""

    store: StorePath
    head: VersionId
    load: LoadPlan
    source: Source
    read_bytes: int
    write_bytes: int
    tail_bytes: int

    @property
    def explained(self) -> str:
        """Where its snapshot comes from, with figures."""
        replayed = f": {len(self.load.replay):,} changelogs, {self.tail_bytes:,} bytes since {self.load.since}"
        return f"{self.source.value}{replayed if self.load.replay else ''}"


@dataclass(frozen=True)
class SwitchPlan:
    """What is to be done, in this order: `first` is quarantined, the `stores` get their snapshots, the newest commit is
    written anew, `last` is quarantined. Nothing is, while there are `refusals`.

    is_there      nothing is to be done: the checkpoint has this structure
    half_done     it goes on with what an interrupted run has begun
    header        of the snapshots' metadata
    stays_files, stays_bytes   of the old structure, which stay where they are
    local_bytes   of local disk, at most
    seconds       how long the replays take, as far as one can tell
    commit        the newest commit, as text; what is carried out later is refused when it is another one then
    begun         the newest batch that the offset log knows, -1 for none
    """

    to: Structure
    batch: int | None
    header: str
    stores: tuple[StoreStep, ...]
    first: tuple[str, ...]
    last: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    is_there: bool = False
    half_done: OpenJournal | None = None
    conf: StateConf = OURS
    is_own: bool = False
    stays_files: int = 0
    stays_bytes: int = 0
    local_bytes: int = 0
    seconds: float = 0.0
    commit: str = ""
    begun: int = -1

    @property
    def is_in_batch(self) -> bool:
        """Whether a batch was begun and has not ended: it was left so, or somebody is at it just now."""
        return self.batch is not None and self.begun > self.batch

    @property
    def start_with(self) -> str:
        """What the query, or the job of our own, has to be started with afterwards."""
        if self.is_own:
            return f"structure=Structure.{self.to.name}"
        return " ".join(f"{name}={value}" for name, value in self.to.conf.items())

    @property
    def read_bytes(self) -> int:
        """Fetched for all stores."""
        return sum(step.read_bytes for step in self.stores)

    @property
    def write_bytes(self) -> int:
        """Sent for all stores."""
        return sum(step.write_bytes for step in self.stores)
