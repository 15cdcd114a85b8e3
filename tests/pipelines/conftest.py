"""Small streams and jobs, in the structures in turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from tests.support.adding_operator import ROWS
from tests.support.counting import ONE_JOB, V1, V2, Job, variant
from tests.support.streams import Stream


@pytest.fixture(params=[Structure.V2, pytest.param(Structure.V1, marks=pytest.mark.slow)], ids=lambda s: s.value)
def stream(delta_session, tmp_path, request):
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.structure = request.param
    return stream


@pytest.fixture(params=[V2, pytest.param(V1, marks=pytest.mark.slow), pytest.param(ONE_JOB, marks=pytest.mark.slow)])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return variant(tmp_path, request.param)


@pytest.fixture
def session(delta_session: SparkSession) -> SparkSession:
    return delta_session
