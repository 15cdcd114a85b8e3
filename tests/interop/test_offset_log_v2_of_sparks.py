"""Clones, mirrors and rewinds of native queries whose offset log has version 2, on each Spark that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import parse_offsets
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.interop.sparks.remote import ENVIRONMENTS, RemoteQuery, Sparks, state
from tests.support.twins import clean, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

CONFS = {**Structure.V2.conf, "spark.sql.streaming.offsetLog.formatVersion": "2"}


@pytest.mark.parametrize("minor", ["4.2", "4.3"])
@pytest.mark.parametrize("name", ["aggregation", "join 2"])
def test_spark_continues_from_each_copy_and_after_a_rewind(tmp_path: Path, name: str, minor: str) -> None:
    if not (ENVIRONMENTS / minor / ".made").exists():
        pytest.skip(f"no environment of Spark {minor}: make sparks")
    with Sparks(tmp_path / "logs") as sparks:
        query = RemoteQuery(sparks.get(minor, "2"), tmp_path / "query", name, CONFS)
        original, mirror, clone = query.checkpoint, tmp_path / "mirror", tmp_path / "clone"
        query.run(3)
        batch = catalog.newest_batch(open_storage(query.root))
        assert batch is not None
        statekeeper("mirror", query.root, str(mirror), "--confirm-stopped")
        query.run(2)
        outputs, end = dict(query.outputs), state(query)
        path = names.offsets(batch)
        assert parse_offsets((original / path).read_bytes(), path).source_metadata is not None
        statekeeper("clone", query.root, str(clone), "--batch", str(batch))
        statekeeper("rewind", query.root, "--to-batch", str(batch), "--apply", "--confirm-stopped")
        for checkpoint in (mirror, clone, original):
            query.checkpoint = checkpoint
            query.outputs = {done: rows for done, rows in outputs.items() if done <= batch}
            query.run(0)
            assert query.outputs == outputs
            assert state(query) == end
            clean(open_storage(str(checkpoint)), tmp_path)
