"""Claims beside other verbs and beside a job that still runs: rewinds with a sink, mirrors, retention, stale plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.base.errors import MirrorStarted, RefusedAsUnsafe, StatekeeperError, StorageError
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs as passes
from tests.support.audits import audited
from tests.support.claims import NEW, bound, claimed, driver, execute_claim, outer, planned_claim
from tests.support.clones import FULL, cloned, own
from tests.support.commands import statekeeper
from tests.support.maintained_query import Query
from tests.support.maintainers import MAINTAINER
from tests.support.mirrors import mirrored
from tests.support.repairs import contents
from tests.support.rewinds import planned, rewound

THIRD = "0badc0de-0000-4000-8000-00000000000b"


@pytest.fixture
def root(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "checkpoint"))


@pytest.fixture
def query(root: Storage, tmp_path: Path) -> Query:
    """Eight batches; the newest is batch 7."""
    return own(root, tmp_path)


# -- former ids --------------------------------------------------------------------------------------------------------


def table_of(folder: Path, *writers: str) -> Storage:
    """A Delta table: version 0 without rows, then one batch of each of these applications, from batch 0 on."""
    table = open_storage(str(folder / "table"))
    table.create(f"_delta_log/{0:020}.json", b'{"commitInfo":{"operation":"CREATE TABLE"}}')
    for batch, writer in enumerate(writers):
        action = {"txn": {"appId": f"statekeeper-{writer}", "version": batch}}
        table.create(f"_delta_log/{batch + 1:020}.json", json.dumps(action).encode())
    return table


def test_a_rewind_after_claims_finds_the_version_of_the_table_by_the_former_ids(
    query: Query, root: Storage, tmp_path: Path
) -> None:
    claimed(root, None, NEW)
    query.grow(2)
    claimed(root, None, THIRD)
    query.grow(1)
    table = table_of(tmp_path, *["a query"] * 8, *[NEW] * 2, THIRD)
    found = planned(root, 5, tmp_path, sink=table).sink
    assert found is not None
    assert (found.version, found.holds) == (6, 10)
    rewound(root, 9, tmp_path)
    root.delete([entry.path for entry in root.list(names.HISTORY)])
    assert bound(root).former_ids == ("a query", NEW, THIRD)
    found = planned(root, 5, tmp_path, sink=table).sink
    assert found is not None
    assert found.version == 6


def test_a_rewind_refuses_a_table_with_batches_of_an_unknown_job(query: Query, root: Storage, tmp_path: Path) -> None:
    del query
    with pytest.raises(RefusedAsUnsafe, match="cannot tell which version of the table to restore"):
        planned(root, 5, tmp_path, sink=table_of(tmp_path, *["a query"] * 6, THIRD, "a query"))


def test_a_clone_with_a_new_id_knows_the_id_of_its_source(query: Query, root: Storage, tmp_path: Path) -> None:
    del query
    other = open_storage(str(tmp_path / "clone"))
    cloned(root, other, tmp_path, new_query=True)
    assert bound(other).former_ids == ("a query",)


def test_a_binding_of_an_earlier_release_has_the_former_id_of_its_claim(query: Query, root: Storage) -> None:
    del query
    claimed(root, None, NEW)
    body = json.loads(root.read(names.BINDING))
    del body["formerQueries"]
    assert binding.parse_binding(json.dumps(body).encode()).former_ids == ("a query",)


def test_a_rerun_of_an_interrupted_claim_keeps_the_former_id(query: Query, root: Storage, tmp_path: Path) -> None:
    del query

    class Down:
        def __init__(self, storage: Storage) -> None:
            self._storage = storage

        def __getattr__(self, name: str) -> Any:
            return getattr(self._storage, name)

        def create(self, path: str, data: bytes, **whose: str | None) -> None:
            raise StorageError("is down", path=path)

    checkpoint = open_storage(str(tmp_path / "checkpoint"))
    with pytest.raises(StorageError, match="is down"):
        claimed(root, Down(checkpoint), NEW)
    claimed(root, checkpoint, NEW)
    held = bound(root)
    assert (held.query_id, held.claim and held.claim.former, held.former_ids) == (NEW, "a query", ("a query",))


# -- mirrors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grows", [False, True])
def test_a_run_of_a_mirror_does_not_revert_a_claim_of_the_mirror(
    query: Query, root: Storage, checkpoint: Storage, tmp_path: Path, grows: bool
) -> None:
    mirror = open_storage(str(tmp_path / "mirror"))
    mirrored(root, mirror, tmp_path)
    query.grow(1)
    stale = passes.mirror.plan(root, mirror, FULL, MAINTAINER)
    claimed(mirror, checkpoint, NEW)
    before = contents(mirror)
    query.grow(int(grows))
    assert isinstance(passes.mirror.plan(root, mirror, FULL, MAINTAINER).refusals[0], MirrorStarted)
    with pytest.raises(MirrorStarted, match=f"belongs to query {NEW}"):
        mirrored(root, mirror, tmp_path)
    with pytest.raises(MirrorStarted, match=f"belongs to query {NEW}"):
        passes.mirror.execute(root, mirror, stale, MAINTAINER, scratch=tmp_path)
    assert contents(mirror) == before
    assert driver(mirror).begin(8, outer(8))


def test_a_claim_with_the_same_id_also_ends_a_mirror(
    query: Query, root: Storage, checkpoint: Storage, tmp_path: Path
) -> None:
    del query
    mirror = open_storage(str(tmp_path / "mirror"))
    mirrored(root, mirror, tmp_path)
    shown = statekeeper("claim", tmp_path / "mirror", "--checkpoint", tmp_path / "checkpoint")
    assert f"this root is a mirror of {root.url}. Stop the schedule of that mirror" in shown.output
    claimed(mirror, checkpoint)
    with pytest.raises(MirrorStarted):
        mirrored(root, mirror, tmp_path)


# -- stale plans -------------------------------------------------------------------------------------------------------


def test_a_claim_refuses_if_the_former_job_has_continued_since_the_plan(
    query: Query, root: Storage, checkpoint: Storage
) -> None:
    prepared = planned_claim(root, checkpoint)
    query.grow(1)
    before = contents(root), contents(checkpoint)
    with pytest.raises(RefusedAsUnsafe, match="is no longer the same as in the plan"):
        execute_claim(root, checkpoint, prepared)
    assert (contents(root), contents(checkpoint)) == before


def test_a_claim_with_another_id_refuses_if_a_batch_has_begun_since_the_plan(query: Query, root: Storage) -> None:
    del query
    former = driver(root)
    prepared = planned_claim(root, None, NEW)
    former.begin(8, outer(8))
    with pytest.raises(RefusedAsUnsafe, match="batch 8 has begun"):
        execute_claim(root, None, prepared)
    assert bound(root).query_id == "a query"


def test_a_claim_detects_a_batch_that_the_former_job_begins_during_the_claim(
    query: Query, root: Storage, checkpoint: Storage
) -> None:
    """The driver compares the owner, the binding is replaced, and the driver writes its offsets."""
    del query

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(root, name)

        def replace(self, path: str, data: bytes, **whose: str | None) -> None:
            root.replace(path, data, **whose)
            if path == names.BINDING and not begun:
                begun.append(path)
                root.create(names.offsets(8), root.read(names.offsets(7)))

    begun: list[str] = []
    with pytest.raises(RefusedAsUnsafe, match="began batch 8 during the claim; nothing was changed"):
        claimed(Late(), checkpoint, NEW)
    assert (bound(root).query_id, bound(root).claim, checkpoint.list("")) == ("a query", None, [])


# -- other folders than a checkpoint -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["root", "root/state/checkpoint", "", "another root"])
def test_a_state_root_is_not_the_checkpoint_of_a_query(query: Query, root: Storage, tmp_path: Path, place: str) -> None:
    cloned(root, open_storage(str(tmp_path / "another root")), query.folder, new_query=True)
    before = contents(root)
    with pytest.raises(RefusedAsUnsafe, match="so it cannot be the checkpoint of the query; nothing was written"):
        claimed(root, open_storage(str(tmp_path / place)))
    assert contents(root) == before
    assert audited(root).findings == ()


def test_an_owner_has_the_form_of_a_query_id(query: Query, root: Storage, checkpoint: Storage) -> None:
    del query
    with pytest.raises(StatekeeperError, match="'no uuid' is not a UUID"):
        claimed(root, checkpoint, "no uuid")
    assert checkpoint.list("") == []


# -- retention ---------------------------------------------------------------------------------------------------------


def test_a_root_of_which_one_version_is_retained_can_be_claimed(
    query: Query, root: Storage, checkpoint: Storage
) -> None:
    query.snapshot()
    policies = Policies(mode=Mode.FULL, retention=RetentionPolicy(versions=1, grace_seconds=0.0))
    for _ in range(2):
        prepared = passes.retention.plan(root, policies, clock=MAINTAINER.clock)
        passes.retention.execute(root, prepared, MAINTAINER)
    assert [entry.path for folder in (names.COMMITS, names.OFFSETS) for entry in root.list(folder)] == [
        "commits/7",
        "offsets/6",
        "offsets/7",
    ]
    claimed(root, checkpoint)
    assert [entry.path for entry in checkpoint.list("")] == ["commits/7", "metadata", "offsets/6", "offsets/7"]
