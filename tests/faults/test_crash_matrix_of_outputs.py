"""Drivers of a job with several outputs that die or sleep at any step: all sinks and the state hold one attempt.

The sinks are in memory and survive a driver: two get rows, one gets files, one drops its output. The root is real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from statekeeper.pipelines.batch.interrupted_attempt import complete
from statekeeper.pipelines.batch.outputs import Computed, Outputs
from statekeeper.pipelines.sinks.data_files import DataFile
from statekeeper.pipelines.sinks.sink import Attempt, NoSink, Sink
from statekeeper.pipelines.task.task_outputs import TaskOutputs
from statekeeper.statestore.base.errors import BatchConflict, SinkConflict, WrongResult
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.root.state_root import Done, Pending
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from tests.support.faulty_storage import SimulatedCrash
from tests.support.roots import IDS, QUERY, fresh_ids, opened, outer

COLUMNS = {name: pa.schema([(name, pa.int64())]) for name in ("alerts", "dropped", "facts", "files")}
Rows = list[str]
Step = Callable[[], None]


class RowsSink:
    """An exactly-once sink in memory: batch -> attempt and rows."""

    supports_exactly_once: ClassVar[bool] = True

    def __init__(self, table: dict[int, tuple[str, Rows]], step: Step) -> None:
        self.table = table
        self.step = step

    def held(self, query_id: str, batch: int) -> str | None:
        self.step()
        return self.table[batch][0] if batch in self.table else None

    def write(self, rows: Any, attempt: Attempt) -> None:
        self.step()
        self.table.setdefault(attempt.batch, (attempt.attempt, list(rows)))
        self.step()


class InFiles:
    def missing(self, files: list[DataFile]) -> list[str]:
        return []


class FilesSink(RowsSink):
    """The same with files that tasks have written to `disk`."""

    takes_files = True

    def __init__(self, table: dict[int, tuple[str, Rows]], step: Step, disk: Mapping[str, Rows]) -> None:
        super().__init__(table, step)
        self.disk = disk

    def plan_files(self, output: pa.Schema) -> Any:
        return InFiles()

    def commit_files(self, plan: Any, files: list[DataFile], attempt: Attempt) -> None:
        self.write([row for file in files for row in self.disk[file.path]], attempt)


@dataclass(frozen=True)
class ComputedRows(Computed):
    """Outputs that a driver without Spark has computed."""

    of_output: Mapping[str, Rows] = field(default_factory=dict)
    of_files: Mapping[str, list[DataFile]] = field(default_factory=dict)
    digested: frozenset[str] = frozenset()

    def files(self, name: str) -> list[DataFile]:
        return self.of_files.get(name, [])

    def rows_of(self, name: str) -> Any:
        return self.of_output[name]

    def digest(self, name: str) -> str | None:
        digest = RowsDigest()
        digest.add((b"", row.encode()) for row in self.of_output[name])
        return str(digest) if name in self.digested else None


class World:
    """What survives a driver, and what each attempt has computed."""

    def __init__(self, folder: Path, *, deterministic: bool) -> None:
        self.storage: Storage = open_storage(str(folder))
        self.tables: dict[str, dict[int, tuple[str, Rows]]] = {name: {} for name in ("alerts", "facts", "files")}
        self.disk: dict[str, Rows] = {}
        self.attempts: dict[str, tuple[dict[int, tuple[str, ...]], Mapping[str, Rows]]] = {}
        self._deterministic = deterministic

    def sinks(self, step: Step) -> dict[str, Sink]:
        rows = {name: RowsSink(self.tables[name], step) for name in ("alerts", "facts")}
        return {**rows, "files": FilesSink(self.tables["files"], step, self.disk), "dropped": NoSink()}

    def compute(self, places: TaskOutputs) -> ComputedRows:
        stamp = "always" if self._deterministic else IDS.fresh()
        rows = {name: [f"{name} {number} {stamp}" for number in range(2)] for name in COLUMNS}
        path = f"part-00000-{IDS.fresh()}.snappy.parquet"
        self.disk[path] = rows["files"]
        file = DataFile(path=path, size_bytes=1, modified_at_milliseconds=1, partition_values={}, statistics="{}")
        in_files = {"files": [file]} if "files" in places.files else {}
        return ComputedRows((), places.files, None, rows, in_files, places.digested)

    def run(self, step: Step = lambda: None) -> None:
        """Run the batch in one driver, as `BatchDriver` does. `step` is called at each step."""
        root = opened(self.storage)
        if isinstance(root.begin(0, outer(0)), Done):
            return
        outputs = Outputs(COLUMNS, self.sinks(step))
        attempt = Attempt(QUERY, root.binding.root_id, 0, IDS.fresh())
        held = outputs.look(QUERY, 0, dict)
        if held.attempt is None:
            computed = self.compute(outputs.plan())
            pending = Pending(
                batch=0,
                attempt=attempt.attempt,
                root_id=attempt.root_id,
                query_id=QUERY,
                sources=outer(0).sources,
                schema=root.schema(),
                ids=fresh_ids(root),
            )
            pending = outputs.recorded(pending, computed)
            self.attempts[attempt.attempt] = dict(pending.ids), computed.of_output
            root.write_pending(pending)
            step()
            written = outputs.write(computed, attempt)
            held = outputs.held(QUERY, 0) if written != attempt.attempt else replace(held, attempt=written, missing=())
        chosen = replace(attempt, attempt=str(held.attempt))
        pending, _ = complete(outputs, root, chosen, outer(0).sources, held.missing, self.compute)
        step()
        root.commit(0, pending.ids)
        step()

    def assert_one_attempt(self) -> None:
        """All sinks that hold the batch hold one attempt, with its rows. A committed batch is in all sinks."""
        held = {name: table[0] for name, table in self.tables.items() if 0 in table}
        assert len({attempt for attempt, _ in held.values()}) <= 1, held
        for name, (attempt, rows) in held.items():
            assert rows == self.attempts[attempt][1][name]
        path = names.commits(0)
        if self.storage.list(names.COMMITS):
            log = logs.parse_commit(self.storage.read(path), path)
            assert set(held) == set(self.tables)
            [(attempt, _), *_] = held.values()
            assert log.ids is not None
            assert {op: tuple(i for (i, *_) in ids) for op, ids in log.ids.items()} == self.attempts[attempt][0]

    @property
    def is_committed(self) -> bool:
        return bool(self.storage.list(names.COMMITS))


class At:
    """Does something at one step of a driver."""

    def __init__(self, number: int, act: Step) -> None:
        self.steps = 0
        self._number = number
        self._act = act

    def __call__(self) -> None:
        self.steps += 1
        if self.steps - 1 == self._number:
            self._act()


def crash() -> None:
    raise SimulatedCrash


def run(world: World, step: Step) -> None:
    # A second driver may commit first, or stop because it cannot complete the attempt of the first one.
    with suppress(SimulatedCrash, SinkConflict, BatchConflict):
        world.run(step)


def steps_of_a_batch(folder: Path) -> int:
    counter = At(-1, crash)
    World(folder, deterministic=True).run(counter)
    return counter.steps


def die_after_the_first_sink(world: World, folder: Path) -> None:
    for first in range(steps_of_a_batch(folder / "rehearsal")):
        if not world.tables["alerts"]:
            run(world, At(first, crash))


BOTH_KINDS = pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "not deterministic"])
SECOND_DEATHS = pytest.mark.parametrize("stride", [12, pytest.param(1, marks=pytest.mark.slow)])


@BOTH_KINDS
@SECOND_DEATHS
def test_drivers_that_die_at_any_step_leave_one_attempt_in_all_sinks(
    tmp_path: Path, deterministic: bool, stride: int
) -> None:
    steps, completed = steps_of_a_batch(tmp_path / "rehearsal"), 0
    assert steps >= 14
    for first in range(steps):
        for second in range(steps - 1, -1, -stride):
            world = World(tmp_path / f"{first} {second}", deterministic=deterministic)
            run(world, At(first, crash))
            world.assert_one_attempt()
            run(world, At(second, crash))
            world.assert_one_attempt()
            run(world, At(-1, crash))
            world.assert_one_attempt()
            assert world.is_committed or not deterministic
            completed += world.is_committed
    assert completed > steps, "also without determinism most crashes leave nothing to compute again"


@BOTH_KINDS
@SECOND_DEATHS
def test_a_driver_that_sleeps_at_any_step_while_others_run_does_no_harm(
    tmp_path: Path, deterministic: bool, stride: int
) -> None:
    steps = steps_of_a_batch(tmp_path / "rehearsal")
    for first in range(steps):
        for second in range(-1, steps, stride):
            world = World(tmp_path / f"{first} {second}", deterministic=deterministic)
            other = At(second, crash)
            run(world, At(first, lambda world=world, other=other: run(world, other)))  # type: ignore[misc]
            world.assert_one_attempt()
            run(world, At(-1, crash))
            world.assert_one_attempt()
            assert world.is_committed or not deterministic


@pytest.mark.parametrize("in_files", ["alerts", "facts"])
def test_with_one_sink_for_rows_no_crash_needs_a_deterministic_function(
    tmp_path: Path, in_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other outputs are in files, which the record names."""

    def sinks(world: World, step: Step) -> dict[str, Sink]:
        others = {name: FilesSink(world.tables[name], step, world.disk) for name in (in_files, "files")}
        [rows] = {"alerts", "facts"} - {in_files}
        return {**others, rows: RowsSink(world.tables[rows], step), "dropped": NoSink()}

    def compute(world: World, places: TaskOutputs) -> Any:
        computed = computes(world, places)
        paths = {name: f"part-00000-{IDS.fresh()}.snappy.parquet" for name in places.files if name != "dropped"}
        world.disk.update({path: list(computed.of_output[name]) for name, path in paths.items()})
        [file] = computed.of_files["files"]
        return replace(computed, of_files={name: [replace(file, path=path)] for name, path in paths.items()})

    computes = World.compute
    monkeypatch.setattr(World, "sinks", sinks)
    monkeypatch.setattr(World, "compute", compute)
    for first in range(steps_of_a_batch(tmp_path / "rehearsal")):
        world = World(tmp_path / str(first), deterministic=False)
        run(world, At(first, crash))
        world.run()
        world.assert_one_attempt()
        assert world.is_committed


