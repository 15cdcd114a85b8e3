"""A data file whose number of rows the log does not have keeps its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format.delta_log import DataFile, DeltaTable
from statekeeper.statestore.maintenance.copies.state_tables import files
from statekeeper.statestore.maintenance.copies.state_tables.execute import compactable
from statekeeper.statestore.maintenance.copies.state_tables.files import FilesWriter
from statekeeper.statestore.storage import open_storage

SCHEMA = pa.schema([("name", pa.string())])


def test_the_rows_of_a_file_without_statistics_but_with_deletion_vectors_are_read(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "table"))
    writer = FilesWriter(storage, SCHEMA, [], tmp_path, clock=SystemClock(), ids=RandomIds())
    rows = pa.RecordBatch.from_pylist([{"name": name} for name in "abcd"], schema=SCHEMA)
    writer.add(files.with_identities(rows, np.zeros((4, 2), np.uint64), np.zeros(4, np.uint64)))
    [file] = writer.finish()
    [marked] = files.with_vectors(storage, [(replace(file, rows=-1), np.array([1], np.int64))], RandomIds())
    read = files.live_rows(storage, marked, SCHEMA, np.array([3], np.int64))
    assert [row["name"] for some in read for row in some.to_pylist()] == ["a", "c"]


def test_files_without_statistics_are_not_compacted() -> None:
    one = DataFile(path="", size_bytes=100, rows=-1, modified_ms=1)
    table = DeltaTable(files={str(number): replace(one, path=str(number)) for number in range(20)})
    assert compactable(table) == []
