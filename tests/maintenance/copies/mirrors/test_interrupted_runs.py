"""Runs of a mirror that stop while they jump over batches, and the order of their writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import ObjectMissing
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones.model import CopyFile, Part
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support import verbs
from tests.support.audits import audited
from tests.support.clones import FEW_KINDS, FULL, Roots, made, own
from tests.support.crashes import put_again
from tests.support.crashes.copies import require_right_clone
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.file_sources import read_file, read_files
from tests.support.maintainers import MAINTAINER
from tests.support.mirrors import mirrored, require_right
from tests.support.rewinds import rewound
from tests.support.switching import WRITES

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


@pytest.mark.parametrize("is_first", [False, True])
def test_in_structure_v1_an_interrupted_mirror_continues_after_the_source_has_deleted_the_mirrored_commit(
    disks: Roots, tmp_path: Path, is_first: bool
) -> None:
    """It keeps the files that the interrupted run has copied."""
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    if not is_first:
        mirrored(source, destination, tmp_path, stopped=True)
        query.grow(1)
        query.snapshot()
    snapshot = query.checkpoint.stores[0].snapshot(VersionId(5 if is_first else 9))
    with pytest.raises(SimulatedCrash):
        mirrored(source, _dying_after(destination, snapshot), tmp_path, stopped=True)
    _release(source)
    _release(destination)
    query.grow(5)
    query.gc()
    assert source.stat(names.commits(7)) is None
    kept = {path for entry in destination.list(names.STATE) if source.stat(path := entry.path) is not None}
    assert snapshot in kept
    prepared, _ = mirrored(source, destination, tmp_path, stopped=True)
    assert kept.isdisjoint(file.path for file in prepared.to_copy(Part.STATE))
    assert require_right(query, destination, tmp_path / "whole") == (12 if is_first else 13)


def test_an_entry_of_a_source_that_was_written_again_with_its_size_is_copied_again(
    disks: Roots, tmp_path: Path
) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    read_files(source, "clicks")
    mirrored(source, destination, tmp_path)
    query.grow(1)
    read_file(source, 8, "clicks")
    with pytest.raises(SimulatedCrash):
        mirrored(source, _dying_after(destination, f"{names.SOURCES}/clicks/8"), tmp_path)
    _release(source)
    _release(destination)
    path = f"{names.SOURCES}/clicks/8"
    body = source.read(path)
    assert destination.read(path) == body
    source.delete([path])
    source.create(path, body.replace(b"8", b"9"))
    mirrored(source, destination, tmp_path)
    assert destination.read(path) == source.read(path) != body


def _dying_after(storage: Storage, path: str) -> Storage:
    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.AFTER if request.kind in WRITES and request.path.startswith(path) else None

    return Dying(storage)


def _release(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list(names.LEASES)])
