"""Spark starts from a mirror whose run was interrupted after one of the logs, and gets the results of its source."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.mirrors import mirrored
from tests.support.native import OPERATORS, NativeQuery, state
from tests.support.twins import AT_HEAD, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3000)]

_KEY = re.compile(r"k='([^']*)'")
LOGS = (names.OFFSETS, names.COMMITS)
NEWEST = 4
"""The newest batch of the source. There is input for one further batch."""


def interrupted(source: Storage, begun: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the path of each log that a run of the mirror writes, and a copy of the mirror as it is after this request."""
    whole = folder / "whole"
    shutil.copytree(begun, whole)
    traced = FaultyStorage(open_storage(str(whole)))
    mirrored(source, traced, folder, stopped=True)
    for request in traced.trace:
        if request.kind is Kind.CREATE and request.path.startswith(LOGS):
            half = folder / f"after {request.path}".replace("/", " ").replace(" ", "-")
            shutil.copytree(begun, half)
            faulty = FaultyStorage(open_storage(str(half)), {request.number: Fault.AFTER})
            with pytest.raises(SimulatedCrash):
                mirrored(source, faulty, folder, stopped=True)
            shutil.rmtree(half / names.LEASES)
            yield request.path, half


class Started:
    """The results of the query if it starts from other checkpoints."""

    def __init__(self, query: NativeQuery) -> None:
        self._query, self._checkpoint, self._outputs = query, query.checkpoint, dict(query.outputs)

    def at(self, checkpoint: Path) -> tuple[dict[str, str], object]:
        """Start the query from a checkpoint and let it read all input. Return the newest output of each key and the state.

        The mirror already has the later entries of the file sources: the first new batch reads them at once.
        """
        newest = catalog.newest_batch(open_storage(str(checkpoint)))
        assert newest is not None
        self._query.checkpoint = checkpoint
        self._query.outputs = {batch: rows for batch, rows in self._outputs.items() if batch <= newest}
        try:
            self._query.run(0)
            by_batch = sorted(self._query.outputs.items())
            return {_KEY.findall(row)[0]: row for _, rows in by_batch for row in rows}, state(self._query)
        finally:
            self._query.checkpoint = self._checkpoint


@pytest.mark.parametrize("structure", Structure, ids=lambda structure: structure.value)
def test_spark_starts_after_each_log_of_a_run_except_within_a_jump(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("interrupted")
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], structure.conf)
    source, begun = open_storage(query.root), folder / "begun"
    query.run(2)
    mirrored(source, open_storage(str(begun)), folder, stopped=True)
    query.run(NEWEST - 1)
    query.add_input(1)
    started = Started(query)
    other = folder / "copy-of-source"
    shutil.copytree(query.checkpoint, other)
    expected = started.at(other)
    assert len(expected[0]) > 12

    seen = []
    for path, half in interrupted(source, begun, folder):
        seen.append(path)
        if names.parse_batch(path) == NEWEST - 1:
            assert started.at(half) == expected, path
    assert seen == [path for batch in range(2, NEWEST + 1) for path in (names.offsets(batch), names.commits(batch))]

    # The source has only its newest batch: of the first run, the newest commit precedes the one that cannot be loaded.
    statekeeper("snapshot", query.root, *AT_HEAD, "--mode", "snapshots", "--scratch", str(folder))
    source.delete([names.offsets(batch) for batch in range(NEWEST - 1)])
    source.delete([names.commits(batch) for batch in range(NEWEST - 1)])
    empty, first, offsets = folder / "empty", folder / "first", [names.offsets(n) for n in (NEWEST - 1, NEWEST)]
    empty.mkdir()
    first.mkdir()
    seen = []
    for path, half in interrupted(source, empty, first):
        seen.append(path)
        if path == names.commits(NEWEST):
            assert started.at(half) == expected, path
    assert seen == [*offsets, names.commits(NEWEST), names.commits(NEWEST - 1)]

    # A mirror at batch 1 jumps to it.
    jump = folder / "jump"
    jump.mkdir()
    seen = []
    for path, half in interrupted(source, begun, jump):
        seen.append(path)
        if path == offsets[1] and structure is Structure.V1:
            continue  # Spark loads state by number and starts at this batch: it does not repeat the batches before it
        if path in offsets:
            before = sorted(entry.path for entry in open_storage(str(half)).list(names.COMMITS))
            with pytest.raises(StreamingQueryException):
                started.at(half)
            assert sorted(entry.path for entry in open_storage(str(half)).list(names.COMMITS)) == before
            mirrored(source, open_storage(str(half)), folder, stopped=True)
        if path != names.commits(NEWEST - 1):
            assert started.at(half) == expected, path
    assert seen == [*offsets, names.commits(NEWEST), names.commits(NEWEST - 1)]
