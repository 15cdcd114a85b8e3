"""Mirrors: the rows of the newest batch, copies of new files only, and the deletions of the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import mirror_names, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import mirrors
from statekeeper.statestore.maintenance.copies.clones import Way
from statekeeper.statestore.maintenance.copies.clones.model import Part
from statekeeper.statestore.maintenance.copies.mirrors import Reason
from statekeeper.statestore.maintenance.copies.mirrors.plan import MOST_LISTS
from statekeeper.statestore.maintenance.records import history
from statekeeper.statestore.maintenance.records.history import DeletedFiles, FailedRun, PlannedDeletion
from statekeeper.statestore.storage import Kind, open_storage
from tests.support.clones import FEW_KINDS, Roots, cloned, made, own, query_of, without_leases
from tests.support.faulty_storage import Fault, FaultyStorage
from tests.support.mirrors import mirrored, require_right
from tests.support.switching import structure_of


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
@pytest.mark.parametrize(
    "roots",
    [
        "disk to disk",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3 to s3", "disk to s3", "s3 to disk")),
    ],
    indirect=True,
)
def test_a_mirror_follows_its_source_through_all_maintenance(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = roots
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    for number, verb in enumerate(("grow", "snapshot", "grow", "gc", "grow")):
        if verb == "grow":
            query.grow(3)
        else:
            getattr(query, verb)()
        before = without_leases(source)
        prepared, _ = mirrored(source, destination, tmp_path)
        assert without_leases(source) == before
        newest = catalog.newest_batch(source)
        assert newest is not None
        expected = newest - 2 if kind == "native" and structure_of(source) is Structure.V1 else newest
        assert require_right(query, destination, tmp_path / f"of mirror {number}") == expected
        assert prepared.plan.left.batches == newest - expected
        again, _ = mirrored(source, destination, tmp_path)
        assert again.plan.is_current
    paths = {entry.path for entry in without_leases(destination) if not entry.path.startswith(names.CONTROL)}
    assert paths <= {entry.path for entry in source.list("")}


@pytest.mark.parametrize("roots", ["s3 to s3"], indirect=True)
def test_a_run_transfers_only_what_is_new(roots: Roots, tmp_path: Path) -> None:
    source, destination = roots
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    query.grow(1)
    before, old = destination.requests.snapshot(), {entry.path: entry for entry in destination.list("")}
    prepared, _ = mirrored(source, destination, tmp_path)
    spent = destination.requests.since(before)
    new = {entry.path: entry for entry in without_leases(destination)}
    changed = {path for path, entry in new.items() if old.get(path) != entry} - {mirror_names.MIRROR}
    heads = catalog.heads(source)
    assert heads is not None
    changelogs = {store.changelog(head) for store, head in heads.heads.items()}
    lists = {path for path in changed if path.startswith(mirror_names.MIRRORED)}
    assert changed - lists == {*changelogs, names.offsets(8), names.commits(8)}
    assert len(lists) == 1
    copied = [file for file in prepared.plan.to_copy(*Part) if file.part is not Part.METADATA]
    assert {file.path for file in copied} == changed - lists
    state = [file for file in copied if file.path in changelogs]
    assert {file.way for file in state} == {Way.SERVICE}
    # Two logs, metadata, the records and the leases.
    assert spent.bytes_written < 8_000
    assert require_right(query, destination, tmp_path / "of mirror") == 8


def test_a_current_mirror_is_not_written(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    before = destination.list("", hidden=True), source.list("", hidden=True)
    prepared, _ = mirrored(source, destination, tmp_path)
    assert prepared.plan.is_current
    assert (destination.list("", hidden=True), source.list("", hidden=True)) == before


def test_the_lag_counts_the_batches_that_a_failover_loses(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    lag = mirrors.measure(source, destination)
    assert (lag.batches, lag.seconds, lag.size_bytes) == (0, 0.0, 0)
    query.grow(2)
    lag = mirrors.measure(source, destination)
    heads = catalog.heads(source)
    assert heads is not None
    last = sum(entry.size_bytes for entry in source.list("state") if "/10_" in entry.path)
    assert (lag.batch, lag.newest, lag.batches) == (7, 9, 2)
    assert lag.size_bytes > last > 0
    assert lag.seconds is not None
    assert lag.seconds > 0


def test_the_lag_does_not_count_the_changelogs_of_a_batch_without_commit(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    newest = next(entry.path for entry in source.list("state") if "/8_" in entry.path)
    source.create(newest.replace("/8_", "/9_"), source.read(newest))
    lag = mirrors.measure(source, destination)
    assert (lag.batches, lag.size_bytes) == (0, 0)


def test_the_mirror_keeps_the_batches_that_the_source_retains(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    query.grow(4)
    query.snapshot()
    mirrored(source, destination, tmp_path)
    for batch in range(5, 12):
        copy = open_storage(str(tmp_path / f"copy {batch}"))
        cloned(destination, copy, tmp_path, batch=batch)
        assert query_of(query, copy, tmp_path / f"of copy {batch}", batch).is_right()


def test_the_mirror_deletes_what_the_source_has_deleted_and_nothing_else(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    destination.create("state/0/0/notes.txt", b"of a person")
    query.grow(6)
    query.snapshot()
    query.grow(6)
    query.snapshot()
    mirrored(source, destination, tmp_path)
    before = {entry.path for entry in destination.list("state")}
    query.gc()
    _, cleanup = mirrored(source, destination, tmp_path)
    gone = before - {entry.path for entry in destination.list("state")}
    assert gone
    assert gone <= {file.path for file in cleanup.obsolete}
    assert not gone & {entry.path for entry in source.list("")}
    assert {file.reason for file in cleanup.obsolete} == {Reason.DELETED}
    assert cleanup.kept == {Reason.NOT_COPIED: 1}
    assert destination.read("state/0/0/notes.txt") == b"of a person"
    destination.delete(["state/0/0/notes.txt"])
    require_right(query, destination, tmp_path / "of mirror")


def test_the_deletions_of_a_mirror_are_in_its_history(disks: Roots, tmp_path: Path) -> None:
    """Each run that deletes files records them; other runs record nothing."""
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    query.grow(5)
    query.snapshot()
    mirrored(source, destination, tmp_path)
    assert destination.list(names.HISTORY) == []
    query.gc()
    _, cleanup = mirrored(source, destination, tmp_path)
    mirrored(source, destination, tmp_path)
    files = {names.parse_history(entry.path): entry.path for entry in destination.list(names.HISTORY)}
    assert files.keys() == {("mirror", "plan"), ("mirror", "outcome")}
    planned = history.read(destination, files["mirror", "plan"])
    assert planned == [PlannedDeletion(path=file.path, rule="deleted") for file in cleanup.obsolete]
    (done,) = history.read(destination, files["mirror", "outcome"])
    assert isinstance(done, DeletedFiles)
    assert (done.outcome, done.files, done.bytes) == ("done", len(cleanup.obsolete), cleanup.size_bytes)


def test_an_interrupted_deletion_of_a_mirror_is_in_its_history(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    query.grow(5)
    query.snapshot()
    query.gc()
    traced = FaultyStorage(destination)
    before = {entry.path: destination.read(entry.path) for entry in destination.list("")}
    mirrored(source, traced, tmp_path)
    [deletion] = [one for one in traced.trace if one.kind is Kind.DELETE and one.path.startswith(names.COMMITS)]
    destination.delete([entry.path for entry in destination.list("", hidden=True)])
    for path, body in before.items():
        destination.create(path, body)
    with pytest.raises(StorageError):
        mirrored(source, FaultyStorage(destination, {deletion.number: Fault.LOST_REPLY}), tmp_path)
    files = {names.parse_history(entry.path): entry.path for entry in destination.list(names.HISTORY)}
    assert history.read(destination, files["mirror", "plan"])
    (failed,) = history.read(destination, files["mirror", "outcome"])
    assert isinstance(failed, FailedRun)


def test_the_lists_of_copied_files_are_merged(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    for number in range(2, MOST_LISTS + 1):
        destination.create(mirror_names.mirrored(number), b'{"format": 1, "files": {}}')
    query.grow(1)
    mirrored(source, destination, tmp_path)
    assert [entry.path for entry in destination.list(mirror_names.MIRRORED)] == [mirror_names.mirrored(MOST_LISTS + 1)]
    query.grow(6)
    query.snapshot()
    query.gc()
    _, cleanup = mirrored(source, destination, tmp_path)
    assert cleanup.obsolete
    assert Reason.NOT_COPIED not in cleanup.kept
    require_right(query, destination, tmp_path / "of mirror")


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_source_and_mirror_are_maintained_and_the_mirror_continues(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    for number, verb in enumerate(("snapshot", "gc")):
        query.grow(3)
        mirrored(source, destination, tmp_path)
        newest = catalog.newest_batch(destination)
        assert newest is not None
        copy = query_of(query, destination, tmp_path / f"of mirror {number}", newest)
        getattr(copy, verb)()
        assert copy.is_right(), verb
        getattr(query, verb)()
        query.grow(2)
        mirrored(source, destination, tmp_path)
        batch = require_right(query, destination, tmp_path / f"continued {number}")
        clone = open_storage(str(tmp_path / f"clone {number}"))
        cloned(destination, clone, tmp_path, stopped=True)
        assert query_of(query, clone, tmp_path / f"of clone {number}", batch).is_right()
