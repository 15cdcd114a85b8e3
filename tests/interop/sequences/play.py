"""Plays a sequence, shrinks a failed one, and counts."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from tests.interop.sequences import checks
from tests.interop.sequences.model import Entry, Moment
from tests.interop.sequences.steps import STEPS, NotNow, Played
from tests.interop.sequences.worlds import Failure, JobWorld, NativeTwin, NativeWorld, World
from tests.support.native import CHANGELOGS, ON_DEFAULT_PROVIDER
from tests.support.native import OPERATORS as NATIVE_OPERATORS
from tests.support.s3_server import S3Server

OPERATORS = {
    "aggregation": 3,
    "windows": 3,
    "dropDuplicates": 3,
    "dropDuplicatesWithinWatermark": 3,
    "sessions": 3,
    "applyInPandasWithState": 2,
    "aggregation of all rows": 2,
    "limit": 2,
    "join 2": 2,
    "join 3": 2,
    "join 4": 2,
    "two operators": 2,
    "transformWithState": 1,
}
"""With their weights: transformWithState starts Python for each batch and store."""
JOBS, ON_S3, DEFAULT_PROVIDER, ZIPS, FILE_SINKS = 0.25, 0.03, 0.1, 0.1, 0.25
"""The shares of worlds."""


KNOWN: Mapping[str, str] = {}
"""Open defects: a regular expression for the text of a failure, and what is wrong. The sequence goes on after it if the
checkpoint was not changed."""


@dataclass(frozen=True)
class Plan:
    """A seed and the numbers of its steps that are played; None: all of them."""

    seed: int
    only: tuple[int, ...] | None = None

    @property
    def command(self) -> str:
        steps = "" if self.only is None else f" --steps {','.join(map(str, self.only))}"
        return f"python -m tests.interop.sequences --seed {self.seed}{steps}"

    def steps(self) -> list[tuple[int, str, int]]:
        """Each step with its number and the seed of its choices."""
        chance = Random(f"steps {self.seed}")
        names = [name for name in STEPS if name != "batches"]
        weights = [STEPS[name][0] for name in names]
        chosen = ["batches"]
        for _ in range(chance.randint(4, 12) - 1):
            is_batch = chosen[-1] != "batches" and chance.random() < 0.4
            chosen.append("batches" if is_batch else chance.choices(names, weights)[0])
        # The choices of a step do not depend on those that are omitted.
        seeds = [chance.randrange(10**9) for _ in chosen]
        steps = [(number, name, seeds[number]) for number, name in enumerate(chosen)]
        return [step for step in steps if self.only is None or step[0] in self.only]


@dataclass
class Result:
    """What was played. `lines`: a line for each step."""

    sequence: Plan
    label: str = ""
    lines: list[str] = field(default_factory=list)
    failure: Failure | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        head = f"seed {self.sequence.seed}: {self.label} ({self.seconds:.0f} s)"
        return "\n".join([head, *(f"  {line}" for line in self.lines)])


def known_defect(failure: Failure) -> str | None:
    """The open defect that explains the failure."""
    return next((what for pattern, what in KNOWN.items() if re.search(pattern, str(failure))), None)


class Player:
    """Plays sequences in one Spark session. The twins serve all of them."""

    def __init__(self, spark: SparkSession, folder: Path, *, server: S3Server | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._spark = spark
        self._folder = folder
        self._server = server
        self._twins: dict[str, NativeTwin] = {}

    def play(self, sequence: Plan, *, tell: bool = False) -> Result:
        result = Result(sequence)
        begun = time.monotonic()
        with self._place() as folder:
            world = self._world(sequence.seed, folder)
            result.label = world.label
            steps = sequence.steps()
            number, name = 0, ""
            try:
                for position, (number, name, seed) in enumerate(steps):
                    line = self._step(world, name, seed, [one for _, one, _ in steps[position + 1 :]])
                    result.lines.append(f"{number} {line}")
                    if tell:
                        print(result.lines[-1], flush=True)
                if world.history.batches:
                    checks.require_views(world, self.counts)
            except Failure as failure:
                result.lines.append(f"{number} {name}: FAILED {failure}")
                result.failure = failure
            except checks.SPARK_IS_GONE:
                raise
            except Exception as error:
                result.failure = Failure("exception", f"{error!r}")
                result.lines.append(f"{number} {name}: FAILED\n{traceback.format_exc()}")
        result.seconds = time.monotonic() - begun
        return result

    def _step(self, world: World, name: str, seed: int, later: Sequence[str]) -> str:
        if name != "batches" and not world.history.batches:
            return f"{name}: no batch yet"
        before = world.tree().files()
        played = Played(world, Random(seed), self.counts)
        try:
            line = STEPS[name][1](played)
        except NotNow:
            return f"{name}: not now"
        except Failure as failure:
            if known_defect(failure) is None or world.tree().files() != before:
                raise
            self.counts[f"known defect: {known_defect(failure)}"] += 1
            return f"{name}: known defect: {known_defect(failure)}"
        self.counts[f"step {name}"] += 1
        # The next batches are themselves the start of Spark.
        is_next = bool(later) and later[0] == "batches"
        is_same = world.tree().files() == before
        checks.require_sound(world, self.counts, spark=not is_same and not is_next and name != "batches")
        return line

    def shrunk(self, failed: Result) -> Result:
        """Return the shortest failure of the same kind that is found by omitting one step after another."""
        assert failed.failure is not None
        best, kind = failed, failed.failure.kind
        numbers = [number for number, _, _ in failed.sequence.steps()]
        last = next((i for i, line in enumerate(failed.lines) if "FAILED" in line), len(numbers) - 1)
        numbers = numbers[: last + 1]
        for number in reversed(numbers[:-1]):
            fewer = tuple(one for one in numbers if one != number)
            tried = self.play(Plan(failed.sequence.seed, fewer))
            if tried.failure is not None and tried.failure.kind == kind:
                best, numbers = tried, [*fewer]
        return best

    def _world(self, seed: int, folder: Path) -> World:
        chance = Random(f"world {seed}")
        structure = chance.choice([*Structure])
        partitions = chance.choice((1, 2, 2, 3))
        provider = Provider.ROCKSDB
        # Without a server, the same sequence is played on local disk.
        server = self._server if chance.random() < ON_S3 else None
        if chance.random() < JOBS:
            log = chance.choice([*LogLayout])
            structure = Structure.V2 if log is LogLayout.BATCH else structure
            entry = Entry(Moment(0, 0), 0, structure, provider, partitions)
            return JobWorld(self._spark, folder, entry, log, server=server)
        [operator] = chance.choices([*OPERATORS], [*OPERATORS.values()])
        confs = {}
        if operator in ON_DEFAULT_PROVIDER and chance.random() < DEFAULT_PROVIDER:
            provider, structure = Provider.HDFS_BACKED, Structure.V1
        elif chance.random() < ZIPS:
            confs[CHANGELOGS] = "false"
        entry = Entry(Moment(0, 0), 0, structure, provider, partitions)
        if operator not in self._twins:
            self._twins[operator] = NativeTwin(
                self._spark, operator, self._folder / f"twin-{operator.replace(' ', '-')}"
            )
        has_file_sink = NATIVE_OPERATORS[operator].mode == "append" and server is None and chance.random() < FILE_SINKS
        return NativeWorld(
            self._spark,
            folder,
            operator,
            entry,
            self._twins[operator],
            server=server,
            confs=confs,
            has_file_sink=has_file_sink,
        )

    @contextmanager
    def _place(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self._folder, prefix="sequence-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
