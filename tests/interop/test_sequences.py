"""Ten sequences of verbs on real checkpoints, with Spark as the oracle. `make sequences` plays hundreds."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.interop.sequences.play import Plan, Player

pytestmark = pytest.mark.spark

SEEDS = (8, 35, 36, 63, 108, 124, 154, 173, 227, 240)
"""Together they have each verb, both structures, both providers, a file sink, a kill, damages, and jobs of both layouts."""


@pytest.fixture(scope="module")
def player(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Player:
    return Player(spark, tmp_path_factory.mktemp("sequences"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sequence_of_verbs_leaves_a_checkpoint_from_which_spark_continues_like_a_twin(
    player: Player, seed: int
) -> None:
    result = player.play(Plan(seed))
    assert result.failure is None, f"{result}\nagain: {result.sequence.command}"
