"""The parameters of a seed of the simulation, and the counts of its events."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

from statekeeper.statestore.maintenance.records.announcements import DELETES_FOR_SECONDS, LIFE_SECONDS
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy


@dataclass(frozen=True)
class Weather:
    """The parameters of a seed. Times are in virtual seconds, chances are for one request."""

    stores: int
    batches: int
    retention: RetentionPolicy
    snapshots: SnapshotPolicy
    batch_seconds: float
    request_seconds: float
    stall_chance: float
    stall_chance_of_changes: float
    longest_stall_seconds: float
    failure_chance: float
    crash_chance: float
    clock_jumps_seconds: float
    has_spark: bool
    has_damage: bool
    in_batch_logs: bool = False
    """Whether the driver writes the small changelogs of a batch as one object (FLIP-158)."""

    @classmethod
    def of(cls, chance: random.Random) -> Weather:
        """Chance decides."""

        def between(low: float, high: float) -> float:
            return math.exp(chance.uniform(math.log(low), math.log(high)))

        batch_seconds = between(60, 800)
        # A stall and a clock error together must not exceed the life of an announcement: a deletion may be sent
        # `DELETES_FOR_SECONDS` after it, and stall then.
        limit = (LIFE_SECONDS - DELETES_FOR_SECONDS) / 2
        # Few versions are retained, without a grace period, so that an error shows at once.
        is_tense = chance.random() < 0.4
        return cls(
            stores=chance.choice((1, 1, 2, 2, 3)),
            batches=chance.randint(12, 36),
            retention=RetentionPolicy(
                versions=2 if is_tense else chance.randint(2, 5),
                grace_seconds=0.0 if is_tense else chance.choice((0.0, 0.0, 0.5, 3.0)) * batch_seconds,
                history_seconds=4 * LIFE_SECONDS,
                most_files=chance.choice((5, 20, 100_000)),
            ),
            snapshots=SnapshotPolicy(changelogs=1 if is_tense else chance.choice((1, 2, 4, 8))),
            batch_seconds=batch_seconds,
            request_seconds=batch_seconds * between(0.001, 0.05),
            stall_chance=between(0.001, 0.02),
            # Uploads and deletions stall more often, because races are between them.
            stall_chance_of_changes=between(0.2 if is_tense else 0.03, 0.4),
            longest_stall_seconds=limit,
            failure_chance=chance.choice((0.0, 0.002, 0.02)),
            crash_chance=chance.choice((0.0, 0.002, 0.01)),
            clock_jumps_seconds=chance.choice((0.0, 0.0, 3600.0, limit)),
            has_spark=chance.random() < (0.8 if is_tense else 0.4),
            has_damage=chance.random() < 0.4,
        )


@dataclass
class Counts:
    """Counts of events, of one seed or many."""

    what: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        self.what += other.what
        self.errors += other.errors
