"""A failover between buckets: the bucket of a native query is deleted during a batch, and Spark continues from a mirror in
another bucket."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import OPERATORS, state
from tests.support.s3_server import S3Server
from tests.support.spark_on_s3a import BucketQuery, connect, environment
from tests.support.twins import clean, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


class LosesItsBucket(BucketQuery):
    """A query whose bucket is deleted while it writes the output of a batch."""

    def lose_bucket_in(self, batch: int) -> None:
        self.outputs = _Outage(self, batch)


class _Outage(dict[int, Counter[str]]):
    def __init__(self, query: LosesItsBucket, batch: int) -> None:
        super().__init__(query.outputs)
        self._query, self._batch = query, batch

    def __setitem__(self, batch: int, rows: Counter[str]) -> None:
        super().__setitem__(batch, rows)
        if batch == self._batch:
            self._query.delete_bucket()


@pytest.mark.parametrize("structure", Structure, ids=lambda structure: structure.value)
def test_spark_continues_from_the_mirror_in_another_bucket_like_its_twin(
    spark: SparkSession,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    structure: Structure,
) -> None:
    connect(spark, s3_server)
    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    query = LosesItsBucket(spark, tmp_path / "query", OPERATORS["aggregation"], structure.conf, server=s3_server)
    mirror = f"s3a://{s3_server.make_bucket()}/replica"
    run = ("mirror", query.root, mirror, "--scratch", str(tmp_path))
    query.run(3)
    statekeeper(*run)
    query.run(2)
    statekeeper(*run)
    newest = catalog.newest_batch(open_storage(query.root))
    mirrored = catalog.newest_batch(open_storage(mirror))
    assert newest is not None
    assert mirrored is not None
    # In structure V1, a mirror of a running query stays two batches behind.
    assert newest - mirrored == (2 if structure is Structure.V1 else 0)
    query.lose_bucket_in(newest + 2)
    with pytest.raises(StreamingQueryException):
        query.run(3)
    assert "the bucket does not exist" in statekeeper(*run, exit_code=1)
    clean(open_storage(mirror), tmp_path)
    query.checkpoint = mirror
    # The sink must forget the batches that the mirror lacks.
    query.outputs = {batch: rows for batch, rows in query.outputs.items() if batch <= mirrored}
    query.run(0)
    outputs, end = dict(query.outputs), state(query)
    query.checkpoint, query.outputs = str(tmp_path / "twin"), {}
    query.run(0)
    assert max(outputs) == max(query.outputs) > newest + 1
    assert outputs == {batch: query.outputs[batch] for batch in outputs}
    assert state(query) == end
