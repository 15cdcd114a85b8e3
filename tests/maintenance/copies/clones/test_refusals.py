"""Clones that are not made: a typed error, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import (
    CorruptFile,
    DestinationNotEmpty,
    HalfSwitched,
    NotACheckpoint,
    RefusedAsUnsafe,
    RootHeld,
    SourceChanged,
    StatekeeperError,
    VersionNotLoadable,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import clones as copies
from statekeeper.statestore.maintenance.copies.clones import CopyFile, FreshIds
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.clones import FULL, Roots, cloned, made, own, query_of, without_leases
from tests.support.maintainers import MAINTAINER
from tests.support.s3_server import S3Server
from tests.support.switching import begin_a_switch, structure_of

# -- bad input ---------------------------------------------------------------------------------------------------------


def _with_a_file(source: Storage, destination: Storage, scratch: Path) -> None:
    del source, scratch
    destination.create("notes.txt", b"of somebody")


def _with_another_clone(source: Storage, destination: Storage, scratch: Path) -> None:
    cloned(source, destination, scratch, batch=6)


def _with_a_clone_that_ran(source: Storage, destination: Storage, scratch: Path) -> None:
    cloned(source, destination, scratch)
    destination.create(names.offsets(8), b"v1\n{}")


def _with_a_damaged_record(source: Storage, destination: Storage, scratch: Path) -> None:
    del source, scratch
    destination.create(names.CLONED, b'{"format": 7}')


def _with_a_lost_changelog(source: Storage, destination: Storage, scratch: Path) -> None:
    del destination, scratch
    heads = catalog.heads(source)
    assert heads is not None
    store, head = next(iter(heads.heads.items()))
    source.delete([store.changelog(head)])


def _with_another_maintainer(source: Storage, destination: Storage, scratch: Path) -> None:
    del destination, scratch
    lease.acquire(source, "gc", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock)


def _half_switched(source: Storage, destination: Storage, scratch: Path) -> None:
    del destination
    begin_a_switch(source, Structure.V1, scratch)


BAD: list[tuple[Callable[[Storage, Storage, Path], None], type[StatekeeperError]]] = [
    (_with_a_file, DestinationNotEmpty),
    (_with_another_clone, DestinationNotEmpty),
    (_with_a_clone_that_ran, DestinationNotEmpty),
    (_with_a_damaged_record, CorruptFile),
    (_with_a_lost_changelog, VersionNotLoadable),
    (_with_another_maintainer, RootHeld),
    (_half_switched, HalfSwitched),
]


@pytest.mark.parametrize(("spoil", "error"), BAD, ids=[spoil.__name__.strip("_") for spoil, _ in BAD])
def test_a_clone_that_cannot_be_made_writes_nothing(
    disks: Roots, tmp_path: Path, spoil: Callable[[Storage, Storage, Path], None], error: type[StatekeeperError]
) -> None:
    source, destination = disks
    own(source, tmp_path)
    spoil(source, destination, tmp_path)
    before = destination.list("", hidden=True)
    with pytest.raises(error) as raised:
        cloned(source, destination, tmp_path)
    assert raised.value.path
    assert raised.value.hint
    assert destination.list("", hidden=True) == before


def test_a_batch_that_is_not_retained_is_named_with_those_that_are(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    with pytest.raises(VersionNotLoadable) as raised:
        cloned(source, destination, tmp_path, batch=17)
    assert "batches 0 to 7" in str(raised.value)


def test_two_clones_into_one_destination_exclude_each_other(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    first, second = (verbs.clone.plan(source, destination, FULL, MAINTAINER) for _ in range(2))
    verbs.clone.execute(source, destination, first, MAINTAINER, scratch=tmp_path)
    with pytest.raises(DestinationNotEmpty, match="another process"):
        verbs.clone.execute(source, destination, second, MAINTAINER, scratch=tmp_path)
    assert query_of(query, destination, tmp_path / "of clone", 7).is_right()
    half = open_storage(str(tmp_path / "half"))
    native = open_storage(str(tmp_path / "native"))
    made(native, tmp_path / "of native", "native", Structure.V1, in_batch_logs=False)
    prepared = verbs.clone.plan(native, half, FULL, MAINTAINER, stopped=True)
    copies.begin(half, prepared.plan)
    lease.acquire(half, "clone", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock)
    with pytest.raises(RootHeld):
        verbs.clone.execute(native, half, prepared, MAINTAINER, scratch=tmp_path)


def test_a_certain_query_id_is_not_replaced_by_that_of_an_earlier_run(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    prepared = verbs.clone.plan(source, destination, FULL, MAINTAINER, new_query=True)
    copies.begin(destination, prepared.plan)
    certain = verbs.clone.plan(source, destination, FULL, MAINTAINER, query_id=MAINTAINER.ids.fresh())
    assert [type(error) for error in certain.refusals] == [DestinationNotEmpty]
    again = verbs.clone.plan(source, destination, FULL, MAINTAINER, new_query=True)
    assert (again.refusals, again.plan.record) == ((), prepared.plan.record)
    kept = verbs.clone.plan(source, destination, FULL, MAINTAINER)
    assert [type(error) for error in kept.refusals] == [DestinationNotEmpty]


def test_nothing_is_written_into_a_source_that_is_only_observed(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    before = source.list("", hidden=True)
    prepared = verbs.clone.plan(source, destination, Policies(), MAINTAINER)
    verbs.clone.execute(source, destination, prepared, MAINTAINER, scratch=tmp_path)
    assert source.list("", hidden=True) == before
    assert query_of(query, destination, tmp_path / "of clone", 7).is_right()


def test_the_checkpoint_of_a_query_without_state_is_cloned(disks: Roots, tmp_path: Path) -> None:
    """The outer checkpoint of a Python job is one."""
    source, destination = disks
    source.create(names.QUERY_METADATA, logs.encode_metadata(MAINTAINER.ids.fresh()))
    for batch in range(4):
        offsets = logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf={}, sources=(f'{{"logOffset":{batch}}}',))
        source.create(names.offsets(batch), logs.encode_offsets(offsets))
        source.create(names.commits(batch), logs.encode_commit(logs.CommitLog(0, None)))
        source.create(f"{names.SOURCES}/0/{batch}", b"v1")
    cloned(source, destination, tmp_path, batch=2, stopped=True)
    found = [entry.path for entry in without_leases(destination) if not entry.path.startswith(names.CONTROL)]
    assert found == [
        "commits/1",
        "commits/2",
        "metadata",
        "offsets/1",
        "offsets/2",
        *(f"sources/0/{entry}" for entry in range(3)),
    ]


def test_metadata_of_a_later_batch_is_cloned_if_it_is_the_oldest(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    old = names.operator_metadata(0)
    body = source.read(old).replace(b"v1", b"v2", 1)
    for batch in (6, 7):
        source.create(f"{names.operator_metadata_by_batch(0)}/{batch}", body)
    source.delete([old])
    cloned(source, destination, tmp_path, batch=5)
    assert [entry.path for entry in destination.list(names.operator_metadata_by_batch(0))] == [
        f"{names.operator_metadata_by_batch(0)}/6"
    ]
    assert query_of(query, destination, tmp_path / "of clone", 5).is_right()


def test_a_full_disk_is_noticed_before_a_file_is_written(disks: Roots, tmp_path: Path, s3_server: S3Server) -> None:
    source = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
    destination = disks[1]
    own(source, tmp_path)
    gathered = copies.gather(source, destination)
    place = gathered.destination_place
    full = replace(gathered, destination_place=replace(place, location=replace(place.location, free=1_000)))
    (refusal,) = copies.plan(full, FreshIds(MAINTAINER.ids.fresh())).refusals
    assert "1,000 bytes of free space" in str(refusal)
    assert copies.plan(gathered, FreshIds(MAINTAINER.ids.fresh())).refusals == ()


def test_an_empty_folder_is_no_source(disks: Roots, tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint):
        cloned(*disks, tmp_path)


@pytest.mark.parametrize(("source", "destination"), [("root", "root/clone"), ("a/root", "a"), ("root", "root")])
def test_a_destination_inside_the_source_or_around_it_is_rejected(
    tmp_path: Path, source: str, destination: str
) -> None:
    storage = open_storage(str(tmp_path / source))
    own(storage, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="inside"):
        cloned(storage, open_storage(str(tmp_path / destination)), tmp_path)


def test_the_newest_batches_of_a_running_query_in_structure_v1_are_not_cloned(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    with pytest.raises(RefusedAsUnsafe, match="may still replace"):
        cloned(source, destination, tmp_path, batch=7)
    assert cloned(source, destination, tmp_path).plan.record.batch == 5
    assert query_of(query, destination, tmp_path / "of clone", 5).is_right()


def test_a_changelog_that_is_replaced_during_the_copy_stops_it(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    prepared = verbs.clone.plan(source, destination, FULL, MAINTAINER, stopped=True)
    replaced: list[str] = []

    def replace_one(file: CopyFile) -> None:
        if not replaced and file.path.endswith(".changelog"):
            replaced.append(file.path)
            source.replace(file.path, source.read(file.path))

    with pytest.raises(SourceChanged, match="changed since"):
        verbs.clone.execute(source, destination, prepared, MAINTAINER, scratch=tmp_path, copied=replace_one)
    assert catalog.newest_batch(destination) is None
    cloned(source, destination, tmp_path, stopped=True)
    assert query_of(query, destination, tmp_path / "of clone", 7).is_right()
    assert structure_of(destination) is Structure.V1
