"""Labeled savepoints: made, listed, kept by garbage collection, deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import DestinationNotEmpty, RefusedAsUnsafe, RootHeld, StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names, savepoint_names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.labels import Content, Label
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support import verbs
from tests.support.audits import audited
from tests.support.clones import FEW_KINDS, FULL, Roots, made, own, query_of
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.maintainers import MAINTAINER
from tests.support.savepoints import kept, remove, saved
from tests.support.structures import held


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
@pytest.mark.parametrize("roots", ["disk to disk", pytest.param("s3 to s3", marks=pytest.mark.slow)], indirect=True)
def test_garbage_collection_of_the_source_and_of_the_savepoint_keeps_its_state(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = roots
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    kept(source, destination, tmp_path, batch=5, stopped=True, note="before the upgrade")
    before = held(destination, tmp_path / "look")
    copy = query_of(query, destination, tmp_path / "of savepoint", 5)
    query.snapshot()
    query.gc()
    assert catalog.commit_log(source) is not None
    copy.snapshot()
    copy.gc()
    copy.gc()
    assert held(destination, tmp_path / "look again") == before
    assert copy.is_right()
    assert audited(destination, scratch=tmp_path / "deep").findings == ()
    [label] = verbs.savepoint.listed(source).labels
    assert verbs.savepoint.listed(destination).labels == (label,)
    assert (label.label, label.note, label.batch, label.content) == ("before", "before the upgrade", 5, Content.FILES)
    assert label.size_bytes > 0
    remove(source, destination)
    assert destination.list("", hidden=True) == []
    assert verbs.savepoint.listed(source).labels == ()
    assert query.is_right()
    assert audited(source, scratch=tmp_path / "deep source").findings == ()


def test_an_observed_source_gets_no_record(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    before = source.list("", hidden=True)
    kept(source, destination, tmp_path, policies=replace(FULL, mode=None))
    assert source.list("", hidden=True) == before
    assert verbs.savepoint.listed(source).labels == ()
    remove(destination, destination)
    assert destination.list("", hidden=True) == []


def test_tables_with_a_label_are_listed_and_deleted(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    saved(source, destination, tmp_path, label="march", batch=6)
    [label] = verbs.savepoint.listed(source).labels
    assert (label.content, label.batch, label.destination) == (Content.ROWS, 6, destination.url)
    saved(source, destination, tmp_path, label="march", batch=6)
    assert verbs.savepoint.listed(source).labels == (label,)
    remove(source, destination, "march")
    assert destination.list("", hidden=True) == []


def test_a_deletion_keeps_files_of_others(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    kept(source, destination, tmp_path)
    destination.create("notes.txt", b"of another person")
    remove(source, destination)
    assert [entry.path for entry in destination.list("", hidden=True)] == ["notes.txt"]


# -- interruptions -----------------------------------------------------------------------------------------------------


def test_a_second_run_writes_the_missing_labels(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    prepared = kept(source, destination, tmp_path)
    for storage, path in ((source, savepoint_names.label("before")), (destination, savepoint_names.LABEL)):
        storage.delete([path])
        query.grow(1)
        kept(source, destination, tmp_path, batch=7)
        [label] = verbs.savepoint.listed(source).labels
        assert label.is_same(prepared.label)


def test_the_same_command_completes_an_interrupted_savepoint_of_a_running_source(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    traced = FaultyStorage(destination)
    kept(source, traced, tmp_path)
    [commit] = [one for one in traced.trace if one.kind is Kind.CREATE and one.path == names.commits(7)]
    remove(source, destination)
    with pytest.raises((SimulatedCrash, StatekeeperError)):
        kept(source, FaultyStorage(destination, {commit.number: Fault.BEFORE}), tmp_path)
    for root in disks:
        root.delete([entry.path for entry in root.list(names.LEASES)])
    query.grow(1)
    with pytest.raises(DestinationNotEmpty) as raised:
        kept(source, destination, tmp_path, batch=6)
    hint = f"statekeeper savepoint {source.url} {destination.url} --batch 7 --label before"
    assert hint in (raised.value.hint or "")
    assert kept(source, destination, tmp_path).label.batch == 7
    assert catalog.newest_batch(destination) == 7
    assert [label.batch for label in verbs.savepoint.listed(source).labels] == [7]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_label_names_one_savepoint(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    kept(source, destination, tmp_path)
    other = open_storage(str(tmp_path / "other"))
    with pytest.raises(RefusedAsUnsafe, match="the label 'before' is already used by the savepoint of batch 7"):
        kept(source, other, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="the label 'before' is already used"):
        saved(source, other, tmp_path, label="before")
    assert other.list("", hidden=True) == []
    with pytest.raises(DestinationNotEmpty, match="is the savepoint before"):
        kept(source, destination, tmp_path, label="after")


def _with_another_label(destination: Storage) -> None:
    label = verbs.savepoint.find(destination, "before")
    destination.replace(savepoint_names.LABEL, replace(label, label="after").encoded())


def _without_a_label(destination: Storage) -> None:
    destination.delete([savepoint_names.LABEL])


def _with_a_running_query(destination: Storage) -> None:
    destination.create(names.offsets(8), b"v1\n{}")


def _held(destination: Storage) -> None:
    lease.acquire(destination, "gc", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock)


BAD: list[tuple[Callable[[Storage], None], type[StatekeeperError]]] = [
    (_with_another_label, RefusedAsUnsafe),
    (_without_a_label, RefusedAsUnsafe),
    (_with_a_running_query, RefusedAsUnsafe),
    (_held, RootHeld),
]


@pytest.mark.parametrize(("spoil", "error"), BAD, ids=[spoil.__name__.strip("_") for spoil, _ in BAD])
def test_a_location_that_is_not_the_savepoint_is_not_deleted(
    disks: Roots, tmp_path: Path, spoil: Callable[[Storage], None], error: type[StatekeeperError]
) -> None:
    source, destination = disks
    own(source, tmp_path)
    kept(source, destination, tmp_path)
    spoil(destination)
    before = destination.list("", hidden=True)
    with pytest.raises(error) as raised:
        remove(source, destination)
    assert raised.value.hint
    assert destination.list("", hidden=True) == before


def test_an_unknown_label_is_an_error(disks: Roots, tmp_path: Path) -> None:
    own(disks[0], tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="no savepoint has the label march"):
        verbs.savepoint.find(disks[0], "march")


def test_the_list_of_an_observed_source_does_not_change(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    kept(source, destination, tmp_path)
    observed = replace(FULL, mode=Mode.OBSERVE)
    label: Label = verbs.savepoint.find(source, "before")
    planned = verbs.savepoint.plan_removal(source, destination, label, observed, MAINTAINER)
    with pytest.raises(RefusedAsUnsafe, match="the mode of this root is observe"):
        verbs.savepoint.execute_removal(source, destination, planned)
    assert catalog.newest_batch(destination) == 7
