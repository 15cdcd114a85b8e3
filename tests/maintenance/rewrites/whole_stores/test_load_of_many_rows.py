"""A load needs a bounded amount of memory, whatever the number of rows; so do the tasks of a rewrite elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.maintenance.copies.savepoints.write import digest_of, digest_sum
from statekeeper.statestore.maintenance.rewrites.whole_stores.snapshots import TABLE_BYTES
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from tests.support.loads import load, savepoint
from tests.support.unpacked import unpacked

ARCHIVE = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
ROWS, PIECE = 10_000_000, 100_000
_MOST_BYTES = 400 * 1024**2
# The peak of `getrusage` would include that of the test's own process, from before the new program is started.
_RUN = """
import atexit, pathlib, runpy, sys
atexit.register(lambda: print(pathlib.Path("/proc/self/status").read_text(), file=sys.stderr))
runpy.run_module("statekeeper", run_name="__main__")
"""

_RUN_ELSEWHERE = """
import pathlib, sys
from statekeeper.statestore.storage import open_storage
from tests.support.apart import elsewhere
from tests.support.rescales import rescale
storage, scratch = open_storage(sys.argv[1]), pathlib.Path(sys.argv[2])
for partitions in (7, 200, 3):
    rescale(storage, partitions, scratch, cluster=elsewhere(workers=1))
    print(pathlib.Path("/proc/self/status").read_text())
"""


def write_rows(of: Path, count: int) -> None:
    """Replace the rows of a savepoint of the aggregation by this number of generated rows."""
    body = json.loads((of / "savepoint.json").read_text())
    [table] = body["tables"]
    paths = [of / part["files"][0]["path"] for part in table["partitions"]]
    schema = pq.read_schema(paths[0])
    writers = [pq.ParquetWriter(path, schema, compression="zstd") for path in paths]
    digests, rows = [0] * len(paths), [0] * len(paths)
    for begin in range(0, count, PIECE):
        numbers = np.arange(begin, begin + PIECE)
        keys = pa.array([f"key {n}" for n in numbers.tolist()])
        places = partitions_of(row_hashes(pa.table({"k": keys})), len(paths))
        for place, writer in enumerate(writers):
            mine = np.flatnonzero(places == place)
            columns = {name: pa.nulls(len(mine), schema.field(name).type) for name in schema.names}
            columns |= {name: pa.array(numbers[mine]) for name in schema.names if name.startswith("value_")}
            columns["key_k"] = keys.take(pa.array(mine))
            columns["partition"] = pa.array(np.full(len(mine), place, np.int32))
            batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
            writer.write_batch(batch)
            digests[place] = digest_sum((digests[place], digest_of(batch)))
            rows[place] += len(mine)
    for place, (writer, part) in enumerate(zip(writers, table["partitions"], strict=True)):
        writer.close()
        size = paths[place].stat().st_size
        part.update(rows=rows[place], digest=f"{digests[place]:032x}", state_bytes=80 * rows[place])
        part["files"] = [{**part["files"][0], "rows": rows[place], "bytes": size}]
    total = f"{digest_sum(digests):032x}"
    table.update(rows=count, digest=total)
    body.update(rows=count, digest=total)
    (of / "savepoint.json").write_text(json.dumps(body))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_million_rows_are_loaded_in_bounded_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = unpacked(ARCHIVE, tmp_path / "source")
    savepoint(open_storage(str(source)), tmp_path / "savepoint")
    write_rows(tmp_path / "savepoint", ROWS)
    target = unpacked(ARCHIVE, tmp_path / "target")
    options = ["--replace-state", "--apply", "--confirm-stopped", "--for-spark", "4.2", "--workers", "2"]
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _RUN, "load", str(tmp_path / "savepoint"), str(target), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr
    assert f"loaded {ROWS:,} rows" in done.stdout
    [peak] = peaks(done.stderr)
    with capsys.disabled():
        print(f"\n{ROWS:,} rows in {seconds:,.1f} s: {ROWS / seconds:,.0f} rows/s, peak {peak / 2**20:,.0f} MiB")
    assert peak < _MOST_BYTES
    newest = max(catalog.files(open_storage(str(target))).of(StorePath(0, 0)).snapshots)
    tables = read_snapshot((target / StorePath(0, 0).snapshot(newest)).read_bytes(), "").metadata.tables
    assert max(table.size_bytes for table in tables) < TABLE_BYTES
    assert len(tables) > 1


def peaks(shown: str) -> list[int]:
    return [1024 * int(one.split()[0]) for one in shown.split("VmHWM:")[1:]]


@pytest.mark.slow
def test_a_task_elsewhere_has_bounded_memory_whatever_the_number_of_sources_and_targets(tmp_path: Path) -> None:
    source, rows = unpacked(ARCHIVE, tmp_path / "source"), 1_000_000
    of = savepoint(open_storage(str(source)), tmp_path / "savepoint")
    write_rows(tmp_path / "savepoint", rows)
    target = unpacked(ARCHIVE, tmp_path / "target")
    load(open_storage(str(target)), of, tmp_path)
    command = [sys.executable, "-c", _RUN_ELSEWHERE, str(target), str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert max(peaks(shown)) < _MOST_BYTES
    newest = rewrite_journal.newest_journal(open_storage(str(target)))
    assert newest is not None
    assert sum(RowsDigest.parse(one.digest).rows for one in newest.made.values()) == rows