def test_rows_that_differ_when_computed_again_are_not_written_and_the_user_can_give_them_up(tmp_path: Path) -> None:
    world = World(tmp_path / "root", deterministic=False)
    die_after_the_first_sink(world, tmp_path)
    assert not world.tables["facts"]
    with pytest.raises(
        SinkConflict, match=r"'facts' of batch 0 was computed again, and its rows are not those .* NoSink"
    ):
        world.run()
    assert not world.tables["facts"]
    before = world.sinks
    world.sinks = lambda step: {**before(step), "facts": NoSink()}  # type: ignore[method-assign]
    world.run()
    assert world.is_committed
    assert not world.tables["facts"]
    assert world.tables["files"][0][0] == world.tables["alerts"][0][0]


def test_a_job_with_other_outputs_does_not_complete_an_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "root", deterministic=True)
    die_after_the_first_sink(world, tmp_path)
    fewer = {name: columns for name, columns in COLUMNS.items() if name != "facts"}
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.COLUMNS", fewer)
        with pytest.raises(SinkConflict, match=r"the job has the outputs .* -> start the job with its former outputs"):
            world.run()
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.COLUMNS", {**COLUMNS, "facts": pa.schema([("other", pa.int64())])})
        with pytest.raises(SinkConflict, match="has other columns in output 'facts'"):
            world.run()
    world.run()
    world.assert_one_attempt()
    assert world.is_committed


