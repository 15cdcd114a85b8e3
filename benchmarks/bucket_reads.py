"""CPU of requests to a bucket, with `object_store` and with botocore, which makes those that it cannot make.

All are requests of `statekeeper`: without hedging in the calling thread, with hedging in an event loop. The last bucket has
an underscore in its name, and such a bucket is left to botocore.
The S3 server has a process of its own, so the CPU is that of the reader alone.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import botocore.session

from benchmarks.measure import Spread, Table, ratio
from benchmarks.s3_process import s3_process
from statekeeper.statestore.storage import Storage, StorageSpec, at_once, open_storage
from statekeeper.statestore.storage.hedging import OPTION

_READS = 1_000
_LISTED = 5_000
_BYTES = b"x" * 400
_NUMBERS = itertools.count()
_WITH_BOTOCORE = "left_to_botocore"


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    with s3_process() as bucket:
        storages = {
            "calling thread": open_storage(bucket),
            "event loop": open_storage(bucket, options={OPTION: "true"}),
            "botocore": open_storage(_bucket_with_underscore(bucket), options={OPTION: "true"}),
        }
        _fill(storages["calling thread"])
        _fill(storages["botocore"])
        works: dict[str, tuple[Callable[[Storage], None], int]] = {
            f"read of {len(_BYTES)} bytes": (_read, _READS),
            f"listing of {_LISTED:,} objects": (_list, 1),
            f"create of {len(_BYTES)} bytes": (_create, _READS),
            "HEAD of an object": (_stat, _READS),
        }
        samples: dict[str, dict[str, list[list[float]]]] = {what: {name: [] for name in storages} for what in works}
        for storage in storages.values():
            _read(storage)  # connects
        for _ in range(options.rounds):
            for what, (work, requests) in works.items():
                for name, storage in storages.items():
                    samples[what][name].append([_cpu_milliseconds(work, storage) / requests])
    rows = []
    for what, of_work in samples.items():
        shown = [Spread.of([value for of_round in of_work[name] for value in of_round]).shown(2) for name in storages]
        rows.append([what, *shown, ratio(of_work["botocore"], of_work["calling thread"]).shown(1, "x")])
    return [
        Table(
            title="Requests to a bucket: milliseconds of CPU",
            columns=["", *storages, "botocore / calling thread"],
            rows=rows,
            notes=[
                f"{options.rounds} rounds. In each: {_READS:,} reads, creates and HEADs, eight at a time, and a listing of "
                f"{_LISTED:,} objects. Calling thread: object_store without hedging, as maintenance uses it. Event loop: "
                "with hedging, as jobs use it, where botocore makes the creates and the HEADs.",
                "User and system time of all threads of the reading process. The S3 server is another process.",
            ],
        )
    ]


def _bucket_with_underscore(bucket: StorageSpec) -> StorageSpec:
    stated = dict(bucket.options)
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=stated["endpoint_url"],
        aws_access_key_id=stated["key"],
        aws_secret_access_key=stated["secret"],
        region_name=stated["region"],
    )
    client.create_bucket(Bucket=_WITH_BOTOCORE)
    return replace(bucket, url=f"s3://{_WITH_BOTOCORE}")


def _fill(storage: Storage) -> None:
    files = {f"read/{number}": _BYTES for number in range(100)}
    files |= {f"listed/{number % 50}/{number}_changelog": b"x" for number in range(_LISTED)}

    def create(path: str) -> None:
        storage.create(path, files[path])

    at_once(create, list(files))


def _read(storage: Storage) -> None:
    def read(number: int) -> None:
        storage.read(f"read/{number % 100}")

    at_once(read, range(_READS))


def _create(storage: Storage) -> None:
    def create(number: int) -> None:
        storage.create(f"created/{next(_NUMBERS)}", _BYTES)

    at_once(create, range(_READS))


def _stat(storage: Storage) -> None:
    def stat(number: int) -> None:
        assert storage.stat(f"read/{number % 100}") is not None

    at_once(stat, range(_READS))


def _list(storage: Storage) -> None:
    assert len(storage.list("listed")) == _LISTED


def _cpu_milliseconds(work: Callable[[Storage], None], storage: Storage) -> float:
    before = time.process_time()
    work(storage)
    return (time.process_time() - before) * 1_000
