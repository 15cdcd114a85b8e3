"""Runs of a mirror that stop while they jump over batches, and the order of their writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import ObjectMissing
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones import CopyFile
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support import verbs
from tests.support.audits import audited
from tests.support.clones import FEW_KINDS, FULL, Roots, made, own
from tests.support.crashes import put_again
from tests.support.crashes.copies import require_right_clone
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.maintainers import MAINTAINER
from tests.support.mirrors import mirrored, require_right
from tests.support.rewinds import rewound

_LOGS = (names.OFFSETS, names.COMMITS)


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_a_mirror_that_jumps_over_deleted_batches_can_be_cloned_after_each_log(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    """And rewound, so that Spark starts from the mirror itself."""
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    mirrored(source, destination, tmp_path, stopped=True)
    query.grow(6)
    query.snapshot()
    query.grow(2)
    query.gc()
    assert source.stat(names.commits(8)) is None
    begun = {entry.path: destination.read(entry.path) for entry in destination.list("")}
    traced = FaultyStorage(destination)
    mirrored(source, traced, tmp_path, stopped=True)
    logs = [one for one in traced.trace if one.kind is Kind.CREATE and one.path.startswith(_LOGS)]
    first = next(one for one in logs if one.path.startswith(names.COMMITS))
    batch = names.parse_batch(first.path)
    assert batch is not None
    assert destination.stat(names.offsets(batch - 1)) is not None
    for request in logs:
        put_again(destination, begun)
        with pytest.raises(SimulatedCrash):
            mirrored(source, FaultyStorage(destination, {request.number: Fault.AFTER}), tmp_path, stopped=True)
        _release(source)
        _release(destination)
        newest = catalog.newest_batch(destination)
        assert newest is not None
        require_right_clone(destination, open_storage(str(tmp_path / f"clone {request.number}")), query, newest)
        if request.number < first.number:
            assert newest == 7
            rewound(destination, newest, tmp_path, keep_query_id=True)
            assert catalog.newest_begun(destination) == newest
            assert audited(destination).findings == ()
        else:
            assert destination.stat(names.offsets(newest - 1)) is not None
        mirrored(source, destination, tmp_path, stopped=True)
        assert require_right(query, destination, tmp_path / f"whole {request.number}") == 15


def test_a_jump_to_the_only_batch_of_the_source_copies_the_offsets_before_it(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    mirrored(source, destination, tmp_path)
    query.grow(3)
    query.snapshot()
    source.delete([names.commits(batch) for batch in range(10)])
    source.delete([names.offsets(batch) for batch in range(9)])
    mirrored(source, destination, tmp_path)
    assert [entry.path for entry in destination.list(names.OFFSETS)] == [names.offsets(10), names.offsets(9)]
    assert require_right(query, destination, tmp_path / "of mirror") == 10


def test_an_offset_that_the_source_deletes_during_a_run_leaves_the_logs_of_the_mirror_unchanged(
    disks: Roots, tmp_path: Path
) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    query.grow(3)
    logs = destination.list(names.OFFSETS), destination.list(names.COMMITS)
    prepared = verbs.mirror.plan(source, destination, FULL, MAINTAINER)

    def delete(_: CopyFile) -> None:
        source.delete([names.commits(10)])

    with pytest.raises(ObjectMissing):
        verbs.mirror.execute(source, destination, prepared, MAINTAINER, scratch=tmp_path, copied=delete)
    assert (destination.list(names.OFFSETS), destination.list(names.COMMITS)) == logs


def _release(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list(names.LEASES)])
