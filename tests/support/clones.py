"""Clones of checkpoints in tests."""

from __future__ import annotations

import atexit
import copy
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import Entry, Storage, open_storage
from tests.support import verbs
from tests.support.checkpoints import Checkpoint
from tests.support.maintained_query import Query, maintained_query
from tests.support.maintainers import MAINTAINER

FULL = Policies(mode=Mode.FULL)


def cloned(
    source: Storage, destination: Storage, scratch: Path, *, by: Maintainer = MAINTAINER, **how: Any
) -> verbs.Seen:
    """Plan a clone and make it."""
    prepared = verbs.clone.plan(source, destination, FULL, by, **how)
    verbs.clone.execute(source, destination, prepared, by, scratch=scratch)
    return prepared


def at(made: Checkpoint, storage: Storage, folder: Path, batch: int) -> Checkpoint:
    """The model of a clone of a checkpoint at a batch."""
    twin = copy.copy(made)
    twin.storage, twin._folder = storage, folder
    twin.versions, twin.states = made.versions[: batch + 2], made.states[: batch + 2]
    return twin


def query_of(query: Query, storage: Storage, folder: Path, batch: int) -> Query:
    """The query that continues from a clone."""
    shadow = query.shadow
    if shadow is not None:
        shadow = at(shadow, shadow.storage, folder / "shadow job", batch)
    return Query(at(query.checkpoint, storage, folder / "job", batch), folder, shadow)


KINDS = [
    pytest.param("own", Structure.V1, False, id="own v1"),
    pytest.param("own", Structure.V2, False, id="own v2"),
    pytest.param("own", Structure.V2, True, id="own v2 in batch logs"),
    pytest.param("native", Structure.V1, False, id="native v1"),
    pytest.param("native", Structure.V2, False, id="native v2"),
]
FEW_KINDS = [
    kind if number in (2, 3) else pytest.param(*kind.values, id=kind.id, marks=pytest.mark.slow)
    for number, kind in enumerate(KINDS)
]
"""Outside of the slow tests: a Python job with batch logs, and a native query in structure V1."""


Roots = tuple[Storage, Storage]
"""A source and a destination."""


def made(storage: Storage, folder: Path, kind: str, structure: Structure, *, in_batch_logs: bool) -> Query:
    """Eight batches with a snapshot after the fifth. They are committed once in each process, and then copied."""
    return _base(kind, structure, in_batch_logs).copied_to(storage, folder)


def made_anew(storage: Storage, folder: Path, kind: str, structure: Structure, *, in_batch_logs: bool) -> Query:
    """As `made`, but another query with other ids, and with its local copies of the stores."""
    query = maintained_query(storage, folder, structure, Origin(kind), batches=5, in_batch_logs=in_batch_logs)
    query.snapshot()
    query.grow(3)
    return query


@cache
def _base(kind: str, structure: Structure, in_batch_logs: bool) -> Query:
    folder = Path(tempfile.mkdtemp(prefix="base of clones"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return made_anew(open_storage(str(folder / "root")), folder, kind, structure, in_batch_logs=in_batch_logs)


def own(storage: Storage, folder: Path) -> Query:
    return made(storage, folder, "own", Structure.V2, in_batch_logs=False)


def without_leases(storage: Storage) -> list[Entry]:
    return [entry for entry in storage.list("") if not entry.path.startswith(names.LEASES)]


def outer_checkpoint(storage: Storage, batches: int, query_id: str) -> None:
    """The checkpoint of the query of a Python job, as Spark writes it: it has no stores."""
    storage.create(names.QUERY_METADATA, logs.encode_metadata(query_id))
    for batch in range(batches):
        offsets = logs.OffsetLog(watermark_ms=0, timestamp_ms=batch, conf={}, sources=('"a source"',))
        storage.create(names.offsets(batch), logs.encode_offsets(offsets))
        storage.create(names.commits(batch), b'v1\n{"nextBatchWatermarkMs":0}')
