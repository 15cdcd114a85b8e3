"""Tests against real Spark run in the session that all tests share."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(delta_session: SparkSession) -> SparkSession:
    return delta_session
