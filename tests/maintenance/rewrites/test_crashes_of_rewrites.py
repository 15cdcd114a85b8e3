"""Each verb that rewrites state dies at its requests. Then the checkpoint has the old or the new state, or no query starts
on it. The rewrite can be finished or reversed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import HalfSwitched, StatekeeperError
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import evolved_roots, loads
from tests.support.checkpoints import copy_files
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.rescales import abort, all_rows, rescale
from tests.support.rewrite_crashes import FIXTURES, VERBS, each_kind_of_write
from tests.support.s3_server import S3Server
from tests.support.switching import WRITES, after_the_dead
from tests.support.twins import clean
from tests.support.unpacked import unpacked

FEWEST_KINDS, FEWEST_CASES = 8, 100
OF_UNDO = 30
SHARE_IN_A_BUCKET = 6


@pytest.mark.parametrize("verb", VERBS)
def test_after_a_failed_write_of_each_kind_a_rewrite_is_finished_or_reversed(
    verb: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    crashing = VERBS[verb](tmp_path)
    cases = each_kind_of_write(crashing.cases, turn=list(VERBS).index(verb))
    for number, case in enumerate(cases):
        crashing.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(cases))
    print(f"{len(cases)} cases of {len(crashing.cases)}")
    assert len(cases) >= FEWEST_KINDS


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("finish", [True, False], ids=["finish", "abort"])
@pytest.mark.parametrize("verb", VERBS)
def test_after_any_failed_request_a_rewrite_is_finished_or_reversed(
    verb: str, finish: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    crashing = VERBS[verb](tmp_path)
    for case in crashing.cases:
        crashing.play(*case, finish=finish)
    record_property("crash_matrix_cases", len(crashing.cases))
    print(f"{len(crashing.cases)} cases")
    assert len(crashing.cases) >= (OF_UNDO if crashing.of_undo else FEWEST_CASES)


# -- aborts that die ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["commits/", "ended"])
def test_an_abort_that_dies_leaves_no_new_snapshot_that_a_query_could_load(part: str, tmp_path: Path) -> None:
    """In structure V1, Spark loads snapshots by their number, unless a guard is beside them."""
    archive = FIXTURES / "spark-4.2.0-v1-aggregation.zip"

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.BEFORE if request.kind in WRITES and part in request.path else None

    base = open_storage(str(unpacked(archive, tmp_path / "half done")))
    batch = catalog.newest_batch(base)
    assert batch is not None
    with pytest.raises(SimulatedCrash):
        rescale(Dying(base), 3, tmp_path)

    def half_done(name: str) -> Storage:
        return copy_files(base, open_storage(str(tmp_path / name)))

    rehearsal = FaultyStorage(half_done("rehearsal"))
    abort(rehearsal, clock=after_the_dead())
    writes = [request for request in rehearsal.trace if request.kind in WRITES]
    for request in writes:
        storage = half_done(f"case-{request.number}")
        with suppress(SimulatedCrash, StatekeeperError):
            abort(FaultyStorage(storage, {request.number: Fault.BEFORE}), clock=after_the_dead())
        published = {
            store for store, of in catalog.files(storage).items() if names.VersionId(batch + 2) in of.snapshots
        }
        guarded = {store for store, of in catalog.files(storage).items() if any(one.id for one in of.snapshots)}
        is_new = storage.stat(names.commits(batch + 1)) is not None
        assert is_new or published <= guarded, request
        abort(storage, clock=after_the_dead())
        assert audit.judge(audit.gather(storage)).findings == (), request
    print(f"{len(writes)} cases")
    assert len(writes) >= 8


# -- buckets -----------------------------------------------------------------------------------------------------------


class DiesAtCommit(FaultyStorage):
    """Dies when the newest commit is rewritten."""

    def _fault_of(self, request: Request) -> Fault | None:
        return Fault.AFTER if request.path == names.commits(0) and request.kind in WRITES else None


@pytest.mark.parametrize(
    "finish", [pytest.param(True, id="finish"), pytest.param(False, id="abort", marks=pytest.mark.slow)]
)
def test_a_schema_evolution_in_a_bucket_that_dies_after_its_commit_is_finished_or_reversed(
    finish: bool, s3_server: S3Server, tmp_path: Path
) -> None:
    rows, plain = evolved_roots.old_rows(*[f"key {n}" for n in range(6)]), evolved_roots.plain_rows("a")
    wanted = evolved_roots.new_rows(rows) if finish else rows
    storage = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
    evolved_roots.commit(storage, tmp_path / "host", 0, rows, plain)
    with pytest.raises(SimulatedCrash):
        evolved_roots.evolve(DiesAtCommit(storage), evolved_roots.goal(), tmp_path)
    with pytest.raises(HalfSwitched):
        evolved_roots.rows_of(storage, 0, tmp_path)
    if finish:
        evolved_roots.evolve(storage, evolved_roots.goal(), tmp_path, clock=after_the_dead())
    else:
        abort(storage, clock=after_the_dead())
    assert evolved_roots.rows_of(storage, 0, tmp_path) == evolved_roots.by_key(wanted)
    evolved_roots.commit(storage, tmp_path / "host", 1, wanted, plain)
    clean(storage, tmp_path)


@pytest.mark.parametrize("archive", ["v1-aggregation", "v2-aggregation"])
@pytest.mark.parametrize("finish", [True, False], ids=["finish", "abort"])
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_load_in_a_bucket_that_dies_at_a_sampled_write_is_finished_or_reversed(
    archive: str, finish: bool, s3_server: S3Server, tmp_path: Path
) -> None:
    def uploaded(folder: Path) -> Storage:
        bucket = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
        return copy_files(open_storage(str(folder)), bucket)

    source, target = (
        unpacked(FIXTURES / f"spark-4.2.0-{archive}.zip", tmp_path / name) for name in ("source", "target")
    )
    loads.savepoint(open_storage(str(source)), tmp_path / "savepoint")
    of, scratch, expected = uploaded(tmp_path / "savepoint"), tmp_path / "scratch", all_rows(source)
    rehearsal = FaultyStorage(uploaded(target))
    loads.load(rehearsal, of, scratch)
    writes = [case for case in crash_matrix(rehearsal.trace) if case[0].kind in WRITES][::SHARE_IN_A_BUCKET]
    for number, (request, fault) in enumerate(writes):
        storage = uploaded(target)
        with suppress(SimulatedCrash, StatekeeperError):
            loads.load(FaultyStorage(storage, {request.number: fault}), of, scratch)
        if rewrite_journal.open_journal(storage) is not None:
            if finish:
                loads.load(storage, of, scratch, clock=after_the_dead())
            else:
                abort(storage, clock=after_the_dead())
        assert rewrite_journal.open_journal(storage) is None, (request, fault)
        copy_files(storage, open_storage(str(tmp_path / f"case-{number}")))
        assert all_rows(tmp_path / f"case-{number}") == expected, (request, fault)
        assert audit.judge(audit.gather(storage)).findings == (), (request, fault)
    assert len(writes) >= 5
