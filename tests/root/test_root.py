"""The life of a root, with a crash of its driver at every storage request, and rejected requests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from statekeeper.statestore.base.errors import (
    BatchConflict,
    CorruptFile,
    ForeignRoot,
    OtherStructure,
    RootLost,
    StorageError,
    UnknownFormatVersion,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.state_root import Done, Ready, StateRoot
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import Kind, Storage, StorageSpec, open_storage
from tests.support.checkpoints import copy_files
from tests.support.faulty_storage import FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.roots import (
    GROWN,
    IDS,
    OTHER_QUERY,
    PARTITIONS,
    QUERY,
    World,
    fresh_ids,
    ids_of,
    opened,
    outer,
    store,
    wanted,
)


def kind_and_folder(request: Request) -> tuple[Kind, str]:
    """Return the kind and the folder of a request, without its fresh names."""
    return request.kind, request.path.rpartition("/")[0]


# -- the crash matrix --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "expected_cases"),
    [
        pytest.param(0, 61, id="the first batch, which makes the root"),
        pytest.param(1, 58, id="a batch that adds a column"),
        pytest.param(2, 50, id="any later batch"),
    ],
)
def test_after_a_crash_at_any_request_of_a_batch_the_next_driver_continues(
    storage_spec: StorageSpec, tmp_path: Path, batch: int, expected_cases: int, structure: Structure
) -> None:
    base, world_before = open_storage(str(tmp_path / "base")), World(structure=structure)
    for earlier in range(batch):
        world_before.run(base, earlier)

    def grown(number: object) -> tuple[Storage, World]:
        storage = open_storage(replace(storage_spec, url=f"{storage_spec.url}-{number}"))
        return copy_files(base, storage), replace(world_before, sink=dict(world_before.sink))

    storage, world = grown("whole")
    whole = FaultyStorage(storage)
    world.run(whole, batch)
    world.assert_allowed(storage)
    cases = crash_matrix(whole.trace)
    assert len(cases) == expected_cases
    # The requests are the same on S3, where each takes a hundred times as long: there one case in sixteen is tried.
    tried = cases if storage.url.startswith("file:") else cases[::16]
    for number, (request, fault) in enumerate(tried):
        storage, world = grown(number)
        before = {b: ids_of(storage, b) for b in range(batch)}
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StorageError):
            world.run(faulty, batch)
        assert kind_and_folder(faulty.trace[request.number]) == kind_and_folder(request)
        world.assert_allowed(storage)
        if catalog.newest_batch(storage) == batch:
            before[batch] = ids_of(storage, batch)
        for again in (batch, batch + 1):
            world.run(storage, again)
            world.assert_allowed(storage)
        assert {b: ids_of(storage, b) for b in before} == before, f"{request}, {fault}: a committed batch has changed"
        key_json, value_json = operators.parse_schema(storage.read(names.state_schema(0)), "schema")
        assert (key_json, value_json) == (store().key_json, store(GROWN).value_json)
    print(f"{storage.url}: {len(whole.trace)} requests, {len(tried)} of {len(cases)} cases")


def test_the_driver_may_die_again_while_it_recovers(storage_spec: StorageSpec) -> None:
    if not storage_spec.url.startswith("/"):
        pytest.skip("the same requests as on disk, a hundred times slower")
    whole = FaultyStorage(open_storage(replace(storage_spec, url=f"{storage_spec.url}-whole")))
    World().run(whole, 0)
    cases = crash_matrix(whole.trace)
    died_twice = 0
    for number, ((first, fault), (second, again)) in enumerate(itertools.product(cases[::4], cases[::4])):
        storage, world = open_storage(replace(storage_spec, url=f"{storage_spec.url}-{number}")), World()
        for request, kind in ((first, fault), (second, again)):
            faulty = FaultyStorage(storage, {request.number: kind})
            with suppress(SimulatedCrash, StorageError):
                world.run(faulty, 0)
            world.assert_allowed(storage)
        died_twice += len(faulty.trace) > second.number
        world.run(storage, 0)
        world.run(storage, 1)
        world.assert_allowed(storage)
    print(f"{died_twice} cases in which the second driver died too")
    assert died_twice > 100


# -- several drivers ---------------------------------------------------------------------------------------------------


def at_once(*acts: Callable[[], object]) -> list[object]:
    """Start all at once, and return the result or the error of each."""
    start = Barrier(len(acts))

    def run(act: Callable[[], object]) -> object:
        start.wait()
        try:
            return act()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def test_drivers_that_create_a_root_at_once_get_the_same_one(storage_spec: StorageSpec) -> None:
    for number in range(3):
        spec = replace(storage_spec, url=f"{storage_spec.url}-{number}")
        roots = at_once(*[lambda spec=spec: opened(open_storage(spec))] * 4)
        bindings = {root.binding for root in roots if isinstance(root, StateRoot)}
        assert len(bindings) == 1, roots
        assert all(isinstance(root, StateRoot) for root in roots), roots


def test_one_of_two_queries_that_create_a_root_at_once_is_rejected(storage_spec: StorageSpec) -> None:
    for number in range(3):
        spec = replace(storage_spec, url=f"{storage_spec.url}-{number}")
        made = at_once(
            lambda spec=spec: opened(open_storage(spec), wanted()),
            lambda spec=spec: opened(open_storage(spec), wanted(query=OTHER_QUERY)),
        )
        (refused,) = (one for one in made if not isinstance(one, StateRoot))
        assert isinstance(refused, ForeignRoot)


def test_one_of_two_drivers_with_different_ids_fails_with_a_typed_error(storage: Storage, structure: Structure) -> None:
    roots = [opened(storage, structure=structure) for _ in range(2)]
    for root in roots:
        assert isinstance(root.begin(0, outer(0)), Ready)
    ids = [fresh_ids(root) for root in roots]
    ended = at_once(lambda: roots[0].commit(0, ids[0]), lambda: roots[1].commit(0, ids[1]))
    winner = ended.index(None)
    refused = ended[1 - winner]
    assert isinstance(refused, BatchConflict)
    assert "commits/0: batch 0 was committed by another driver" in str(refused)
    assert "stop one of the two drivers" in str(refused)
    assert ids_of(storage, 0) == ids[winner]


def test_two_drivers_that_commit_the_same_ids_both_succeed(storage: Storage, structure: Structure) -> None:
    roots = [opened(storage, structure=structure) for _ in range(2)]
    ids = fresh_ids(roots[0])
    for root in roots:
        root.begin(0, outer(0))
        root.commit(0, ids)
    assert ids_of(storage, 0) == ids


# -- parts of one root -------------------------------------------------------------------------------------------------


def test_a_batch_builds_on_the_ids_of_the_one_before(storage: Storage, structure: Structure) -> None:
    root = opened(storage, structure=structure)
    first = root.begin(0, outer(0))
    assert first == Ready({0: (EMPTY,) * PARTITIONS}, BatchTimes(batch=0, time_ms=first.times.time_ms))
    ids = fresh_ids(root)
    root.commit(0, ids)
    begun = root.begin(1, outer(1))
    assert isinstance(begun, Ready)
    of_v1 = structure is Structure.V1
    for base, mark in zip(begun.bases[0], ids[0], strict=True):
        assert base.is_same(VersionId(1, digest=mark) if of_v1 else VersionId(1, mark))
    assert root.head == 0


@pytest.mark.parametrize(("held", "asked"), [(Structure.V1, Structure.V2), (Structure.V2, Structure.V1)])
def test_a_root_of_the_other_structure_is_rejected_with_the_command_that_switches_it(
    storage: Storage, held: Structure, asked: Structure
) -> None:
    World(structure=held).run(storage, 0)
    before = {entry.path: storage.read(entry.path) for entry in storage.list("")}
    with pytest.raises(OtherStructure) as raised:
        opened(storage, batch=1, structure=asked).begin(1, outer(1))
    assert f"commits/0: the root has structure {held.name}, but the job requires {asked.name}" in str(raised.value)
    assert f"statekeeper switch {storage.url} --to {asked.value} --apply" in str(raised.value)
    assert {entry.path: storage.read(entry.path) for entry in storage.list("")} == before
    assert isinstance(opened(storage, batch=1, structure=held).begin(1, outer(1)), Ready)


def test_a_root_without_a_commit_gets_the_requested_structure(storage: Storage, structure: Structure) -> None:
    opened(storage, structure=Structure.V2).begin(0, outer(0))
    World(structure=structure).run(storage, 0)
    assert (logs.parse_commit(storage.read(names.commits(0)), "x").ids is None) == (structure is Structure.V1)


def test_a_v1_commit_without_digests_is_rejected(storage: Storage) -> None:
    World(structure=Structure.V1).run(storage, 0)
    storage.replace(names.commits(0), b'v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(CorruptFile, match="commits/0: has no digests"):
        opened(storage, batch=1, structure=Structure.V1).begin(1, outer(1))


def test_a_root_contains_the_metadata_that_spark_needs(storage: Storage) -> None:
    root = World().run(storage, 0)
    assert logs.parse_metadata(storage.read(names.QUERY_METADATA), "metadata") == root.binding.root_id
    conf = logs.parse_offsets(storage.read(names.offsets(0)), "offsets/0").conf
    assert conf == {**logs.STATE_CONF, logs.SHUFFLE_PARTITIONS: str(PARTITIONS)}
    described = operators.parse_operator(storage.read(names.operator_metadata(0)), "metadata")
    assert [(s.name, s.partitions) for s in described.stores] == [("default", PARTITIONS)]


def test_a_root_keeps_the_settings_of_the_query_that_do_not_describe_stores(storage: Storage) -> None:
    """A claim makes a lost checkpoint with them."""
    of_query = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
    of_stores = dict.fromkeys((*logs.STATE_CONF, "spark.sql.streaming.stateStore.of a later release"), "another")
    started = replace(outer(0), conf={**of_query, **of_stores})
    opened(storage).begin(0, started)
    conf = logs.parse_offsets(storage.read(names.offsets(0)), "offsets/0").conf
    assert conf == {**of_query, **logs.STATE_CONF, logs.SHUFFLE_PARTITIONS: str(PARTITIONS)}


def test_a_committed_batch_with_the_same_offsets_is_complete(storage: Storage) -> None:
    World().run(storage, 0)
    assert isinstance(opened(storage).begin(0, outer(0)), Done)


def test_the_same_offsets_planned_at_another_time_are_the_same_offsets(storage: Storage) -> None:
    World().run(storage, 0)
    later = replace(outer(0), timestamp_ms=1_800_000_000_000, conf={})
    assert isinstance(opened(storage).begin(0, later), Done)
    opened(storage).begin(1, outer(1))
    later = replace(outer(1), timestamp_ms=1_800_000_000_000)
    assert isinstance(opened(storage, batch=1).begin(1, later), Ready)


@pytest.mark.parametrize("committed", [True, False])
def test_other_offsets_for_the_same_batch_are_rejected(storage: Storage, committed: bool) -> None:
    root = opened(storage)
    root.begin(0, outer(0))
    if committed:
        root.commit(0, fresh_ids(root))
    with pytest.raises(BatchConflict, match=r"offsets/0: batch 0 has other source offsets.* -> .*same point in time"):
        opened(storage).begin(0, outer(0, source="trains"))


def test_the_root_of_another_query_is_foreign(storage: Storage) -> None:
    World().run(storage, 0)
    with pytest.raises(ForeignRoot, match=rf"belongs to query {QUERY}, not to {OTHER_QUERY}.* -> .*use a new root"):
        opened(storage, wanted(query=OTHER_QUERY))


def test_a_query_with_earlier_batches_creates_no_new_root(storage: Storage) -> None:
    with pytest.raises(RootLost, match=r"at batch 5, but the state root is missing.* -> restore the root"):
        opened(storage, batch=5)
    assert storage.list("") == []


def test_a_batch_without_its_predecessor_is_rejected(storage: Storage) -> None:
    World().run(storage, 0)
    with pytest.raises(RootLost, match=r"commits/1: batch 2 needs the state of batch 1"):
        opened(storage, batch=2).begin(2, outer(2))
    assert [entry.path for entry in storage.list("offsets")] == ["offsets/0"]


def test_a_gap_below_the_head_is_rejected(storage: Storage) -> None:
    world = World()
    for batch in range(3):
        world.run(storage, batch)
    storage.delete([names.commits(1)])
    with pytest.raises(RootLost, match="batch 1 is not in the commit log, but batch 2 is"):
        opened(storage, wanted(store(GROWN)), batch=1).begin(1, outer(1))


def test_a_committed_batch_without_its_offsets_is_rejected(storage: Storage) -> None:
    World().run(storage, 0)
    storage.delete([names.offsets(0)])
    with pytest.raises(RootLost, match="is missing, but batch"):
        opened(storage).begin(0, outer(0))


def test_a_commit_with_too_few_partitions_is_rejected(storage: Storage) -> None:
    root = opened(storage)
    root.begin(0, outer(0))
    root.commit(0, {0: (IDS.fresh(),)})
    with pytest.raises(CorruptFile, match="lists checkpoint ids for 1 partitions of operator 0, but the root has 3"):
        root.begin(1, outer(1))


def test_the_partition_count_of_the_root_applies(storage: Storage) -> None:
    World().run(storage, 0)
    root = opened(storage, wanted(partitions=8, key_groups=128))
    assert (root.binding.partitions, root.binding.key_groups) == (PARTITIONS, 64)
    ready = root.begin(1, outer(1))
    assert isinstance(ready, Ready)
    assert len(ready.bases[0]) == PARTITIONS
    assert logs.parse_offsets(storage.read("offsets/1"), "").conf[logs.SHUFFLE_PARTITIONS] == str(PARTITIONS)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b'{"format": 1}', b'{"format": 1, "stores": 7}'])
def test_an_invalid_binding_is_rejected_with_a_typed_error(storage: Storage, body: bytes) -> None:
    storage.create(names.BINDING, body)
    with pytest.raises((CorruptFile, UnknownFormatVersion), match="binding"):
        opened(storage)


def test_a_binding_whose_record_of_initial_rows_is_no_boolean_is_rejected(storage: Storage) -> None:
    root = opened(storage)
    body = json.loads(storage.read(names.BINDING)) | {"initial": "no"}
    storage.replace(names.BINDING, json.dumps(body).encode())
    assert root.binding.initial is False
    with pytest.raises(CorruptFile, match="is not a valid binding"):
        opened(storage)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"batch": "x"}'])
def test_an_invalid_pending_attempt_is_rejected_with_a_typed_error(storage: Storage, body: bytes) -> None:
    attempt = IDS.fresh()
    storage.create(names.pending(0, attempt), body)
    with pytest.raises(CorruptFile, match="pending"):
        opened(storage).pending(0, attempt)
