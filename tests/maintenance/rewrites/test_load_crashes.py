"""A load that dies at each of its requests, and is then finished or reversed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.loads import load, savepoint
from tests.support.rescales import abort, all_rows
from tests.support.rewrite_crashes import CrashMatrix
from tests.support.s3_server import S3Server
from tests.support.switching import WRITES, after_the_dead
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
ARCHIVES = [FIXTURES / f"spark-4.2.0-{name}.zip" for name in ("v1-aggregation", "v2-aggregation")]
ONE_OF = 6
"""A bucket is disturbed at one of this number of writes."""
FINISH = pytest.mark.parametrize("finish", [True, False], ids=["finish", "abort"])


def matrix(archive: Path, folder: Path) -> CrashMatrix:
    of = savepoint(open_storage(str(unpacked(archive, folder / "source"))), folder / "savepoint")

    def rewrite(storage: Storage, scratch: Path, *, clock: Clock | None = None) -> object:
        return load(storage, of, scratch, clock=clock)

    return CrashMatrix(archive, rewrite, folder, guarded="-v1-" in archive.name)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
@FINISH
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_load_that_dies_at_any_request_is_finished_or_reversed(archive: Path, finish: bool, tmp_path: Path) -> None:
    cases = matrix(archive, tmp_path)
    for request, fault in cases.cases:
        cases.play(request, fault, finish=finish)


@pytest.mark.parametrize(("archive", "finish"), [(ARCHIVES[0], True), (ARCHIVES[1], False)], ids=["v1", "v2"])
def test_a_load_that_dies_at_a_write_is_finished_or_reversed(archive: Path, finish: bool, tmp_path: Path) -> None:
    cases = matrix(archive, tmp_path)
    for request, fault in cases.slice_for_ci[::8]:
        cases.play(request, fault, finish=finish)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
@FINISH
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_load_in_a_bucket_that_dies_at_a_sampled_write_is_finished_or_reversed(
    archive: Path, finish: bool, s3_server: S3Server, tmp_path: Path
) -> None:
    def uploaded(folder: Path) -> Storage:
        bucket = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
        local = open_storage(str(folder))
        for entry in local.list(""):
            bucket.create(entry.path, local.read(entry.path))
        return bucket

    def rows(storage: Storage, folder: Path) -> object:
        local = open_storage(str(folder))
        for entry in storage.list(""):
            local.create(entry.path, storage.read(entry.path))
        return all_rows(folder)

    source, target = (unpacked(archive, tmp_path / name) for name in ("source", "target"))
    savepoint(open_storage(str(source)), tmp_path / "savepoint")
    of, scratch, expected = uploaded(tmp_path / "savepoint"), tmp_path / "scratch", all_rows(source)
    rehearsal = FaultyStorage(uploaded(target))
    load(rehearsal, of, scratch)
    writes = [case for case in crash_matrix(rehearsal.trace) if case[0].kind in WRITES]
    for number, (request, fault) in enumerate(writes[::ONE_OF]):
        storage = uploaded(target)
        with suppress(SimulatedCrash, StatekeeperError):
            load(FaultyStorage(storage, {request.number: fault}), of, scratch)
        if rewrite_journal.open_journal(storage) is not None:
            if finish:
                load(storage, of, scratch, clock=after_the_dead())
            else:
                abort(storage, clock=after_the_dead())
        assert rewrite_journal.open_journal(storage) is None, (request, fault)
        assert rows(storage, tmp_path / f"case {number}") == expected, (request, fault)
        assert audit.judge(audit.gather(storage)).findings == (), (request, fault)
    assert len(writes[::ONE_OF]) >= 5
