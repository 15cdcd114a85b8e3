"""Seconds from `make run` until Dagster shows the first results, as GraphQL reports them."""

from __future__ import annotations

import argparse
import tempfile
import urllib.error
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, sleep

from benchmarks.measure import Spread, Table, verdict
from tests.assets.running import Running, running

_TARGET_SECONDS = 180.0
_GIVEN_UP_SECONDS = 900.0
_CHECKS = 6


def run(options: argparse.Namespace) -> list[Table]:
    """Each round starts from an empty folder; the environment is made."""
    rounds = [_round() for _ in range(min(options.rounds, 3))]
    seen = {sight: Spread.of([one[sight] for one in rounds]) for sight in rounds[0]}
    last = Spread.of([max(one.values()) for one in rounds])
    return [
        Table(
            "Seconds from the start until Dagster shows it",
            ["sight", "s"],
            [[sight, spread.shown(0)] for sight, spread in seen.items()],
            [verdict("the last of them", last, at_most=_TARGET_SECONDS, unit=" s")],
            [
                f"{len(rounds)} rounds of `python -m pipelines.flights.job`, which `make run` starts, asked each second.",
                "The flights job and Dagster share the machine.",
            ],
        )
    ]


def _round() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="statekeeper-first-minutes-") as name:
        folder = Path(name)
        home = folder / "flights" / "dagster"
        started = perf_counter()
        seen: dict[str, float] = {}
        with running(folder, "pipelines.flights.job", "--folder", str(folder / "flights"), home=home) as platform:
            missing = dict(_sights(platform))
            while missing:
                sleep(1)
                for sight, is_seen in list(missing.items()):
                    if _answer(is_seen):
                        seen[sight] = perf_counter() - started
                        del missing[sight]
                if perf_counter() - started > _GIVEN_UP_SECONDS:
                    raise TimeoutError(f"not seen: {', '.join(missing)}\n{platform.logs()}")
        return seen


def _sights(platform: Running) -> Mapping[str, Callable[[], bool]]:
    def of(asset: str, figure: str) -> bool:
        return any(one.get(figure, 0) for one in platform.materializations(asset))

    def shortened() -> bool:
        made = platform.materializations("snapshot")
        return any(one["longest_tail_after"] < one["longest_tail_before"] for one in made)

    def green() -> bool:
        checks = [platform.checks(asset) for asset in ("snapshot", "lineage", "retention", "fleet_health")]
        found = [check for of_asset in checks for check in of_asset.values()]
        return len(found) == _CHECKS and all(check["success"] for check in found)

    return {
        "the sensor ticks": lambda: bool(platform.ticks("changelog_tail")),
        "a run that new commits caused succeeded": lambda: bool(platform.runs(statuses=["SUCCESS"])),
        "snapshots were made": lambda: of("snapshot", "snapshots_taken"),
        "a tail got shorter": shortened,
        "files were deleted by plan": lambda: of("retention", "deleted_files"),
        "all checks are green": green,
        "two points of each plot": lambda: len(platform.materializations("fleet_health")) > 1,
    }


def _answer(is_seen: Callable[[], bool]) -> bool:
    try:
        return is_seen()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False  # the webserver is starting
