"""Mirrors that are not continued: a typed error, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import (
    CorruptFile,
    DestinationNotEmpty,
    HalfSwitched,
    MirrorDiverged,
    MirrorStarted,
    RefusedAsUnsafe,
    RootHeld,
    SourceChanged,
    StatekeeperError,
    VersionNotLoadable,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import mirror_names, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import mirrors
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.storage import open_storage
from tests.support import verbs
from tests.support.clones import FULL, Roots, cloned, made, made_anew, own, query_of
from tests.support.maintained_query import Query
from tests.support.maintainers import MAINTAINER
from tests.support.mirrors import mirrored, require_right
from tests.support.switching import begin_a_switch

Spoil = Callable[[Query, Roots, Path], None]


def _with_a_file(query: Query, roots: Roots, scratch: Path) -> None:
    del query, scratch
    roots[1].delete([entry.path for entry in roots[1].list("")])
    roots[1].create("notes.txt", b"of a person")


def _with_a_clone(query: Query, roots: Roots, scratch: Path) -> None:
    del query
    roots[1].delete([entry.path for entry in roots[1].list("")])
    cloned(*roots, scratch)


def _of_another_source(query: Query, roots: Roots, scratch: Path) -> None:
    del query
    roots[1].delete([entry.path for entry in roots[1].list("")])
    other = open_storage(str(scratch / "other"))
    own(other, scratch / "of other")
    mirrored(other, roots[1], scratch)


def _with_a_query_that_began_a_batch(query: Query, roots: Roots, scratch: Path) -> None:
    del query, scratch
    roots[1].create(names.offsets(8), b"v1\n{}")


def _with_a_query_that_ran(query: Query, roots: Roots, scratch: Path) -> None:
    query_of(query, roots[1], scratch / "failed over", 7).grow(2)
    query.grow(2)


def _with_a_rolled_back_source(query: Query, roots: Roots, scratch: Path) -> None:
    del scratch
    query.repair()
    assert catalog.newest_batch(roots[0]) == 5


def _with_a_restarted_source(query: Query, roots: Roots, scratch: Path) -> None:
    del roots, scratch
    query.repair()
    query.grow(4)


def _with_a_new_query_in_the_source(query: Query, roots: Roots, scratch: Path) -> None:
    del query
    source = roots[0]
    source.delete([entry.path for entry in source.list("", hidden=True)])
    made_anew(source, scratch / "new", "own", Structure.V2, in_batch_logs=False)


def _with_a_switched_source(query: Query, roots: Roots, scratch: Path) -> None:
    del roots, scratch
    query.switch()


def _with_a_lost_changelog(query: Query, roots: Roots, scratch: Path) -> None:
    del scratch
    query.grow(1)
    heads = catalog.heads(roots[0])
    assert heads is not None
    store, head = next(iter(heads.heads.items()))
    roots[0].delete([store.changelog(head)])


def _with_another_maintainer(query: Query, roots: Roots, scratch: Path) -> None:
    del scratch
    query.grow(1)
    lease.acquire(roots[0], "gc", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock)


def _half_switched(query: Query, roots: Roots, scratch: Path) -> None:
    query.grow(1)
    begin_a_switch(roots[0], Structure.V1, scratch)


def _with_a_damaged_record(query: Query, roots: Roots, scratch: Path) -> None:
    del query, scratch
    roots[1].replace(mirror_names.MIRROR, b'{"format": 7}')


def _with_a_damaged_list(query: Query, roots: Roots, scratch: Path) -> None:
    del query, scratch
    roots[1].replace(mirror_names.mirrored(1), b'{"format": 1, "files": 3}')


BAD: list[tuple[Spoil, type[StatekeeperError]]] = [
    (_with_a_file, DestinationNotEmpty),
    (_with_a_clone, DestinationNotEmpty),
    (_of_another_source, DestinationNotEmpty),
    (_with_a_query_that_began_a_batch, MirrorStarted),
    (_with_a_query_that_ran, MirrorStarted),
    (_with_a_rolled_back_source, MirrorDiverged),
    (_with_a_restarted_source, MirrorDiverged),
    (_with_a_new_query_in_the_source, MirrorDiverged),
    (_with_a_switched_source, MirrorDiverged),
    (_with_a_lost_changelog, VersionNotLoadable),
    (_with_another_maintainer, RootHeld),
    (_half_switched, HalfSwitched),
    (_with_a_damaged_record, CorruptFile),
    (_with_a_damaged_list, CorruptFile),
]


@pytest.mark.parametrize(("spoil", "error"), BAD, ids=[spoil.__name__.strip("_") for spoil, _ in BAD])
def test_a_mirror_that_cannot_be_continued_is_not_written(
    disks: Roots, tmp_path: Path, spoil: Spoil, error: type[StatekeeperError]
) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    spoil(query, disks, tmp_path)
    before = destination.list("", hidden=True)
    with pytest.raises(error) as raised:
        mirrored(source, destination, tmp_path)
    assert type(raised.value) is error
    assert raised.value.path
    assert raised.value.hint
    assert destination.list("", hidden=True) == before


@pytest.mark.parametrize(("source", "destination"), [("root", "root/mirror"), ("a/root", "a"), ("root", "root")])
def test_a_mirror_inside_the_source_or_around_it_is_rejected(tmp_path: Path, source: str, destination: str) -> None:
    storage = open_storage(str(tmp_path / source))
    own(storage, tmp_path)
    with pytest.raises(RefusedAsUnsafe):
        mirrored(storage, open_storage(str(tmp_path / destination)), tmp_path)


def test_a_batch_that_the_source_does_not_retain_is_not_mirrored(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    with pytest.raises(VersionNotLoadable, match="batches 0 to 7"):
        mirrored(source, destination, tmp_path, batch=17)
    assert destination.list("", hidden=True) == []


def test_a_clone_does_not_overwrite_a_mirror(disks: Roots, tmp_path: Path) -> None:
    own(disks[0], tmp_path)
    mirrored(*disks, tmp_path)
    with pytest.raises(DestinationNotEmpty):
        cloned(*disks, tmp_path)


def test_too_little_space_is_known_before_the_first_byte(disks: Roots, tmp_path: Path) -> None:
    own(disks[0], tmp_path)
    prepared = verbs.mirror.plan(*disks, FULL, MAINTAINER)
    place = prepared.gathered.copy.destination_place
    full = replace(place, location=replace(place.location, free=1_000))
    gathered = replace(prepared.gathered, copy=replace(prepared.gathered.copy, destination_place=full))
    (refusal,) = mirrors.plan(gathered, MAINTAINER.ids.fresh()).refusals
    assert "1,000 bytes of free space" in str(refusal)


def test_of_two_runs_with_one_plan_the_second_one_is_rejected(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    query.grow(1)
    first, second = (verbs.mirror.plan(source, destination, FULL, MAINTAINER) for _ in range(2))
    verbs.mirror.execute(source, destination, first, MAINTAINER, scratch=tmp_path)
    with pytest.raises(SourceChanged, match="another process"):
        verbs.mirror.execute(source, destination, second, MAINTAINER, scratch=tmp_path)
    require_right(query, destination, tmp_path / "of mirror")


def test_in_structure_v1_a_replaced_changelog_of_a_mirrored_batch_stops_the_mirror(
    disks: Roots, tmp_path: Path
) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    mirrored(source, destination, tmp_path)
    assert query_of(query, destination, tmp_path / "of mirror", 5).is_right()
    path = next(entry.path for entry in source.list("state") if entry.path.endswith("/6.changelog"))
    body = source.read(path)
    # The same bytes, as after the undo of a rewind.
    source.delete([path])
    source.create(path, body)
    mirrored(source, destination, tmp_path)
    source.replace(path, body[:-1] + b"?")
    with pytest.raises(MirrorDiverged, match="was replaced"):
        mirrored(source, destination, tmp_path)


def test_in_structure_v1_a_replaced_snapshot_of_a_mirrored_batch_is_not_copied(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    mirrored(source, destination, tmp_path)
    path = next(entry.path for entry in source.list("state") if entry.path.endswith("/5.zip"))
    body, old = source.read(path), destination.stat(path)
    source.delete([path])
    source.create(path, body)
    query.grow(1)
    mirrored(source, destination, tmp_path)
    assert destination.stat(path) == old
    assert require_right(query, destination, tmp_path / "of mirror") == 6


@pytest.mark.parametrize("structure", Structure)
def test_a_mirror_that_was_off_for_longer_than_the_retention_continues(
    disks: Roots, tmp_path: Path, structure: Structure
) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", structure, in_batch_logs=False)
    mirrored(source, destination, tmp_path, stopped=True)
    query.grow(6)
    query.snapshot()
    query.gc()
    assert source.stat(names.commits(7)) is None
    mirrored(source, destination, tmp_path, stopped=True)
    assert require_right(query, destination, tmp_path / "of mirror") == 13
    assert destination.stat(names.commits(7)) is None
