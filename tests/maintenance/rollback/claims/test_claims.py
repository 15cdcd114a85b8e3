"""Claims of the roots of Python jobs: the owner, its checkpoint, the former driver, and the refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import (
    CorruptFile,
    DestinationNotEmpty,
    ForeignRoot,
    NotACheckpoint,
    RefusedAsUnsafe,
    StatekeeperError,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.audits import audited
from tests.support.claims import NEW, bound, claimed, driver, outer
from tests.support.clones import FULL, cloned, made, own
from tests.support.maintained_query import Query
from tests.support.maintainers import MAINTAINER
from tests.support.repairs import contents
from tests.support.rewinds import rewound


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


def test_a_lost_checkpoint_is_made_from_the_logs_of_the_root(query: Query, root: Storage, checkpoint: Storage) -> None:
    claimed(root, checkpoint)
    held = bound(root)
    assert (held.query_id, held.claim is not None) == ("a query", True)
    assert logs.parse_metadata(checkpoint.read(names.QUERY_METADATA), "metadata") == "a query"
    assert [entry.path for entry in checkpoint.list("")] == ["commits/7", "metadata", "offsets/6", "offsets/7"]
    assert logs.parse_offsets(checkpoint.read(names.offsets(7)), "offsets/7") == outer(7)
    assert driver(root).begin(8, outer(8))
    root.delete([names.offsets(8)])
    query.grow(2)
    assert query.is_right()
    assert audited(root).findings == ()


def test_a_batch_that_has_begun_runs_again_with_the_same_input(
    query: Query, root: Storage, checkpoint: Storage
) -> None:
    del query
    driver(root).begin(8, replace(outer(8), sources=('"begun"',)))
    claimed(root, checkpoint)
    begun = logs.parse_offsets(checkpoint.read(names.offsets(8)), "offsets/8")
    assert begun.sources == ('"begun"',)
    assert catalog.newest_batch(checkpoint) == 7
    assert driver(root).begin(8, begun)


@pytest.mark.parametrize("query_id", [None, NEW])
def test_the_former_driver_stops_before_its_next_batch(
    query: Query, root: Storage, checkpoint: Storage, query_id: str | None
) -> None:
    former = driver(root)
    claimed(root, checkpoint, query_id)
    before = contents(root)
    with pytest.raises(ForeignRoot, match=r"was claimed for query .* at 20\d\d-.*no longer owns it"):
        former.begin(8, outer(8))
    assert contents(root) == before
    assert driver(root).begin(8, outer(8))
    del query


def test_a_rewind_with_a_new_id_also_stops_the_former_driver(query: Query, root: Storage, tmp_path: Path) -> None:
    del query
    former = driver(root)
    rewound(root, 6, tmp_path)
    with pytest.raises(ForeignRoot):
        former.begin(8, outer(8))


def test_another_query_id_becomes_the_owner_and_claims_back(query: Query, root: Storage) -> None:
    claimed(root, None, NEW)
    assert (bound(root).query_id, bound(root).claim and bound(root).claim.former) == (NEW, "a query")
    with pytest.raises(ForeignRoot, match="belongs to query 0badc0de"):
        binding.bind(root, replace(bound(root), query_id="a query"), batch=8, ids=RandomIds())
    claimed(root, None, "a query")
    assert bound(root).query_id == "a query"
    query.snapshot()
    query.grow(1)
    assert query.is_right()


def test_a_second_claim_changes_nothing(query: Query, root: Storage, checkpoint: Storage) -> None:
    del query
    claimed(root, checkpoint)
    before = contents(root), contents(checkpoint)
    assert verbs.claim.plan(root, checkpoint, FULL, MAINTAINER).plan.is_done
    claimed(root, checkpoint)
    assert (contents(root), contents(checkpoint)) == before


def test_a_query_id_that_contradicts_the_checkpoint_is_rejected(
    query: Query, root: Storage, checkpoint: Storage
) -> None:
    del query
    claimed(root, checkpoint)
    before = contents(root), contents(checkpoint)
    with pytest.raises(RefusedAsUnsafe, match=f"has the query id a query, not {NEW}; nothing was written"):
        claimed(root, checkpoint, NEW)
    assert (contents(root), contents(checkpoint)) == before


def test_the_first_snapshot_after_a_clone_and_a_claim_uploads_no_existing_table(query: Query, root: Storage) -> None:
    folder = query.folder
    other = open_storage(str(folder / "clone"))
    cloned(root, other, folder)
    claimed(other, None, NEW)
    tables = {entry.path for entry in other.list(names.STATE) if entry.path.endswith(".sst")}
    copy = Query(query.checkpoint, folder)
    copy.checkpoint.storage = other
    copy.grow(1)
    copy.snapshot()
    assert copy.is_right()
    new = {entry.path for entry in other.list(names.STATE) if entry.path.endswith(".sst")} - tables
    assert len(new) == len(query.checkpoint.stores), "one table of new rows for each store"


def test_the_owner_is_shown(query: Query, root: Storage, checkpoint: Storage, tmp_path: Path) -> None:
    del query

    def statekeeper(*arguments: str | Path) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)

    assert "owner: query a query since 20" in statekeeper("inspect", tmp_path / "root").output
    shown = statekeeper("claim", tmp_path / "root", "--checkpoint", tmp_path / "checkpoint")
    assert (shown.exit_code, "--apply --confirm-stopped" in shown.output.splitlines()[-1]) == (0, True)
    assert checkpoint.list("") == []
    apply = ("--apply", "--confirm-stopped", "--output", "json")
    done = statekeeper("claim", tmp_path / "root", "--checkpoint", tmp_path / "checkpoint", *apply)
    assert (done.exit_code, json.loads(done.stdout)["claimed"]) == (0, True)
    owner = json.loads(statekeeper("inspect", tmp_path / "root", "--output", "json").stdout)["owner"]
    assert (owner["query_id"], owner["former_query_id"], owner["claimed_by"]) == ("a query", "a query", "a test")
    assert statekeeper("claim", tmp_path / "root").exit_code == 2
    assert statekeeper("claim", tmp_path / "root", "--query-id", "x").exit_code == 2


# -- refusals ----------------------------------------------------------------------------------------------------------


def at(checkpoint: Storage, batch: int, sources: tuple[str, ...] = ('"a source"',)) -> None:
    checkpoint.create(names.QUERY_METADATA, logs.encode_metadata(NEW))
    checkpoint.create(names.offsets(batch), logs.encode_offsets(replace(outer(batch), sources=sources)))
    checkpoint.create(names.commits(batch), logs.encode_commit(logs.CommitLog(0, None)))


def begun(root: Storage, checkpoint: Storage) -> None:
    at(checkpoint, 7)
    root.create(names.offsets(8), logs.encode_offsets(outer(8)))


def of_files(root: Storage, checkpoint: Storage) -> None:
    del checkpoint
    path = names.offsets(7)
    root.replace(path, logs.encode_offsets(replace(outer(7), sources=('{"logOffset":7}',))))


REFUSED: list[tuple[str, Callable[[Storage, Storage], None], type[StatekeeperError], str]] = [
    (
        "a checkpoint that is behind",
        lambda _, there: at(there, 5),
        RefusedAsUnsafe,
        "newest batch of the checkpoint is 5",
    ),
    (
        "a checkpoint that is ahead",
        lambda _, there: at(there, 9),
        RefusedAsUnsafe,
        "newest batch of the checkpoint is 9",
    ),
    ("other input", lambda _, there: at(there, 7, ('"other"',)), RefusedAsUnsafe, "other source offsets"),
    ("a folder with other files", lambda _, there: _created(there, "x"), DestinationNotEmpty, "it contains x"),
    ("a batch that has begun", begun, RefusedAsUnsafe, "batch 8 has begun"),
    ("a source of files", of_files, RefusedAsUnsafe, "is in the lost checkpoint"),
]


def _created(storage: Storage, path: str) -> None:
    storage.create(path, b"")


@pytest.mark.parametrize(("spoil", "kind", "text"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_a_claim_that_would_lose_or_repeat_rows_is_rejected(
    query: Query,
    root: Storage,
    checkpoint: Storage,
    spoil: Callable[[Storage, Storage], None],
    kind: type[StatekeeperError],
    text: str,
) -> None:
    del query
    spoil(root, checkpoint)
    before = contents(root), contents(checkpoint)
    with pytest.raises(kind, match=text):
        claimed(root, checkpoint)
    assert (contents(root), contents(checkpoint)) == before


def test_a_native_checkpoint_and_a_running_job_are_rejected(root: Storage, checkpoint: Storage, tmp_path: Path) -> None:
    made(root, tmp_path, "native", Structure.V2, in_batch_logs=False)
    with pytest.raises(NotACheckpoint, match="it cannot be claimed"):
        claimed(root, checkpoint)
    other = open_storage(str(tmp_path / "own"))
    own(other, tmp_path / "own job")
    prepared = verbs.claim.plan(other, checkpoint, FULL, MAINTAINER)
    with pytest.raises(RefusedAsUnsafe, match="may be running"):
        verbs.claim.execute(other, checkpoint, prepared, MAINTAINER, run=RandomIds().fresh(), stopped=False)
    assert checkpoint.list("") == []


@pytest.mark.parametrize(
    "claim", ["1", [], {}, {"at": -1, "by": "", "former": ""}, {"at": 1e300, "by": "", "former": ""}]
)
def test_a_binding_with_an_invalid_claim_is_rejected(query: Query, root: Storage, claim: object) -> None:
    del query
    body = json.loads(root.read(names.BINDING)) | {"claim": claim}
    root.replace(names.BINDING, json.dumps(body).encode())
    with pytest.raises(CorruptFile):
        bound(root)
