"""The release that wrote a batch, from offset logs of real releases (tests/fixtures/write_offset_logs.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.format.logs import parse_offsets
from statekeeper.statestore.format.sparks import Spark, with_checksums, writers

LOGS: dict[str, str] = json.loads((Path(__file__).parents[1] / "fixtures" / "offset_logs.json").read_text())


@pytest.mark.parametrize("releases", LOGS)
def test_the_offset_log_identifies_the_release_that_wrote_it_not_the_first_one(releases: str) -> None:
    newest = releases.split(" then ")[-1].rpartition(".")[0]
    found = writers(parse_offsets(LOGS[releases].encode(), "offsets/0").conf)
    alike = (Spark.V4_0, Spark.V4_1)
    assert found == (alike if newest in ("4.0", "4.1") else (Spark(newest),))


def test_sidecars_tell_4_1_from_4_0() -> None:
    assert with_checksums((Spark.V4_0, Spark.V4_1)) == (Spark.V4_1,)
    assert with_checksums((Spark.V4_2,)) == (Spark.V4_2,)


def test_all_releases_and_all_upgrades_are_in_the_fixture() -> None:
    assert len(LOGS) == 5 + 4 + 3 + 2 + 1
