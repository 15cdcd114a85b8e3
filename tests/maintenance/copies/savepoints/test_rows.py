"""Savepoints with rows: all kinds of roots, other readers, interruptions and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import (
    CorruptFile,
    DestinationNotEmpty,
    HalfSwitched,
    RefusedAsUnsafe,
    RootHeld,
    StatekeeperError,
    VersionNotLoadable,
)
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.savepoint_names import BEGUN, MANIFEST
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.savepoints import Tables
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.checkpoints import Checkpoint
from tests.support.clones import FEW_KINDS, FULL, KINDS, Roots, made, own
from tests.support.counted_state import SCHEMA, changes
from tests.support.maintainers import MAINTAINER
from tests.support.savepoints import as_model, manifest, recomputed, saved, table
from tests.support.switching import begin_a_switch

TABLE = "rows/0/default"


def on_disk(storage: Storage, folder: Path) -> Path:
    """A copy of all files of a savepoint."""
    for entry in storage.list(""):
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.download(entry.path, path)
    return folder


IN_CI = [("disk to disk", kind) for kind in (0, 2, 3, 4)] + [("s3 to s3", 2)]
CASES = [
    pytest.param(way, *kind.values, id=f"{way}, {kind.id}", marks=[] if (way, number) in IN_CI else [pytest.mark.slow])
    for way in ("disk to disk", "s3 to s3", "disk to s3", "s3 to disk")
    for number, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("roots", "kind", "structure", "in_batch_logs"), CASES, indirect=["roots"])
def test_a_savepoint_has_the_rows_of_its_batch(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    """The schema of these roots has an unknown type, so the tables have bytes."""
    source, destination = roots
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    before = source.list("", hidden=True)
    prepared = saved(source, destination, tmp_path, batch=5, stopped=True)
    assert source.list("", hidden=True) == before
    folder = on_disk(destination, tmp_path / "look")
    assert as_model(folder) == query.checkpoint.states[6]
    told = manifest(folder)
    assert (told["batch"], told["origin"], told["structure"]) == (5, kind, structure.value)
    assert told["rows"] == sum(map(len, query.checkpoint.states[6]))
    assert told["digest"] == recomputed(folder)
    assert "of a later Spark" in told["tables"][0]["problem"]
    assert prepared.plan.read_bytes > 0


@pytest.mark.parametrize(
    "verb", ["switch", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("snapshot", "gc", "repair"))]
)
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_a_savepoint_after_each_verb_has_the_newest_rows(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool, verb: str
) -> None:
    source, _ = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    for number in range(2):
        getattr(query, verb)()
        to = tmp_path / f"savepoint {number}"
        saved(source, open_storage(str(to)), tmp_path, stopped=True)
        assert as_model(to) == query.checkpoint.states[-1]
        assert manifest(to)["digest"] == recomputed(to)


@pytest.fixture
def counted(tmp_path: Path) -> Checkpoint:
    """Two stores with typed rows, three batches."""
    found = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", schema=SCHEMA)
    found.batch(changes(a=1, b=2), changes(z=9))
    found.batch(changes(a=None, c=3), changes())
    found.batch(changes(b=5), changes(y=0))
    return found


def test_rows_of_a_python_job_are_typed(counted: Checkpoint, tmp_path: Path) -> None:
    saved(counted.storage, open_storage(str(tmp_path / "to")), tmp_path)
    columns = ["partition", "key_key_group", "key_name", "key_day", "value_n", "value_tags"]
    found = [tuple(row.values()) for row in table(tmp_path / "to", TABLE).select(columns).to_pylist()]
    assert found == [
        (0, 1, "b", 7, 5, ["x"] * 5),
        (0, 1, "c", 7, 3, ["x"] * 3),
        (1, 1, "y", 7, 0, []),
        (1, 1, "z", 7, 9, ["x"] * 9),
    ]
    assert manifest(tmp_path / "to")["tables"][0]["columns"]["value_n"] == "value.n"


def test_the_digest_depends_on_rows_and_not_on_their_order(counted: Checkpoint, tmp_path: Path) -> None:
    def digest(name: str, batch: int) -> str:
        saved(counted.storage, open_storage(str(tmp_path / name)), tmp_path, batch=batch)
        return str(manifest(tmp_path / name)["digest"])

    first = digest("first", 2)
    assert digest("again", 2) == first
    assert digest("other", 1) != first
    counted.batch(changes(), changes(y=None))
    counted.batch(changes(), changes(y=0))
    assert digest("later", 4) == first
    assert digest("without y", 3) != first


def test_avro_rows_and_unknown_types_are_kept_as_bytes_with_the_reason(counted: Checkpoint, tmp_path: Path) -> None:
    storage = counted.storage
    storage.delete([names.BINDING])
    conf = {**logs.STATE_CONF, "spark.sql.streaming.stateStore.encodingFormat": "avro"}
    log = logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf=conf, sources=('"a source"',))
    storage.replace(names.offsets(2), logs.encode_offsets(log))
    saved(storage, open_storage(str(tmp_path / "to")), tmp_path)
    assert as_model(tmp_path / "to") == counted.states[-1]
    assert "encodes its rows as avro" in manifest(tmp_path / "to")["tables"][0]["problem"]


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    empty = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", schema=SCHEMA)
    empty.batch({}, {})
    saved(empty.storage, open_storage(str(tmp_path / "to")), tmp_path, tables=Tables.DELTA)
    found = table(tmp_path / "to", TABLE)
    assert (found.num_rows, found.schema.field("value_n").type) == (0, "int64")
    assert manifest(tmp_path / "to")["rows"] == 0


# -- other readers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tables", Tables)
def test_pandas_and_duckdb_read_the_tables(counted: Checkpoint, tmp_path: Path, tables: Tables) -> None:
    duckdb, pd = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    to = tmp_path / "to"
    saved(counted.storage, open_storage(str(to)), tmp_path, tables=tables)
    wanted = [("b", 5), ("c", 3), ("y", 0), ("z", 9)]
    frame = pd.read_parquet(to / TABLE)
    assert sorted(zip(frame["key_name"], frame["value_n"], strict=True)) == wanted
    query = f"SELECT key_name, value_n FROM '{to}/{TABLE}/*.parquet' ORDER BY key_name"
    assert duckdb.sql(query).fetchall() == wanted


def test_delta_readers_read_the_tables(counted: Checkpoint, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    to = tmp_path / "to"
    saved(counted.storage, open_storage(str(to)), tmp_path, tables=Tables.DELTA)
    found = deltalake.DeltaTable(str(to / TABLE))
    assert found.version() == 0
    rows = found.to_pyarrow_table().select(["key_name", "value_n"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("b", 5), ("c", 3), ("y", 0), ("z", 9)]


# -- interruptions -----------------------------------------------------------------------------------------------------


def test_a_second_run_reads_only_the_other_stores(counted: Checkpoint, tmp_path: Path) -> None:
    to = open_storage(str(tmp_path / "to"))
    saved(counted.storage, to, tmp_path)
    whole = to.read(MANIFEST)
    [one, _] = [entry.path for entry in to.list(f"{names.CONTROL}/rows") if not entry.path.endswith("begun.json")]
    to.delete([MANIFEST, one])
    counted.grow(1)
    prepared = verbs.savepoint.plan_rows(counted.storage, to, MAINTAINER)
    assert len(prepared.plan.to_read()) == 1
    assert (prepared.plan.begun.batch, len(prepared.plan.leftovers)) == (2, 1)
    verbs.savepoint.execute_rows(counted.storage, to, prepared, MAINTAINER, FULL, scratch=tmp_path)
    assert to.read(MANIFEST) == whole
    assert verbs.savepoint.plan_rows(counted.storage, to, MAINTAINER).plan.is_complete


# -- refusals ----------------------------------------------------------------------------------------------------------


def _with_a_file(source: Storage, destination: Storage) -> None:
    del source
    destination.create("notes.txt", b"of another person")


def _with_another_savepoint(source: Storage, destination: Storage) -> None:
    saved(source, destination, Path(destination.url.removeprefix("file://")).parent, batch=6)


def _with_a_damaged_record(source: Storage, destination: Storage) -> None:
    del source
    destination.create(BEGUN, b'{"format": 7}')


def _with_a_lost_changelog(source: Storage, destination: Storage) -> None:
    del destination
    source.delete([entry.path for entry in source.list("state/0/0") if entry.path.rpartition("/")[2].startswith("8_")])


def _with_another_maintainer(source: Storage, destination: Storage) -> None:
    prepared = verbs.savepoint.plan_rows(source, destination, MAINTAINER, batch=7)
    destination.create(BEGUN, prepared.plan.begun.encoded())
    lease.acquire(destination, "savepoint", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock)


def _half_switched(source: Storage, destination: Storage) -> None:
    begin_a_switch(source, Structure.V1, Path(destination.url.removeprefix("file://")).parent)


BAD: list[tuple[Callable[[Storage, Storage], None], type[StatekeeperError]]] = [
    (_with_a_file, DestinationNotEmpty),
    (_with_another_savepoint, DestinationNotEmpty),
    (_with_a_damaged_record, CorruptFile),
    (_with_a_lost_changelog, VersionNotLoadable),
    (_with_another_maintainer, RootHeld),
    (_half_switched, HalfSwitched),
]


@pytest.mark.parametrize(("spoil", "error"), BAD, ids=[spoil.__name__.strip("_") for spoil, _ in BAD])
def test_a_savepoint_that_cannot_be_made_writes_nothing(
    disks: Roots, tmp_path: Path, spoil: Callable[[Storage, Storage], None], error: type[StatekeeperError]
) -> None:
    source, destination = disks
    own(source, tmp_path)
    spoil(source, destination)
    before = destination.list("", hidden=True)
    with pytest.raises(error) as raised:
        saved(source, destination, tmp_path, batch=7)
    assert raised.value.path
    assert raised.value.hint
    assert destination.list("", hidden=True) == before


def test_the_source_and_the_destination_must_not_contain_each_other(disks: Roots, tmp_path: Path) -> None:
    source, _ = disks
    own(source, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="overlaps with the source"):
        saved(source, open_storage(str(tmp_path / "root" / "inside")), tmp_path)


def test_the_newest_batches_of_a_native_query_in_v1_need_a_confirmation(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    with pytest.raises(RefusedAsUnsafe, match="may still replace"):
        saved(source, destination, tmp_path, batch=7)
    saved(source, destination, tmp_path)
    assert as_model(tmp_path / "clone") == query.checkpoint.states[6]


def test_rows_that_contradict_the_schema_end_the_run(tmp_path: Path) -> None:
    found = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", schema=SCHEMA)
    found.batch(changes(a=1), {b"\x11\0\0\0\0": b"\0" + bytes(7)})
    with pytest.raises(CorruptFile, match="does not fit the schema"):
        saved(found.storage, open_storage(str(tmp_path / "to")), tmp_path)
    assert not (tmp_path / "to" / MANIFEST).exists()


def test_a_file_that_the_source_deletes_during_the_run_ends_it(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    prepared = verbs.savepoint.plan_rows(source, destination, MAINTAINER)
    _with_a_lost_changelog(source, destination)
    with pytest.raises(StatekeeperError) as raised:
        verbs.savepoint.execute_rows(source, destination, prepared, MAINTAINER, FULL, scratch=tmp_path)
    assert raised.value.hint
    assert destination.stat(MANIFEST) is None
