"""Spark's file sink and its readers continue after a rewind with --file-sink; without it, the audit names the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format.file_sink import INTERVAL_CONF, LOG
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.file_queries import FileQuery, file_query
from tests.support.native import state
from tests.support.repairs import contents
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark

BATCHES, TARGET = 7, 3
INTERVAL = {INTERVAL_CONF: "3"}
"""The log of the sink has a compaction before the target, and one after it."""


class Twin:
    """The output and the state of a query that was never rewound, after BATCHES batches and after one more."""

    def __init__(self, query: FileQuery) -> None:
        query.run(BATCHES)
        self.rows, self.state = query.rows(), state(query)
        query.run(1)
        self.more_rows, self.more_state = query.rows(), state(query)


@pytest.fixture(scope="module")
def twin(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return Twin(file_query(spark, tmp_path_factory.mktemp("twin"), Structure.V2, INTERVAL))


def _rewind(query: FileQuery, *options: str, exit_code: int = 0) -> str:
    to = ("--to-batch", str(TARGET), "--apply", "--confirm-stopped", "--scratch", str(query.folder / "scratch"))
    return statekeeper("rewind", query.root, *to, *options, exit_code=exit_code)


def _log(query: FileQuery) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (query.output / LOG).iterdir() if not path.name.startswith(".")}


def _continues(query: FileQuery, twin: Twin) -> None:
    query.run(0)
    assert (query.rows(), state(query)) == (twin.rows, twin.state)
    query.run(1)
    assert (query.rows(), state(query)) == (twin.more_rows, twin.more_state)
    clean(open_storage(query.root), query.folder)


@pytest.mark.parametrize("structure", [Structure.V1], ids=lambda one: one.value)
def test_rows_and_state_equal_those_of_a_twin_after_a_rewind_with_the_sink_and_after_its_undo(
    spark: SparkSession, tmp_path: Path, twin: Twin, structure: Structure
) -> None:
    query = file_query(spark, tmp_path, structure, INTERVAL)
    query.run(BATCHES)
    log, checkpoint = _log(query), contents(open_storage(query.root))
    shown = _rewind(query, "--file-sink", str(query.output))
    run = shown.partition("--undo ")[2].split()[0]
    assert set(_log(query)) == {"0", "1", "2.compact", "3"}
    statekeeper("rewind", query.root, "--undo", run, "--confirm-stopped")
    assert (_log(query), contents(open_storage(query.root))) == (log, checkpoint)
    query.run(0)
    assert query.rows() == twin.rows
    _rewind(query, "--file-sink", str(query.output))
    _continues(query, twin)


@pytest.mark.parametrize("structure", [Structure.V2], ids=lambda one: one.value)
def test_the_audit_names_the_command_that_leads_out_after_a_rewind_without_the_sink(
    spark: SparkSession, tmp_path: Path, twin: Twin, structure: Structure
) -> None:
    query = file_query(spark, tmp_path, structure, INTERVAL)
    query.run(BATCHES)
    assert "add --file-sink URL" in _rewind(query)
    if structure is Structure.V1:
        query.run(0)  # Spark skips and commits the batches
        query.add_input(1)
        query.batches -= 1
    with pytest.raises(StreamingQueryException, match=r"CANNOT_LOAD_STATE_STORE|CheckpointInfo length: 0"):
        query.run(0)
    found = json.loads(statekeeper("audit", query.root, "--output", "json", exit_code=3))["findings"]
    assert {one["code"] for one in found} == {"batches_skipped"}
    assert f"--to-batch {TARGET} --file-sink URL" in found[0]["action"]
    if structure is Structure.V1:
        assert "--file-sink URL" in _rewind(query, exit_code=RefusedAsUnsafe.exit_code)
        for path in query.folder.glob(f"*/{BATCHES:05}.parquet"):
            path.unlink()
    _rewind(query, "--file-sink", str(query.output))
    assert "clean" in statekeeper("audit", query.root)
    _continues(query, twin)
