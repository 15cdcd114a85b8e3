"""Runs every verb on damaged checkpoints and prints counts: `make fuzz CASES=2000 FUZZ_SEED=1`.

python -m tests.faults.fuzz --cases 2000 --seed 1      continues an interrupted run with this seed
python -m tests.faults.fuzz --seed 1 --case 17         repeats one case, and prints the output of each verb
python -m tests.faults.fuzz --seed 1 --failed          repeats the failed cases
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.fuzz import dispatch
from tests.faults.fuzz.case import play
from tests.faults.fuzz.controls import CONTROLS, built_in

_RESULTS = Path("var/fuzz")
_MEMORY = Path("/dev/shm")
_CASES_A_LINE = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="only this one, in this process, with what each verb says")
    parser.add_argument("--failed", action="store_true", help="only those that failed in the last run with this seed")
    parser.add_argument("--fresh", action="store_true", help="forget what the last run with this seed found")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, help="the file of what was found; by default below var/fuzz")
    parser.add_argument("--roots", nargs="*", help="only these checkpoints")
    parser.add_argument("--break", dest="fault", choices=CONTROLS, help="build this fault into the library")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="statekeeper-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
    only = frozenset(chosen.roots) if chosen.roots else None
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if chosen.fault:
            stack.enter_context(built_in(chosen.fault))
        if chosen.case is not None:
            return _play_one(chosen.seed, chosen.case, folder, only)
        return _play_all(chosen, folder, only)


def _play_one(seed: int, case: int, folder: Path, only: frozenset[str] | None) -> int:
    (folder / "roots").mkdir()
    dispatch.limit_memory()
    seen = play(seed, case, folder / "roots", folder / "case", only)
    print(json.dumps(asdict(seen), indent=1))
    return 1 if seen.failures else 0


def _play_all(chosen: argparse.Namespace, folder: Path, only: frozenset[str] | None) -> int:
    results = chosen.results or _RESULTS / f"seed-{chosen.seed}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    found = {} if chosen.fresh else _read(results)
    if chosen.failed:
        found = {case: one for case, one in found.items() if not one["failures"]}
    wanted = [case for case in range(chosen.cases) if case not in found]
    results.write_text("".join(json.dumps(one) + "\n" for one in found.values()))
    print(f"seed {chosen.seed}: {len(found):,} cases are known from {results}, {len(wanted):,} to play", flush=True)
    started, played = time.monotonic(), 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with results.open("a") as file, suppress(KeyboardInterrupt):
        for ended in dispatch.play_all(chosen.seed, wanted, folder, processes=chosen.processes, only=only):
            one = {**ended.seen, "seconds": round(ended.seconds, 2), "peak_bytes": ended.peak_bytes}
            found[one["case"]] = one
            file.write(json.dumps(one) + "\n")
            file.flush()
            played += 1
            if one["failures"]:
                _print_failure(chosen.seed, one)
            if played % _CASES_A_LINE == 0:
                failed = sum(1 for each in found.values() if each["failures"])
                rate = played / (time.monotonic() - started)
                print(f"{played:,} played, {rate:.2f} cases per second, {failed:,} failed", flush=True)
    _print(list(found.values()), played, time.monotonic() - started)
    return 1 if any(one["failures"] for one in found.values()) else 0


def _read(results: Path) -> dict[int, dict[str, Any]]:
    if not results.exists():
        return {}
    lines = (json.loads(line) for line in results.read_text().splitlines())
    return {one["case"]: one for one in lines}


def _print_failure(seed: int, one: dict[str, Any]) -> None:
    print(f"\n--seed {seed} --case {one['case']}: {one['root']}, {one['stage']}; {'; '.join(map(ascii, one['done']))}")
    alike: dict[tuple[str, str], list[str]] = {}
    for kind, verb, detail in one["failures"]:
        alike.setdefault((kind, detail), []).append(verb)
    for (kind, detail), verbs in alike.items():
        told = "; ".join(verbs) if len(verbs) < 4 else f"{len(verbs)} verbs, the first is {verbs[0]}"
        print(f"  {kind}: {told}: {detail}".encode("ascii", "backslashreplace").decode())
    print(flush=True)


def _print(found: list[dict[str, Any]], played: int, seconds: float) -> None:
    tables = {
        "damage": Counter(damage for one in found for damage in one["damages"]),
        "checkpoint": Counter(one["root"] for one in found),
        "before the damage": Counter(one["stage"] for one in found),
        "verb": Counter(f"{verb}: exit {code}" for one in found for verb, code in one["calls"]),
        "failed": Counter(f"{kind}: {verb}" for one in found for kind, verb, _ in one["failures"]),
    }
    for title, counts in tables.items():
        print(f"\n{title}")
        for name, count in sorted(counts.items()):
            print(f"  {name:<60}{count:>8,}")
    failed = sum(1 for one in found if one["failures"])
    heads = sum(one["heads"] for one in found)
    peak = max((one["peak_bytes"] for one in found), default=0)
    print(f"\n{len(found):,} cases, {failed:,} failed; {sum(len(one['calls']) for one in found):,} calls of verbs; ")
    print(f"{heads:,} heads loaded before; the peak of memory was {peak / 2**20:,.0f} MiB")
    if played:
        print(f"{played:,} cases in {seconds:,.0f} s, {played / seconds:.2f} cases per second")


if __name__ == "__main__":
    sys.exit(main())
