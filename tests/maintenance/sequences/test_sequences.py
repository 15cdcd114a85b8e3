"""Every sequence of two verbs: maintenance is green after each, and audit, gc and inspect agree.

A tour calls every verb after every other one. Between two verbs the query commits batches and is maintained as the Dagster
job `maintain_query` does it.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.maintained_query import Query, maintained_query
from tests.support.s3_server import S3Server

VERBS = ("snapshot", "gc", "switch", "repair", "rewind")
TOUR = (
    *("snapshot", "snapshot", "gc", "snapshot", "switch", "snapshot", "repair", "snapshot", "rewind"),
    *("gc", "gc", "switch", "gc", "repair", "gc", "rewind", "switch", "switch"),
    *("repair", "switch", "rewind", "repair", "repair", "rewind", "rewind", "snapshot"),
)
"""Contains each of the 25 pairs of consecutive verbs once."""


@pytest.mark.parametrize("structure", Structure)
@pytest.mark.parametrize("origin", Origin)
def test_maintenance_is_green_after_a_switch(tmp_path: Path, origin: Origin, structure: Structure) -> None:
    query = maintained_query(open_storage(str(tmp_path / "root")), tmp_path, structure, origin, batches=12)
    query.switch()
    for _ in range(3):
        query.grow(4)
        assert query.red_checks(100) == []
    assert query.is_right()


@pytest.mark.parametrize(
    ("origin", "structure"),
    [
        pytest.param(Origin.OWN, Structure.V1, marks=pytest.mark.slow),
        (Origin.OWN, Structure.V2),
        (Origin.NATIVE, Structure.V1),
        pytest.param(Origin.NATIVE, Structure.V2, marks=pytest.mark.slow),
    ],
)
def test_maintenance_is_green_after_every_verb_that_follows_any_other(
    tmp_path: Path, origin: Origin, structure: Structure
) -> None:
    tour(maintained_query(open_storage(str(tmp_path / "root")), tmp_path, structure, origin, batches=5))


@pytest.mark.parametrize("where", ["local", pytest.param("s3", marks=pytest.mark.slow)])
def test_maintenance_of_batch_logs_is_green_after_every_verb(
    tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    storage = open_storage(str(tmp_path / "root"))
    if where == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        storage = open_storage(f"s3://{server.make_bucket()}/root", options=server.options)
    query = maintained_query(storage, tmp_path, Structure.V2, Origin.OWN, batches=5, in_batch_logs=True)
    assert storage.list(names.BATCH_LOGS)
    tour(query)


@pytest.mark.slow
def test_maintenance_on_s3_is_green_after_every_verb(s3_server: S3Server, tmp_path: Path) -> None:
    storage = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
    tour(maintained_query(storage, tmp_path, Structure.V1, Origin.NATIVE, batches=5))


def tour(query: Query) -> None:
    for number, verb in enumerate(TOUR):
        getattr(query, verb)()
        assert query.is_right(), (number, verb)
        query.grow(3)
        assert query.red_checks(100 if number % 2 else 4) == [], (number, verb)
        assert query.is_right(), (number, verb)


def test_a_tour_contains_each_pair_of_verbs() -> None:
    assert {*pairwise(TOUR)} == {(one, other) for one in VERBS for other in VERBS}
