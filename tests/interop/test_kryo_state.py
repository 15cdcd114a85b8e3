"""`flatMapGroupsWithState` of the Java and Scala API with a state that Kryo serializes: each verb treats it as bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support import twins
from tests.support.kryo_query import OPERATOR, KryoQuery, load_class
from tests.support.native import DEFAULT_PROVIDER, state, views_as_json
from tests.support.twins import SHUFFLE_PARTITIONS, Oracle, Twin, clean, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Verb = Callable[[KryoQuery, Path], int | None]
"""Change the checkpoint, and return the number of an appended batch."""


def snapshots(query: KryoQuery, folder: Path) -> None:
    twins.take_snapshots(query, folder)


def rescaled(query: KryoQuery, folder: Path) -> int:
    return twins.rescale(query, 5, folder)


def switched(query: KryoQuery, folder: Path) -> None:
    other = Structure.V1 if query.confs[next(iter(Structure.V1.conf))] == "2" else Structure.V2
    twins.switch(query, other, folder)
    query.confs = {**query.confs, **other.conf}


def edited_and_undone(query: KryoQuery, folder: Path) -> None:
    run = twins.delete_a_key(query, folder)
    statekeeper("edit", query.root, "--undo", run, "--confirm-stopped")


def converted(query: KryoQuery, folder: Path) -> int:
    given = ("--to", "hdfs", "--apply", "--confirm-stopped", "--scratch", str(folder))
    statekeeper("convert", query.root, *given)
    query.confs = {**query.confs, **DEFAULT_PROVIDER}
    return max(query.outputs) + 1


@pytest.fixture(scope="module", params=Structure, ids=lambda one: one.value)
def ran(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[KryoQuery, Twin, Structure]:
    load_class(spark)
    structure: Structure = request.param
    folder = tmp_path_factory.mktemp("kryo")
    query = KryoQuery(spark, folder, OPERATOR, {**structure.conf, SHUFFLE_PARTITIONS: "2"})
    return query, twins.untouched(query, Oracle(partial(state, query), partial(views_as_json, query))), structure


@pytest.mark.parametrize(
    "verb", [snapshots, rescaled, switched, edited_and_undone, converted], ids=lambda one: one.__name__
)
def test_a_query_continues_after_each_verb_like_its_twin(
    ran: tuple[KryoQuery, Twin, Structure], tmp_path: Path, verb: Verb
) -> None:
    query, twin, structure = ran
    query.restored("middle")
    if verb is converted and structure is Structure.V2:
        told = " ".join(statekeeper("convert", query.root, "--to", "hdfs", exit_code=3).split())
        assert "supports only structure V1" in told
        return
    query.confs = {**query.confs, **structure.conf}
    confs = query.confs
    try:
        oracle = Oracle(partial(state, query), partial(views_as_json, query))
        twins.dump_is_what_spark_shows(query, oracle)
        twins.savepoint_is_what_spark_shows(query, oracle, tmp_path)
        appended = verb(query, tmp_path)
        query.run(2)
        outputs = query.outputs if appended is None else twins.without(query.outputs, appended)
        assert outputs == twin.outputs
        if verb is not converted:
            clean(open_storage(query.root), tmp_path)
    finally:
        query.confs = confs
