"""A query is started again with another `spark.sql.shuffle.partitions` (SPARK-53942), and verbs change its checkpoint.

In Spark 4.2, the setting changes only the stateless parts of a restarted query: the offset log contains the number of
partitions of the state. With an offset log of v2, the first run does not record it, and a restart then loses state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import parse_offsets
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.storage import open_storage
from tests.support.native import OPERATORS, NativeQuery, state
from tests.support.twins import SHUFFLE_PARTITIONS, clean, rescale, statekeeper, switch, without

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BEGAN_WITH, RESCALED_TO = 4, 5
OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
APPLY = ("--apply", "--confirm-stopped")

structures = pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)


def begun(spark: SparkSession, folder: Path, structure: Structure, offset_log: str) -> NativeQuery:
    query = NativeQuery(spark, folder, OPERATORS["aggregation"], {**structure.conf, OFFSET_LOG: offset_log})
    with_partitions(query, BEGAN_WITH)
    query.run(2)
    return query


def with_partitions(query: NativeQuery, partitions: int) -> None:
    """Set the number that the session of the next start has."""
    query.confs = {**query.confs, SHUFFLE_PARTITIONS: str(partitions)}


def recorded(query: NativeQuery) -> list[str | None]:
    """Return the number in the offsets of each batch."""
    paths = sorted(query.checkpoint.glob(f"{names.OFFSETS}/[0-9]*"), key=lambda path: int(path.name))
    return [parse_offsets(path.read_bytes(), path.name).conf.get(SHUFFLE_PARTITIONS) for path in paths]


def partitions_of(query: NativeQuery) -> int:
    heads = catalog.heads(open_storage(query.root))
    assert heads is not None
    return len(heads.heads)


@structures
def test_a_query_continues_after_each_verb_whatever_its_session_sets(
    spark: SparkSession, tmp_path: Path, structure: Structure
) -> None:
    twin = begun(spark, tmp_path / "twin", structure, "1")
    twin.run(8)
    query = begun(spark, tmp_path / "query", structure, "1")
    scratch = tmp_path / "scratch"
    with_partitions(query, 3)
    query.run(2)
    assert recorded(query) == [str(BEGAN_WITH)] * 4
    clean(open_storage(query.root), scratch)
    appended = rescale(query, RESCALED_TO, scratch)
    with_partitions(query, 7)
    query.run(2)
    assert (partitions_of(query), recorded(query)[-1]) == (RESCALED_TO, str(RESCALED_TO))
    clean(open_storage(query.root), scratch)
    switch(query, structure.other, scratch)
    query.confs = {**query.confs, **structure.other.conf}
    with_partitions(query, 2)
    query.run(2)
    last = max(query.outputs)
    query.run(2)
    statekeeper("rewind", query.root, "--to-batch", str(last), *APPLY)
    query.outputs = {batch: rows for batch, rows in query.outputs.items() if batch <= last}
    clean(open_storage(query.root), scratch)
    with_partitions(query, 1)
    query.run(0)
    assert without(query.outputs, appended) == twin.outputs
    assert partitions_of(query) == RESCALED_TO
    clean(open_storage(query.root), scratch)


def commits_wrong_batches(query: NativeQuery) -> None:
    with_partitions(query, BEGAN_WITH - 1)
    query.run(2)


def fails(query: NativeQuery) -> None:
    with_partitions(query, BEGAN_WITH + 3)
    with pytest.raises(StreamingQueryException):
        query.run(2)


@structures
@pytest.mark.parametrize("restart", [commits_wrong_batches, fails], ids=lambda one: one.__name__)
def test_a_restart_that_loses_state_is_found_and_the_rewind_of_the_finding_repairs_it(
    spark: SparkSession, tmp_path: Path, structure: Structure, restart: Callable[[NativeQuery], None]
) -> None:
    query = begun(spark, tmp_path / "query", structure, "2")
    query.saved("begun")
    query.run(2)
    outputs, end = dict(query.outputs), state(query)
    query.restored("begun")
    assert recorded(query) == [None, None]
    restart(query)
    found = audit.judge(audit.gather(open_storage(query.root))).findings
    [finding] = [one for one in found if one.kind is FindingKind.PARTITIONS_CHANGED]
    command = finding.action.partition("statekeeper ")[2].partition(". Then")[0].replace("ROOT", query.root)
    statekeeper(*command.split())
    clean(open_storage(query.root), tmp_path)
    with_partitions(query, BEGAN_WITH)
    query.outputs = {batch: rows for batch, rows in query.outputs.items() if batch <= 1}
    query.batches = 2
    query.run(2)
    assert (query.outputs, state(query)) == (outputs, end)
    assert recorded(query)[-1] == str(BEGAN_WITH)
    clean(open_storage(query.root), tmp_path)


@structures
def test_a_rescale_of_a_first_run_names_the_number_with_which_the_query_must_start(
    spark: SparkSession, tmp_path: Path, structure: Structure
) -> None:
    query = begun(spark, tmp_path / "query", structure, "2")
    given = ("rescale", query.root, "--partitions", str(RESCALED_TO), *APPLY)
    told = " ".join(statekeeper(*given, exit_code=3).split())
    assert f"start the query with {SHUFFLE_PARTITIONS}={BEGAN_WITH} for one more batch" in told
    query.run(1)
    statekeeper(*given)
    with_partitions(query, 2)
    query.run(1)
    assert (partitions_of(query), recorded(query)[-1]) == (RESCALED_TO, str(RESCALED_TO))
    clean(open_storage(query.root), tmp_path)
