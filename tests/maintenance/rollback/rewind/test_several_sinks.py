"""The plan of a rewind of a job with several outputs names the version of each table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.root import attempts
from statekeeper.statestore.root.attempts import OutputRecord, SinkPosition
from statekeeper.statestore.storage import open_storage
from tests.support.commands import statekeeper
from tests.support.keyed_roots import KeyedRoot


@pytest.mark.parametrize("in_batch_logs", [False, True], ids=["files", "batch logs"])
def test_the_plan_names_the_version_of_each_table(tmp_path: Path, in_batch_logs: bool) -> None:
    job = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=2, key_groups=16)
    job.in_batch_logs = in_batch_logs
    job.grow(2)
    root = job.batch({}, {})
    [(_, body)] = attempts.records_at(job.storage, 2)
    record = root.pending(2, body["attempt"])
    assert record is not None
    positions = {"facts": SinkPosition("table-of-facts", 7), "alerts": SinkPosition("table-of-alerts", 9)}
    outputs = {name: OutputRecord(columns="[]", sink=position) for name, position in positions.items()}
    outputs["dropped"] = OutputRecord(columns="[]")
    root.write_pending(replace(record, attempt=RandomIds().fresh(), outputs=outputs), {} if in_batch_logs else None)
    said = " ".join(statekeeper("rewind", tmp_path / "root", "--to-batch", 1).output.split())
    for table, version in (("table-of-facts", 7), ("table-of-alerts", 9)):
        assert f"the Delta table with id {table} was at version {version} after batch 1" in said
