"""Maintenance of the source while it is cloned or mirrored: it continues, and the copy loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RootHeld, SourceChanged
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names, savepoint_names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import holds, lease
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.audits import audited
from tests.support.clones import FEW_KINDS, FULL, Roots, cloned, made, own, query_of
from tests.support.maintained_query import Query
from tests.support.maintainers import MAINTAINER
from tests.support.mirrors import mirrored, require_right
from tests.support.savepoints import kept, remove

Verb = Callable[[Storage, Storage, Path, Callable[[object], None]], object]


def _clone(source: Storage, destination: Storage, scratch: Path, copied: Callable[[object], None]) -> None:
    prepared = verbs.clone.plan(source, destination, FULL, MAINTAINER, stopped=True)
    verbs.clone.execute(source, destination, prepared, MAINTAINER, scratch=scratch, copied=copied)


def _mirror(source: Storage, destination: Storage, scratch: Path, copied: Callable[[object], None]) -> None:
    prepared = verbs.mirror.plan(source, destination, FULL, MAINTAINER, stopped=True)
    verbs.mirror.execute(source, destination, prepared, MAINTAINER, scratch=scratch, copied=copied)


def _held(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list(savepoint_names.HOLDS)]


def _oldest_commit(storage: Storage) -> int:
    return min(int(entry.path.rpartition("/")[2]) for entry in storage.list(names.COMMITS))


@pytest.mark.parametrize("verb", [_clone, _mirror])
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_gc_and_snapshots_of_the_source_run_between_the_requests_of_a_copy_and_the_copy_loads(
    disks: Roots, tmp_path: Path, verb: Verb, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    """After the first copied file, the query continues far enough that retention would delete the copied batch. After each
    further file, `snapshot` and `gc` run again."""
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    copied: list[object] = []

    def maintain(file: object) -> None:
        copied.append(file)
        assert len(_held(source)) == 1
        if len(copied) == 1:
            query.grow(5)
        if len(copied) < 8:
            query.grow(1)
            query.snapshot()
            query.gc()

    verb(source, destination, tmp_path, maintain)
    assert len(copied) > 8
    assert _oldest_commit(source) <= 7
    assert query_of(query, destination, tmp_path / "of copy", 7).is_right()
    assert audited(destination, scratch=tmp_path / "deep").findings == ()
    assert _held(source) == []
    query.gc()
    query.gc()
    assert _oldest_commit(source) > 7
    assert query.is_right()


@pytest.mark.parametrize("verb", [_clone, _mirror])
def test_a_copy_takes_no_lease_of_its_source(disks: Roots, tmp_path: Path, verb: Verb) -> None:
    """Another process makes snapshots for the whole time."""
    source, destination = disks
    own(source, tmp_path)
    with lease.held(source, "snapshot", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock):
        leases = source.list(names.LEASES)
        verb(source, destination, tmp_path, lambda _: None)
        assert source.list(names.LEASES) == leases


@pytest.mark.parametrize("verb", [_clone, _mirror])
@pytest.mark.parametrize("other", ["gc", "rewind", "switch", "repair"])
def test_a_copy_does_not_start_beside_a_verb_that_deletes_files_of_its_source(
    disks: Roots, tmp_path: Path, verb: Verb, other: str
) -> None:
    source, destination = disks
    own(source, tmp_path)
    with (
        lease.held(source, other, run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock),
        pytest.raises(RootHeld, match=f"for the command {other}"),
    ):
        verb(source, destination, tmp_path, lambda _: None)
    assert _held(source) == []
    assert destination.list("", hidden=True) == []


@pytest.mark.parametrize("prepare", [verbs.clone.plan, verbs.mirror.plan])
def test_a_file_that_retention_deletes_before_the_hold_is_found_before_anything_is_written(
    disks: Roots, tmp_path: Path, prepare: Callable[..., object]
) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    prepared = prepare(source, destination, FULL, MAINTAINER)
    for _ in range(2):
        query.grow(5)
        query.snapshot()
        query.gc()
    execute = verbs.clone.execute if prepare is verbs.clone.plan else verbs.mirror.execute
    with pytest.raises(SourceChanged, match="was deleted after the plan was made; nothing was written"):
        execute(source, destination, prepared, MAINTAINER, scratch=tmp_path)  # type: ignore[operator]
    assert destination.list("", hidden=True) == []
    assert _held(source) == []


@pytest.mark.parametrize("verb", [_clone, _mirror])
@pytest.mark.parametrize("damage", ["replaced", "deleted"])
def test_a_commit_that_the_source_replaces_during_a_copy_is_not_copied(
    disks: Roots, tmp_path: Path, verb: Verb, damage: str
) -> None:
    """A query that was rolled back commits other state under the same number."""
    source, destination = disks
    own(source, tmp_path)

    def roll_back(_: object) -> None:
        body = source.read(names.commits(7)) if source.stat(names.commits(7)) else b""
        source.delete([names.commits(7)])
        if damage == "replaced" and body:
            source.create(names.commits(7), body + b" ")

    with pytest.raises(Exception, match="commits/7"):
        verb(source, destination, tmp_path, roll_back)
    assert destination.list(names.COMMITS) == []
    assert destination.list(names.OFFSETS) == []


@pytest.mark.parametrize("verb", [_clone, _mirror])
def test_an_observed_source_gets_no_file(disks: Roots, tmp_path: Path, verb: Verb) -> None:
    source, destination = disks
    made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    before = source.list("", hidden=True)
    observed = Policies(mode=Mode.OBSERVE)
    module = verbs.clone if verb is _clone else verbs.mirror
    prepared = module.plan(source, destination, observed, MAINTAINER)
    module.execute(source, destination, prepared, MAINTAINER, scratch=tmp_path)  # type: ignore[arg-type]
    assert source.list("", hidden=True) == before


# -- mirrors and savepoints as sources ---------------------------------------------------------------------------------


def _outgrown(query: Query, source: Storage, destination: Storage, scratch: Path) -> None:
    """The mirror copies later batches; the source then deletes the earlier ones."""
    for _ in range(2):
        query.grow(5)
        query.snapshot()
    mirrored(source, destination, scratch)
    query.gc()
    query.gc()


@pytest.mark.parametrize("body", [b"", b"no hold"])
def test_a_mirror_keeps_the_batches_that_another_run_reads_from_it(disks: Roots, tmp_path: Path, body: bytes) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    _outgrown(query, source, destination, tmp_path)
    path = savepoint_names.hold(MAINTAINER.ids.fresh())
    destination.create(path, body or Hold(batch=7, holder="a test", verb="clone").encoded(0))
    mirrored(source, destination, tmp_path)
    assert _oldest_commit(destination) <= 7
    other = open_storage(str(tmp_path / "clone of mirror"))
    cloned(destination, other, tmp_path, batch=7)
    assert query_of(query, other, tmp_path / "of clone", 7).is_right()
    destination.delete([path])
    mirrored(source, destination, tmp_path)
    assert _oldest_commit(destination) > 7
    assert require_right(query, destination, tmp_path / "of mirror") == 17


def test_a_savepoint_that_a_run_reads_is_not_deleted(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    kept(source, destination, tmp_path)
    hold = Hold(batch=7, holder="a test", verb="clone")
    with (
        holds.held(destination, hold, run=MAINTAINER.ids.fresh(), clock=MAINTAINER.clock),
        pytest.raises(RootHeld, match="a test reads batch 7 of the savepoint"),
    ):
        remove(source, destination)
    remove(source, destination)
    assert catalog.newest_batch(destination) is None
