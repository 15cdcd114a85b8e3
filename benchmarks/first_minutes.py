"""Seconds from `make run` until Dagster shows the first results, as GraphQL reports them."""

from __future__ import annotations

import argparse
import tempfile
import urllib.error
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, sleep

from benchmarks.measure import Spread, Table, verdict
from tests.support.running import Running, running

_TARGET_SECONDS = 180.0
_TIMEOUT_SECONDS = 900.0
_CHECKS = 6


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. Each round starts with an empty folder and an installed environment."""
    rounds = [_round() for _ in range(min(options.rounds, 3))]
    seen = {event: Spread.of([one[event] for one in rounds]) for event in rounds[0]}
    last = Spread.of([max(one.values()) for one in rounds])
    return [
        Table(
            title="Seconds from the start to each event in Dagster",
            columns=["event", "s"],
            rows=[[event, spread.shown(0)] for event, spread in seen.items()],
            targets=[verdict("the last event", last, at_most=_TARGET_SECONDS, unit=" s")],
            notes=[
                f"{len(rounds)} rounds of `python -m statekeeper.pipelines.flights.job`, which `make run` starts. GraphQL "
                "is queried each second.",
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
        with running(
            folder, "statekeeper.pipelines.flights.job", "--folder", str(folder / "flights"), home=home
        ) as platform:
            missing = dict(_events(platform))
            while missing:
                sleep(1)
                for event, is_seen in list(missing.items()):
                    if _answer(is_seen):
                        seen[event] = perf_counter() - started
                        del missing[event]
                if perf_counter() - started > _TIMEOUT_SECONDS:
                    raise TimeoutError(f"not seen: {', '.join(missing)}\n{platform.logs()}")
        return seen


def _events(platform: Running) -> Mapping[str, Callable[[], bool]]:
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
        "a run for new commits succeeded": lambda: bool(platform.runs(statuses=["SUCCESS"])),
        "snapshots were made": lambda: of("snapshot", "snapshots_taken"),
        "a tail got shorter": shortened,
        "files were deleted by plan": lambda: of("retention", "deleted_files"),
        "all checks are green": green,
        "each plot has two points": lambda: len(platform.materializations("fleet_health")) > 1,
    }


def _answer(is_seen: Callable[[], bool]) -> bool:
    try:
        return is_seen()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False  # the webserver is starting
