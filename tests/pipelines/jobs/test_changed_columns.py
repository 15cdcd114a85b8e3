"""A job whose code adds, renames and widens columns of the state: the first batch of the next start changes all rows."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from statekeeper.pipelines import ColumnMapping, DeltaSink, Ttl, Update, planned_changes
from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.base.errors import ObjectMissing, SchemaMismatch
from statekeeper.statestore.format.structure import Structure
from tests.support.adding_operator import OUTPUT, ROWS, STATE, adding, rows_of, totals_of, totals_table
from tests.support.streams import Seen, Stream
from tests.support.twins import statekeeper

pytestmark = pytest.mark.spark
# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WIDE = pa.decimal128(20, 0)
CHANGED = pa.schema([("note", pa.string()), ("n", pa.int64()), ("most", pa.int64()), ("total", WIDE)])
MAPPING = ColumnMapping(renamed={"count": "n"}, widened=["total"])
WORDS = (
    "store 'default': adds note: string, renames count to n, adds most: long, widens total from long to decimal(20,0)"
)


def add_up_changed(rows: pa.Table, state: pa.Table) -> Update:
    """The totals of `add_up` from the changed columns. A row that the function writes has a note."""
    old = (
        state.select(["key"]).append_column("count", state["n"]).append_column("total", state["total"].cast(pa.int64()))
    )
    table = totals_table(totals_of(rows, old))
    count = table.num_rows
    columns = {
        "key": table["key"],
        "note": pa.repeat("new", count),
        "n": table["count"],
        "most": pa.nulls(count, pa.int64()),
        "total": table["total"].cast(WIDE),
    }
    return Update(table, pa.table(columns))


def changed(mapping: ColumnMapping = MAPPING, state: pa.Schema = CHANGED) -> StatefulOperator:
    return adding(add_up_changed, state=state, column_mapping=mapping)


LAYOUTS = [
    pytest.param(Structure.V2, LogLayout.STORES, id="v2"),
    pytest.param(Structure.V2, LogLayout.BATCH, id="v2 with batch logs", marks=pytest.mark.slow),
    pytest.param(Structure.V1, LogLayout.STORES, id="v1", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("structure", "log"), LAYOUTS)
def test_all_rows_have_the_declared_columns_after_the_first_batch_even_if_it_is_repeated(
    structure: Structure, log: LogLayout, delta_session: SparkSession, tmp_path: Path
) -> None:
    def die(batch: int, phase: Phase) -> None:
        if (batch, phase) == (1, Phase.PENDING_WRITTEN):
            raise ConnectionError("the driver dies here")

    stream = Stream(delta_session, tmp_path, ROWS)
    stream.structure, stream.log = structure, log
    with pytest.raises(ObjectMissing, match=r"binding\.json"):
        planned_changes(changed(), str(stream.root))
    stream.append(rows_of((1, 10), (2, 20), (None, 40)))
    stream.run(adding())
    assert [str(one) for one in planned_changes(changed(), str(stream.root))] == [WORDS]
    assert planned_changes(adding(), str(stream.root)) == ()
    stream.append(rows_of((1, 1)))
    with pytest.raises(ConnectionError):
        stream.run(changed(), seen=Seen(die))
    assert stream.state() == {(1,): (1, 10), (2,): (1, 20), (None,): (1, 40)}
    # The file of the batch has the mapping: the batch is repeated with it, also if the code has lost it.
    [report] = stream.run(changed(ColumnMapping()))
    assert report.notes == (f"{WORDS}; 3 rows were rewritten",)
    newer = {
        (1,): ("new", 2, None, Decimal(11)),
        (2,): (None, 1, None, Decimal(20)),
        (None,): (None, 1, None, Decimal(40)),
    }
    assert stream.state() == newer
    assert planned_changes(changed(), str(stream.root)) == (), "the entries of the mapping may stay"
    stream.append(rows_of((2, 2)))
    [report] = stream.run(changed())
    assert report.notes == ()
    assert stream.state() == {**newer, (2,): ("new", 2, None, Decimal(22))}
    stream.append(rows_of((2, 2)))
    with pytest.raises(SchemaMismatch, match=r"had before batch 1, which changed them.* rewind it to batch 0"):
        stream.run(adding())


def rewind(stream: Stream, folder: Path) -> None:
    """Rewind root and checkpoint to batch 0."""
    how = ("--to-batch", "0", "--apply", "--confirm-stopped", "--scratch", str(folder / "scratch"), "--output", "json")
    shown = statekeeper("rewind", str(stream.root), *how)
    query_id = json.loads(shown[shown.index("{") :])["query_id"]
    statekeeper("rewind", str(stream.checkpoint), "--query-id", query_id, *how)


@pytest.mark.slow
def test_the_verbs_of_a_stopped_job_work_after_a_change_of_columns_and_a_rewind_restores_the_former_ones(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    root, scratch = str(stream.root), ("--scratch", str(tmp_path / "scratch"))
    apply = ("--apply", "--confirm-stopped")
    stream.append(rows_of((1, 10), (2, 20), (3, 30)))
    stream.run(adding())
    statekeeper("snapshot", root, *scratch)
    stream.append(rows_of((1, 1)))
    stream.run(changed())
    statekeeper("snapshot", root, *scratch)
    statekeeper("rescale", root, "--partitions", "5", *apply, *scratch)
    stream.append(rows_of((2, 2)))
    stream.run(changed())
    assert stream.state() == {
        (1,): ("new", 2, None, Decimal(11)),
        (2,): ("new", 2, None, Decimal(22)),
        (3,): (None, 1, None, Decimal(30)),
    }
    file = tmp_path / "changes.toml"
    file.write_text('[stores.default]\ndrop = ["most"]\n')
    statekeeper("evolve", root, "--schema", str(file), *apply, *scratch)
    shorter = pa.schema([field for field in CHANGED if field.name != "most"])

    def add_up_shorter(rows: pa.Table, state: pa.Table) -> Update:
        update = add_up_changed(rows, state)
        return Update(update.output, update.state.drop_columns(["most"]))

    with pytest.raises(
        SchemaMismatch, match="declares the columns that the root had before batch 2, which changed them"
    ):
        stream.run(changed())
    stream.append(rows_of((3, 3)))
    stream.run(adding(add_up_shorter, state=shorter))
    assert stream.state()[(3,)] == ("new", 2, Decimal(33))
    statekeeper("audit", root, "--deep", *scratch)
    statekeeper("savepoint", root, str(tmp_path / "rows"), "--rows", *scratch)
    rewind(stream, tmp_path)
    DeltaTable(stream.facts).restore(0)
    stream.run(adding(), sink=DeltaSink(stream.facts, continue_at_batch=1))
    assert stream.state() == {(1,): (2, 11), (2,): (2, 22), (3,): (2, 33)}


@pytest.mark.slow
def test_the_former_job_can_start_again_although_the_first_batch_of_the_changed_job_failed(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    """A deploy whose code fails in its first batch is rolled back."""

    def fail(rows: pa.Table, state: pa.Table) -> Update:
        raise ZeroDivisionError("an error in the new code")

    stream = Stream(delta_session, tmp_path, ROWS)
    stream.append(rows_of((1, 10)))
    stream.run(adding())
    stream.append(rows_of((1, 1)))
    with pytest.raises(Exception, match="an error in the new code"):
        stream.run(adding(fail, state=CHANGED, column_mapping=MAPPING))
    stream.run(adding())
    assert stream.state() == {(1,): (2, 11)}


@pytest.mark.slow
def test_a_rewind_removes_the_change_of_columns_of_an_attempt_that_was_not_committed(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    def die(batch: int, phase: Phase) -> None:
        if (batch, phase) == (1, Phase.PENDING_WRITTEN):
            raise ConnectionError("the driver dies here")

    stream = Stream(delta_session, tmp_path, ROWS)
    stream.append(rows_of((1, 10)))
    stream.run(adding())
    stream.append(rows_of((1, 1)))
    with pytest.raises(ConnectionError):
        stream.run(changed(), seen=Seen(die))
    with pytest.raises(SchemaMismatch, match="had before batch 1, which changed them"):
        stream.run(adding())
    line = "columns of store default since batch 1, which is not committed: note: string, n: long"
    assert line in statekeeper("inspect", str(stream.root))
    rewind(stream, tmp_path)
    stream.run(adding())
    assert stream.state() == {(1,): (2, 11)}


@pytest.mark.slow
def test_rows_keep_their_expiry_when_the_columns_of_a_store_with_a_ttl_change(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.append(rows_of((1, 10), (2, 20)))
    stream.run(adding(ttl=Ttl("1d")))
    before = stream.state()
    stream.append(rows_of((1, 1)))
    stream.run(adding(add_up_changed, state=CHANGED, column_mapping=MAPPING, ttl=Ttl("1d")))
    after = stream.state()
    assert after[(2,)] == (before[(2,)][0], None, 1, None, Decimal(20))
    assert after[(1,)][0] > before[(1,)][0]
    assert after[(1,)][1:] == ("new", 2, None, Decimal(11))


def test_a_mapping_that_does_not_fit_the_declaration_is_rejected() -> None:
    for mapping, problem in [
        (ColumnMapping(renamed={"a": "b"}), "names the column 'b', which `state` does not declare"),
        (ColumnMapping(widened=["key"]), "names the column 'key', which `state` does not declare"),
        (ColumnMapping(renamed={"count": "total"}), "renames 'count' to 'total', but `state` also declares 'count'"),
        (ColumnMapping(renamed={"a": "count", "b": "count"}), "renames a and b to 'count'"),
        ({"more": MAPPING}, "names the store 'more', which the operator does not have"),
    ]:
        with pytest.raises(SchemaMismatch, match=problem):
            adding(state=STATE, output=OUTPUT, column_mapping=mapping)
