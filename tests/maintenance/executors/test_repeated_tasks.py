"""Copies and rewrites whose tasks run on other hosts, each twice, and a third time after the end of the verb.

So does Spark: it repeats a task after the loss of a host, or because the task is slow, and a lost host may work on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.savepoints import Tables
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import withdraw_if_late
from statekeeper.statestore.maintenance.verbs.clone import Clone
from statekeeper.statestore.maintenance.verbs.contract import Run, Verb, perform, prepare
from statekeeper.statestore.maintenance.verbs.edit import Edit
from statekeeper.statestore.maintenance.verbs.mirror import Mirror
from statekeeper.statestore.maintenance.verbs.repair import Repair
from statekeeper.statestore.maintenance.verbs.rewind import Rewind
from statekeeper.statestore.maintenance.verbs.rewrite import Revert as RevertRewrite
from statekeeper.statestore.maintenance.verbs.savepoint import SaveRows
from statekeeper.statestore.maintenance.verbs.switch import Switch
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import apart, verbs
from tests.support.apart import Apart
from tests.support.audits import audited
from tests.support.clones import FEW_KINDS, FULL, KINDS, Roots, made, query_of
from tests.support.dumped import dumped
from tests.support.edited_keys import a_key_of, leaves
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintained_query import Query
from tests.support.maintainers import maintainer
from tests.support.mirrors import require_right
from tests.support.s3_server import S3Server
from tests.support.savepoints import manifest
from tests.support.switching import structure_of
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
SPARKS = ["v1-aggregation", "v2-transformWithState"]
MORE_OF_SPARKS = ["v1-join-2", "v2-join-3", "v1-two-operators-zstd", "v2-sessions-snappy"]
CHECKPOINTS = [*SPARKS, *(pytest.param(one, marks=pytest.mark.slow) for one in MORE_OF_SPARKS)]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Apart:
    return apart.elsewhere(again=True, scratch=tmp_path / "another host")


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def roots(request: pytest.FixtureRequest, tmp_path: Path) -> Roots:
    if request.param == "disk":
        return open_storage(str(tmp_path / "root")), open_storage(str(tmp_path / "copy"))
    server: S3Server = request.getfixturevalue("s3_server")
    source, copy = (
        open_storage(f"s3://{server.make_bucket()}/{name}", options=server.options) for name in ("root", "copy")
    )
    return source, copy


def a_run(storage: Storage, scratch: Path, **how: Any) -> Run:
    return verbs.a_run(storage, FULL, maintainer(), scratch=scratch / "scratch", stopped=True, **how)


def files(storage: Storage) -> dict[str, bytes]:
    """All files but those of leases and holds."""
    return {
        entry.path: storage.read(entry.path)
        for entry in storage.list("", hidden=True)
        if not entry.path.startswith((names.LEASES, "_statekeeper/holds"))
    }


def without_control(storage: Storage) -> dict[str, bytes]:
    """The files of a copy that do not contain its own random id."""
    own = (names.CONTROL, names.QUERY_METADATA)
    return {path: body for path, body in files(storage).items() if not path.startswith(own)}


def of_spark(name: str, folder: Path) -> Path:
    return unpacked(FIXTURES / f"spark-4.2.0-{name}.zip", folder)


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_a_clone_is_right_and_a_stalled_copy_changes_nothing(
    roots: Roots, tmp_path: Path, elsewhere: Apart, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = roots
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    run = a_run(source, tmp_path, cluster=elsewhere, other=destination)
    done = perform(prepare(Clone(destination="copy"), run))
    copied = {file.path for file in done.plan.plan.files}
    assert files(destination).keys() == {*copied, names.CLONED}
    assert elsewhere.ran
    copy = query_of(query, destination, tmp_path / "of clone", 7)
    assert copy.is_right()
    copy.grow(2)
    copy.snapshot()
    before = files(destination)
    elsewhere.run_late()
    assert files(destination) == before
    assert copy.is_right()
    assert audited(destination, scratch=tmp_path / "deep").findings == ()


def test_a_clone_replaces_what_an_interrupted_run_has_copied_before_the_source_replaced_it(
    roots: Roots, tmp_path: Path, elsewhere: Apart
) -> None:
    source, destination = roots
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    run = a_run(source, tmp_path, other=destination)
    perform(prepare(Clone(destination="copy"), run))
    destination.delete([entry.path for of in (names.OFFSETS, names.COMMITS) for entry in destination.list(of)])
    changelog = max(entry.path for entry in destination.list(names.STATE) if entry.path.endswith(".changelog"))
    destination.replace(changelog, source.read(changelog) + b"of a task that Spark gave up")
    perform(prepare(Clone(destination="copy"), a_run(source, tmp_path, cluster=elsewhere, other=destination)))
    assert destination.read(changelog) == source.read(changelog)
    assert query_of(query, destination, tmp_path / "of clone", 7).is_right()
    elsewhere.run_late()
    assert destination.read(changelog) == source.read(changelog)


def test_a_file_that_is_deleted_after_the_plan_is_the_same_error_as_on_this_machine(
    tmp_path: Path, elsewhere: Apart
) -> None:
    source = open_storage(str(tmp_path / "root"))
    query = made(source, tmp_path, "own", Structure.V2, in_batch_logs=False)
    told = []
    for name, cluster in (("here", None), ("there", elsewhere)):
        destination = open_storage(str(tmp_path / name))
        run = a_run(source, tmp_path, cluster=cluster, other=destination)
        prepared = prepare(Clone(destination="copy"), run)
        last = [file for file in prepared.plan.plan.files if file.path.endswith(".changelog")][-1]
        body = source.read(last.path)
        with pytest.raises(StatekeeperError) as raised:
            perform(prepared, starting=lambda path=last.path: source.delete([path]))  # type: ignore[misc]
        told.append(str(raised.value))
        source.create(last.path, body)
        assert not destination.list(names.COMMITS)
    assert told[0] == told[1]
    assert query.is_right()


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_a_mirror_follows_its_source_beside_stalled_copies_of_earlier_runs(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = roots
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    schema, twin = names.state_schema(0), open_storage(str(tmp_path / "twin"))
    stalled = []
    for turn in range(3):
        executor = apart.elsewhere(again=True, scratch=tmp_path / f"host {turn}")
        for other, cluster in ((destination, executor), (twin, None)):
            perform(prepare(Mirror(destination="copy"), a_run(source, tmp_path, cluster=cluster, other=other)))
        for one in stalled:
            one.run_late()
        assert require_right(query, destination, tmp_path / f"turn {turn}") == 7 + 2 * turn
        assert without_control(destination) == without_control(twin)
        stalled.append(executor)
        query.grow(2)
        query.snapshot()
        query.gc()
        key, value = operators.parse_schema(source.read(schema), schema)
        source.replace(schema, operators.encode_schema(key, f"{value} "))  # as Spark does after a change of the schema


@pytest.mark.parametrize("tables", [Tables.PARQUET, pytest.param(Tables.DELTA, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [None, *CHECKPOINTS])
def test_the_tables_of_a_savepoint_have_the_bytes_that_this_machine_writes(
    name: str | None, tables: Tables, tmp_path: Path, elsewhere: Apart
) -> None:
    if name is None:
        root = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=4)
        root.grow(3, keys=300)
        source = root.storage
    else:
        source = open_storage(str(of_spark(name, tmp_path)))
    rows = []
    for folder, cluster in (("here", None), ("there", elsewhere)):
        told: list[Any] = []
        run = a_run(source, tmp_path, cluster=cluster, other=open_storage(str(tmp_path / folder)))
        done = perform(prepare(SaveRows(destination="copy", tables=tables), run), told.append)
        assert done.made is not None
        rows.append((done.made.rows, done.made.digest, sum(one for one in told if isinstance(one, int))))
    assert rows[0] == rows[1]
    assert rows[0][0] == rows[0][2] > 0
    here, there = (files(open_storage(str(tmp_path / one))) for one in ("here", "there"))
    parts = {path: body for path, body in here.items() if path.endswith(".parquet")}
    assert parts == {path: body for path, body in there.items() if path.endswith(".parquet")}
    assert [one["path"] for one in manifest(tmp_path / "there")["tables"]]
    elsewhere.run_late()
    assert files(open_storage(str(tmp_path / "there"))) == there


# -- rewrites ----------------------------------------------------------------------------------------------------------


def edit_of(root: Path) -> Edit:
    found = a_key_of(root)
    assert found is not None
    operator, key = found
    return Edit(operator=operator, delete=leaves(key), for_spark=Spark.V4_2)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_an_edit_changes_the_rows_that_it_changes_on_this_machine(name: str, tmp_path: Path, elsewhere: Apart) -> None:
    found, plans = [], []
    for folder, cluster in (("here", None), ("there", elsewhere)):
        root = of_spark(name, tmp_path / folder)
        verb = edit_of(root)
        before = dumped(root)
        done = perform(prepare(verb, a_run(open_storage(str(root)), tmp_path, cluster=cluster)))
        found.append(dumped(root))
        plans.append((done.plan.totals, done.plan.first))
        assert len(found[-1]) < len(before)
        assert audited(open_storage(str(root)), scratch=tmp_path / "deep").breaks == ()
    assert found[0] == found[1]
    assert plans[0] == plans[1]
    root = tmp_path / "there" / "checkpoint"
    zips = [path for path in files(open_storage(str(root))) if path.endswith(".zip")]
    elsewhere.run_late()
    assert [path for path in files(open_storage(str(root))) if path.endswith(".zip")] == zips
    assert dumped(root) == found[1]


def test_upserts_and_deletions_of_a_job_root_reach_their_stores(tmp_path: Path, elsewhere: Apart) -> None:
    root = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=8)
    root.grow(4)
    table = tmp_path / "rows.csv"
    lines = [f"key 3 {n},{1000 + n}" for n in range(10)]
    table.write_text("key,value\n" + "\n".join([*lines, "a new key,5"]) + "\n")
    run = a_run(root.storage, tmp_path, cluster=elsewhere)
    done = perform(prepare(Edit(operator=0, delete={"key": "key 2 5"}, upsert=str(table)), run))
    assert sum(done.plan.totals.values()) == 12
    assert len(elsewhere.ran) > 8
    root.rows |= {(0, f"key 3 {n}"): 1000 + n for n in range(10)} | {(0, "a new key"): 5}
    del root.rows[0, "key 2 5"]
    root.assert_right()
    root.grow(2)
    root.assert_right()
    assert audited(root.storage, scratch=tmp_path / "deep").breaks == ()


def test_a_snapshot_that_is_published_after_the_end_of_an_edit_is_deleted_again(
    tmp_path: Path, elsewhere: Apart
) -> None:
    root = of_spark("v1-aggregation", tmp_path)
    storage = open_storage(str(root))
    run = a_run(storage, tmp_path, cluster=elsewhere)
    perform(prepare(edit_of(root), run))
    rewrite = rewrite_journal.newest_journal(storage)
    assert rewrite is not None
    begun = rewrite.begun
    for store, name in begun.built.items():
        path = store.snapshot(name)
        storage.create(path, storage.read(names.quarantine(begun.run, path)))
        withdraw_if_late(storage, begun, store)
        assert storage.stat(path) is None
    perform(prepare(RevertRewrite(RewriteKind.EDIT, run.id), a_run(storage, tmp_path)))
    for store, name in begun.built.items():
        storage.create(store.snapshot(name), b"a late snapshot")
        withdraw_if_late(storage, begun, store)
        assert storage.stat(store.snapshot(name)) is None


def test_a_try_that_stalls_in_its_read_back_does_not_delete_the_snapshot_of_an_edit_that_has_ended(
    tmp_path: Path, elsewhere: Apart
) -> None:
    root = of_spark("v2-aggregation", tmp_path)
    storage = open_storage(str(root))
    run = a_run(storage, tmp_path, cluster=elsewhere)
    perform(prepare(edit_of(root), run))
    rewrite = rewrite_journal.newest_journal(storage)
    assert rewrite is not None
    for store in rewrite.begun.built:
        withdraw_if_late(storage, rewrite.begun, store)  # the first try has published, and wakes now
        assert storage.stat(store.snapshot(rewrite.begun.stores[store])) is not None
    assert audited(storage, scratch=tmp_path / "deep").breaks == ()


def switched(query: Query, run: Callable[..., Run], elsewhere: Apart) -> None:
    to = structure_of(query.storage).other
    done = perform(prepare(Switch(to=to, for_spark=Spark.V4_2), run(cluster=elsewhere)))
    assert done.refusals == ()
    assert structure_of(query.storage) is to


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), [KINDS[0], KINDS[3], KINDS[4]])
def test_a_query_is_switched_and_switched_back(
    tmp_path: Path, elsewhere: Apart, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    storage = open_storage(str(tmp_path / "root"))
    query = made(storage, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    for _ in range(2):
        switched(query, lambda **how: a_run(storage, tmp_path, **how), elsewhere)
        assert query.is_right()
        if kind == Origin.OWN.value:
            query.grow(2)
        zips = [path for path in files(storage) if path.endswith(".zip")]
        elsewhere.run_late()
        assert [path for path in files(storage) if path.endswith(".zip")] == zips
        assert query.is_right()
        assert audited(storage, scratch=tmp_path / "deep").breaks == ()


# -- proofs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Rewind(batch=5), Repair(deep=True)], ids=lambda verb: verb.name)
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_a_rewind_and_a_repair_find_the_damage_that_they_find_on_this_machine(
    tmp_path: Path,
    elsewhere: Apart,
    kind: str,
    structure: Structure,
    in_batch_logs: bool,
    verb: Verb[Any, Any, Any],
) -> None:
    storage = open_storage(str(tmp_path / "root"))
    made(storage, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    tables = [entry for entry in storage.list(names.STATE) if entry.path.endswith(".sst")]
    body = storage.read(tables[0].path)
    storage.replace(tables[0].path, body[:100] + bytes(100) + body[200:])
    reports = [
        prepare(verb, a_run(storage, tmp_path, cluster=cluster)).report().record for cluster in (None, elsewhere)
    ]
    for report in reports:
        report.pop("query_id", None)
    assert reports[0] == reports[1]
    assert elsewhere.ran
