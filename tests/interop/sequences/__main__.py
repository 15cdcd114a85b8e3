"""`make sequences SEEDS=100`: see the package."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from statekeeper.pipelines.startup.session import S3A_PACKAGES, spark_session
from tests.interop.sequences import __doc__ as purpose
from tests.interop.sequences.play import Plan, Player, Result, known_defect
from tests.support import quick_spark
from tests.support.s3_server import S3Server
from tests.support.spark_on_s3a import connect, environment

_MEMORY = Path("/dev/shm")


def main() -> int:
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many sequences")
    parser.add_argument("--steps", help="play only these steps of the seed, for example 0,3,4")
    parser.add_argument("--no-shrink", action="store_true", help="show a failed sequence as it is")
    options = parser.parse_args()
    os.environ.setdefault("JDK_JAVA_OPTIONS", quick_spark.java_options())
    server = S3Server()
    server.start()
    os.environ.update(environment(server))
    memory = tempfile.gettempdir() if "TMPDIR" in os.environ or not _MEMORY.is_dir() else str(_MEMORY)
    folder = Path(tempfile.mkdtemp(prefix="sequences-", dir=memory))
    # No sequence uses Delta, whose rules cost time in each batch.
    conf = {"spark.sql.extensions": ""}
    spark = spark_session("sequences", master="local[2]", conf=conf, packages=S3A_PACKAGES)
    spark.sparkContext.setLogLevel("OFF")
    connect(spark, server)
    player = Player(spark, folder, server=server)
    begun, failed = time.monotonic(), list[Result]()
    try:
        if options.steps is not None:
            only = tuple(int(number) for number in options.steps.split(","))
            results = [player.play(Plan(options.seed, only), tell=True)]
            print(results[0], flush=True)
            return 1 if results[0].failure else 0
        for seed in range(options.seed, options.seed + options.count):
            result = player.play(Plan(seed))
            print(result, flush=True)
            if result.failure is not None and (known := known_defect(result.failure)) is not None:
                player.counts[f"known defect, the end of its sequence: {known}"] += 1
            elif result.failure is not None:
                if not options.no_shrink:
                    result = player.shrunk(result)
                    print(f"shrunk: {result}\nagain: {result.sequence.command}", flush=True)
                failed.append(result)
    finally:
        _print(player.counts, failed, options.count, time.monotonic() - begun)
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _print(counts: Counter[str], failed: list[Result], sequences: int, seconds: float) -> None:
    print(f"\n{sequences:,} sequences, {len(failed):,} failed, {seconds:,.0f} s ({seconds / sequences:.1f} s each)")
    for name, number in sorted(counts.items()):
        print(f"  {name:<50}{number:>8,}")
    for kind, number in Counter(str(one.failure and one.failure.kind) for one in failed).items():
        print(f"  FAILED {kind}: {number:,}")
    for one in failed:
        print(f"  {one.sequence.command}    {one.failure and one.failure.kind}")


if __name__ == "__main__":
    sys.exit(main())
