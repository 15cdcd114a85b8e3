"""The types of a drill: what is known of the stores, what to restore and why, and what came of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import TypeAlias

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint.lineage import LoadPlan
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.maintenance.records.drills import Drills, StoreDrill
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotFacts

DRILLS_IN_A_QUARTER = 13
"""Weekly drills, of which each store must be in one."""


class Reason(Enum):
    """Why a store is in the sample."""

    ASKED = "requested"
    NOT_LOADABLE = "its files do not give a load"
    NEVER = "never restored by a drill"
    OLDEST = "restored by a drill the longest time ago"
    TURN = "its turn: no drill is recorded"
    WORST = "one of the longest restores"


class Against(Enum):
    """With what the restored rows are compared. It does not use the snapshot that a load begins with, or not as it is
    now."""

    REPLAY = "an older base and all changelogs since"
    LAST_DRILL = "the rows of the last drill"
    SPARK = "Spark's own reader"


class Verdict(Enum):
    """The result of the drill of a store. Only `SAME` is green."""

    SAME = "restores, and the rows are equal"
    NOT_COMPARED = "restores, but its rows were not compared"
    OLDER_BASE = "the newest snapshot is unusable: it restores from an older base"
    DIFFERS = "restores with other rows"
    LOST = "does not restore"

    @property
    def is_finding(self) -> bool:
        """Return whether a person must act."""
        return self in (Verdict.OLDER_BASE, Verdict.DIFFERS, Verdict.LOST)


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """A store at the version to restore.

    load      its load; None if its files do not give one, because of `problem`
    older     a base before that of the load from which the changelogs are there; None if there is none, because of
              `no_older`
    past      see `drills.StoreDrill`; `past_of_last`: the past that the version of the last drill has now
    """

    store: StorePath
    version: VersionId
    load: LoadPlan | None
    tail_bytes: int = 0
    problem: str | None = None
    older: VersionId | None = None
    no_older: str = ""
    past: str = ""
    past_of_last: str = ""
    predicted_seconds: float = 0.0

    @property
    def base(self) -> VersionId:
        """The base of the load."""
        return EMPTY if self.load is None else self.load.base

    @property
    def changelogs(self) -> int:
        """The number of changelogs that the load replays."""
        return 0 if self.load is None else len(self.load.replay)


@dataclass(frozen=True, kw_only=True)
class DrillFacts:
    """The stores of a checkpoint and their last drills. `gathered`: with what drills have measured; `families`: the
    operators with column families."""

    gathered: SnapshotFacts
    stores: tuple[StoreFacts, ...]
    last: Drills
    families: frozenset[int] = frozenset()

    @property
    def batch(self) -> int | None:
        """The newest committed batch; None before the first commit."""
        return self.gathered.batch


@dataclass(frozen=True, kw_only=True)
class DrillStore:
    """Restore a store, and compare its rows. `last`: its last drill, if its rows can be compared with that."""

    facts: StoreFacts
    reason: Reason
    last: StoreDrill | None = None

    @property
    def store(self) -> StorePath:
        """The store."""
        return self.facts.store

    @property
    def version(self) -> VersionId:
        """The version to restore."""
        return self.facts.version

    @property
    def compares(self) -> tuple[Against, ...]:
        """With what its rows can be compared, without Spark."""
        possible = {Against.REPLAY: self.facts.older is not None, Against.LAST_DRILL: self.last is not None}
        return tuple(against for against, is_possible in possible.items() if is_possible)

    @property
    def not_compared(self) -> str:
        """Why nothing can be compared without Spark."""
        return f"{self.facts.no_older}, and no earlier drill restored this batch or an earlier one that still loads"


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """The sample, in the order of the work, and the number of stores. `rounds`: drills with this sample until each store
    was in one; None if that never happens."""

    batch: int | None
    drill: tuple[DrillStore, ...]
    stores: int
    rounds: int | None = 1
    refusals: tuple[StatekeeperError, ...] = ()

    @property
    def predicted_seconds(self) -> float:
        """The predicted time of the loads, one after another."""
        return sum(one.facts.predicted_seconds for one in self.drill)


Shown: TypeAlias = Mapping[str | None, str] | StatekeeperError
"""Digests of the decoded rows of a store by column family, None for a store without families; or why there are none."""


@dataclass(frozen=True)
class Differences:
    """Rows that differ from those of the comparison: missing, additional, and with another value.

    `key`: the first such key, decoded; None if the schema does not decode it. `conditions`: those of `dump --key` for it.
    """

    missing: int = 0
    added: int = 0
    changed: int = 0
    _: KW_ONLY
    key: str | None = None
    conditions: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = {"missing": self.missing, "additional": self.added, "with another value": self.changed}
        parts = [f"{count:,} {what}" for what, count in counts.items() if count]
        first = f"; first key: {self.key}" if self.key else ""
        return f"rows: {', '.join(parts)}{first}" if parts else "other rows"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison.

    what      with which version or batch
    is_equal  None if it was not possible, because of `why`
    proves    whether equality proves the present rows; False if the other rows were never proved themselves, or are of
              another version, because of `why`. A difference is a finding either way
    """

    against: Against
    what: str
    is_equal: bool | None
    why: str = ""
    proves: bool = True
    differences: Differences | None = None

    @property
    def is_decided(self) -> bool:
        """Whether it says something about the present rows."""
        return self.is_equal is False or (self.is_equal is True and self.proves)


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """The drill of a store.

    digest          of the restored rows, "" if it did not restore
    base            the base of the load
    base_seconds    to fetch and open the base; `replay_seconds`: to replay the tail
    problem         why the store does not restore, or why its newest snapshot is unusable
    shown           its decoded rows, to compare them with Spark's reader
    """

    action: DrillStore
    digest: str = ""
    rows: int = 0
    base: VersionId = EMPTY
    base_seconds: float = 0.0
    replay_seconds: float = 0.0
    comparisons: tuple[Comparison, ...] = ()
    problem: str = ""
    shown: Shown = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The measured time of the load."""
        return self.base_seconds + self.replay_seconds

    @property
    def verdict(self) -> Verdict:
        """The result."""
        if not self.digest:
            return Verdict.LOST
        if any(one.is_equal is False for one in self.comparisons):
            return Verdict.DIFFERS
        if self.problem:
            return Verdict.OLDER_BASE
        return Verdict.SAME if self.compared and not self.without_spark else Verdict.NOT_COMPARED

    @property
    def without_spark(self) -> str:
        """Why a comparison with Spark's reader that was asked for does not cover all rows; "" if it does, or was not asked
        for."""
        return "" if self._open_of_spark is None else self._open_of_spark.why

    @property
    def _open_of_spark(self) -> Comparison | None:
        of_spark = (one for one in self.comparisons if one.against is Against.SPARK)
        return next((one for one in of_spark if not one.is_decided), None)

    @property
    def compared(self) -> tuple[Comparison, ...]:
        """The comparisons that say something about the present rows."""
        return tuple(one for one in self.comparisons if one.is_decided)

    @property
    def is_proved(self) -> bool:
        """Whether a comparison proved its rows: a later drill of the same rows is then worth as much."""
        return bool(self.compared) and all(one.is_equal for one in self.compared)

    @property
    def explained(self) -> str:
        """A sentence about the result: what was compared, what differs, or why nothing was compared."""
        if self.verdict is Verdict.LOST:
            return f"{self.verdict.value}: {self.problem}"
        wrong = next((one for one in self.comparisons if one.is_equal is False), None)
        if wrong is not None:
            found = "other rows" if wrong.differences is None else str(wrong.differences)
            return f"differs from {wrong.what}: {found}"
        if self.problem:
            return f"{self.verdict.value} ({self.problem})"
        if self.compared:
            return f"equal to {' and to '.join(one.what for one in self.compared)}{self._left_by_spark}"
        if not self.comparisons:
            return f"not compared: {self.action.not_compared}"
        reasons = [*([self.action.facts.no_older] if self.action.facts.older is None else []), *self._undecided]
        return f"not compared: {'; '.join(filter(None, reasons))}"

    @property
    def _left_by_spark(self) -> str:
        missed = self._open_of_spark
        if missed is None:
            return ""
        if missed.is_equal is None:
            return f"; not compared with Spark's reader: {missed.why}"
        return f"; with Spark's reader, not all was compared: {missed.why}"

    @property
    def _undecided(self) -> tuple[str, ...]:
        return tuple(one.why for one in self.comparisons if not one.is_decided)


@dataclass(frozen=True, kw_only=True)
class Found:
    """The results of a drill. `failed`: the stores that could not be examined, each with its error."""

    drilled: tuple[Drilled, ...] = ()
    failed: Mapping[StorePath, StatekeeperError] = field(default_factory=dict)

    def of(self, *verdicts: Verdict) -> Collection[Drilled]:
        """The results with these verdicts."""
        return [one for one in self.drilled if one.verdict in verdicts]

    @property
    def findings(self) -> Collection[Drilled]:
        """The stores for which a person must act."""
        return [one for one in self.drilled if one.verdict.is_finding]

    @property
    def seconds(self) -> float:
        """The measured time of the loads, one after another."""
        return sum(one.seconds for one in self.drilled)

    @property
    def is_green(self) -> bool:
        """Whether every store of the sample restored, and its rows were compared and are equal."""
        return bool(self.drilled) and not self.failed and all(one.verdict is Verdict.SAME for one in self.drilled)
