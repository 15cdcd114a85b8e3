"""A short night of a company in CI; `make company-night` spends long ones, also through Dagster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.company_night import SMALL, Night, spend


@pytest.mark.timeout(300)
def test_each_of_ten_damages_is_told_once_to_its_team_and_all_other_queries_are_maintained_although_processes_are_killed(
    tmp_path: Path,
) -> None:
    night = spend("watch", tmp_path / "night", SMALL, seed=7)
    print(night.table())
    assert night.broken == []
    assert set(night.maintainer.kills) == {"resident", "resident, before the answer to a message"}
    assert repeated(night) == 1, "of the message whose sender was killed"
    assert len({damage.kind for damage in night.damages}) == 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_company_keeps_its_runs_partitions_and_ticks_while_damages_are_told_once_through_its_dagster(
    tmp_path: Path,
) -> None:
    shape = replace(
        SMALL, per_team=4, seconds=180.0, batch_seconds=10.0, kill_seconds=(20.0, 60.0), settle_seconds=1200.0
    )
    night = spend("dagster", tmp_path / "night", replace(shape, most_kills=3), seed=7)
    print(night.table())
    assert night.broken == []
    assert night.maintainer.kills


def repeated(night: Night) -> int:
    """How many messages were received again, with the id of an earlier one."""
    received = [message.id for message in night.inbox.messages]
    return len(received) - len(set(received))
