"""Simulates many schedules of a query, its maintainers and failures in virtual time: `make simulate SEEDS=1000`.

python -m tests.faults.simulate --seeds 1000 --first 0
python -m tests.faults.simulate --seeds 300 --log batch      the job writes batch logs
python -m tests.faults.simulate --seed 17 --trace           one of them again, turn by turn
python -m tests.faults.simulate --seeds 100 --break NAME    with a protection removed: something must be lost
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from unittest import mock

from statekeeper.statestore.storage import parallel
from tests.faults.promises import Lost, Untidy
from tests.faults.protections import PROTECTIONS
from tests.faults.simulated_actors import spawn_all
from tests.faults.simulated_end import require_good_end
from tests.faults.simulated_world import World
from tests.faults.turns import InAnyOrder, Turns
from tests.faults.weather import Counts, Weather

_SEEDS_A_LINE = 50
_MEMORY = Path("/dev/shm")


@dataclass
class Outcome:
    """The result of a seed. `digest` identifies its schedule; `failure` is None if nothing was lost."""

    seed: int
    digest: str
    counts: Counts
    weather: Weather
    tail: list[str]
    failure: str | None


def run_seed(
    seed: int, *, in_batch_logs: bool = False, without: str | None = None, show: Callable[[str], None] | None = None
) -> Outcome:
    """One schedule. `without`: a protection that is taken out of the library for it."""
    turns = Turns(seed, show)
    protection = PROTECTIONS[without] if without else None
    weather = replace(Weather.of(turns.chance), in_batch_logs=in_batch_logs)
    if protection is not None:
        weather = protection.weather(weather)
    scratch = Path(tempfile.mkdtemp(prefix="statekeeper-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
    world = World(turns, weather, scratch)
    failure = None
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch)
        stack.enter_context(mock.patch.object(parallel, "ThreadPoolExecutor", InAnyOrder(turns.chance)))
        if protection is not None:
            stack.enter_context(protection.removed())
        try:
            spawn_all(world)
            turns.run()
            require_good_end(world)
        except Lost as lost:
            failure = f"LOST: {lost}"
        except Untidy as untidy:
            failure = f"UNTIDY: {untidy}"
        except Exception:
            failure = f"BROKEN: {traceback.format_exc()}"
    world.counts.what["seeds"] += 1
    return Outcome(seed, turns.digest, world.counts, weather, list(turns.tail), failure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--log", choices=("stores", "batch"), default="stores", help="objects of the changelogs")
    parser.add_argument("--trace", action="store_true", help="print each turn")
    parser.add_argument("--break", dest="without", choices=PROTECTIONS, help="take this protection out of the library")
    chosen = parser.parse_args()
    assert isinstance(sys.stdout, TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    seeds = [chosen.seed] if chosen.seed is not None else range(chosen.first, chosen.first + chosen.seeds)
    stopped: list[int] = []
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: stopped.append(number))
    counts, failed = Counts(), 0
    started = time.monotonic()
    for seed in seeds:
        outcome = run_seed(
            seed,
            in_batch_logs=chosen.log == "batch",
            without=chosen.without,
            show=print if chosen.trace else None,
        )
        counts.add(outcome.counts)
        if outcome.failure is not None:
            failed += 1
            _print_failure(outcome)
        if counts.what["seeds"] % _SEEDS_A_LINE == 0:
            print(f"{time.monotonic() - started:6.0f} s  {counts.what['seeds']:,} seeds, {failed:,} failed")
        if stopped:
            print("stopped from outside, after this seed")
            break
    _print(counts, failed, time.monotonic() - started)
    return 1 if failed else 0


def _print_failure(outcome: Outcome) -> None:
    print(f"\nSEED {outcome.seed}, schedule {outcome.digest[:16]}\n{outcome.weather}")
    print("\n".join(outcome.tail))
    print(f"seed {outcome.seed} {outcome.failure}\n")


def _print(counts: Counts, failed: int, seconds: float) -> None:
    rows = {**counts.what, "seeds that failed": failed, "seconds": round(seconds)}
    for name, value in rows.items():
        print(f"{name:<48}{value:>12,}")
    for name, value in sorted(counts.errors.items()):
        print(f"  told of: {name:<37}{value:>12,}")


if __name__ == "__main__":
    sys.exit(main())
