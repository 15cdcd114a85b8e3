"""Ten sequences of verbs on real checkpoints, with Spark as the oracle. `make sequences` plays hundreds."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.interop.sequences.play import Plan, Player
from tests.support.twins import forgetful

pytestmark = pytest.mark.spark

SEEDS = (355, 363, 381, 470, 551)
"""Short sequences on five kinds of queries and jobs: `make nightly` plays others each night."""


@pytest.fixture(scope="module")
def player(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Player:
    return Player(spark, tmp_path_factory.mktemp("sequences"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sequence_of_verbs_leaves_a_checkpoint_from_which_spark_continues_like_a_twin(
    player: Player, seed: int
) -> None:
    result = player.play(Plan(seed))
    assert result.failure is None, f"{result}\nagain: {result.sequence.command}"


def test_a_sequence_detects_a_snapshot_that_lacks_a_key(player: Player) -> None:
    of_a_snapshot = Plan(197, (0, 1))
    with forgetful():
        failure = player.play(of_a_snapshot).failure
    assert failure is not None
    assert failure.kind == "state"