def test_all_checks_come_before_the_first_write(tmp_path: Path) -> None:
    """Also when an interrupted batch is completed. A failed check leaves all tables as they are."""
    events: list[str] = []

    class CheckingSink(RowsSink):
        def check_rows(self, rows: Any, batch: int) -> None:
            events.append("check")
            if "refuse" in events:
                raise WrongResult("two rows of one key")

        def write(self, rows: Any, attempt: Attempt) -> None:
            events.append("write")
            super().write(rows, attempt)

    class CheckingFiles(FilesSink):
        def plan_files(self, output: pa.Schema) -> Any:
            return self

        def missing(self, files: list[DataFile]) -> list[str]:
            events.append("check")
            return []

        def write(self, rows: Any, attempt: Attempt) -> None:
            events.append("write")
            super().write(rows, attempt)

    def checked(world: World) -> World:
        def sinks(step: Step) -> dict[str, Sink]:
            rows = {name: CheckingSink(world.tables[name], step) for name in ("alerts", "facts")}
            files = CheckingFiles(world.tables["files"], step, world.disk)
            return {**rows, "files": files, "dropped": NoSink()}

        world.sinks = sinks  # type: ignore[method-assign]
        return world

    checked(World(tmp_path / "whole", deterministic=True)).run()
    assert events == ["check", "check", "write", "write", "write"]
    world = World(tmp_path / "interrupted", deterministic=True)
    die_after_the_first_sink(world, tmp_path)
    events[:] = ["refuse"]
    with pytest.raises(WrongResult):
        checked(world).run()
    assert events == ["refuse", "check", "check"]
    assert [name for name, table in world.tables.items() if table] == ["alerts"]
    events.clear()
    world.run()
    assert events == ["check", "check", "write", "write"]
    world.assert_one_attempt()
    assert world.is_committed
