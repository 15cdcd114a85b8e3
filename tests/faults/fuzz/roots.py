"""The checkpoints to damage, each created once per run of the harness. A `Root` and a `Stage` identify one.

Roots of our own get ids from a seed, so that a case finds the same names each time.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.format.state_rows import encode_keys, encode_values, key_schema
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.hosts import Changes
from tests.support.structures import as_sparks, without_ids
from tests.support.switching import structure_of, take_snapshots

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
_OWN = ("own-v1", "own-v2", "own-v2-log", "native-v1", "native-v2")

_KEY = pa.schema([("name", pa.string()), ("day", pa.int32())])
_VALUE = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])
_SCHEMA = StoreSchema("default", spark_schema_json(key_schema(_KEY)), spark_schema_json(_VALUE))


class Stage(Enum):
    """The verb that ran on a checkpoint before the damage."""

    WRITTEN = "as its query left it"
    SNAPSHOTS = "after `snapshot`"
    SWITCHED = "after `switch`"


def all_roots() -> list[str]:
    """The names of all checkpoints, in a fixed order."""
    fixtures = (path.stem.removeprefix("spark-4.2.0-") for path in FIXTURES.glob("spark-*.zip"))
    # The verbs before the damage, such as snapshot, do not support Spark's default provider.
    return [*_OWN, *sorted(name for name in fixtures if not name.startswith("hdfs-"))]


def made(cache: Path, name: str, stage: Stage) -> Path:
    """The folder of a checkpoint at a stage; it is made when it is not there."""
    target = cache / f"{name}-{stage.name.lower()}"
    if not target.exists():
        draft = cache / f"draft-{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        with seeded_ids(f"{name} {stage.name}"):
            _make(draft, name, stage)
        try:
            (draft / "checkpoint").rename(target)
        except OSError:
            assert target.exists()  # the other process was first
        shutil.rmtree(draft)
    return target


@contextmanager
def seeded_ids(seed: str) -> Iterator[None]:
    """Every id that the library draws comes out of a seed."""
    chance, lock = random.Random(seed), threading.Lock()

    def fresh(_: RandomIds) -> str:
        with lock:
            return str(uuid.UUID(int=chance.getrandbits(128), version=4))

    with mock.patch.object(RandomIds, "fresh", fresh):
        yield


def _make(draft: Path, name: str, stage: Stage) -> None:
    root = draft / "checkpoint"
    if name in _OWN:
        _write_own(root, draft, name)
    else:
        with zipfile.ZipFile(FIXTURES / f"spark-4.2.0-{name}.zip") as archive:
            archive.extractall(draft)
    if stage is not Stage.WRITTEN:
        _run(root, draft, stage)


def _write_own(root: Path, draft: Path, name: str) -> None:
    kind, structure, *log = name.split("-")
    as_written = Structure(structure) if kind == "own" else Structure.V2
    storage = open_storage(str(root))
    made = Checkpoint(storage, draft / "job", schema=_SCHEMA, structure=as_written, in_batch_logs=bool(log))
    _grow(made, 4)
    take_snapshots(made.storage, draft / "scratch")
    _grow(made, 3)
    if kind == "native":
        as_sparks(made)
        if structure == "v1":
            without_ids(made)


def _grow(made: Checkpoint, batches: int) -> None:
    for _ in range(batches):
        number = len(made.versions)
        made.batch(*(_changes(number, 4 * (partition + 1)) for partition in range(len(made.stores))))


def _changes(batch: int, rows: int) -> Changes:
    new = [{"name": f"{batch} {row}", "day": row} for row in range(rows)]
    kept = [*new, {"name": "counter", "day": 0}]
    gone = [{"name": f"{batch - 2} 0", "day": 0}]
    values = pa.Table.from_pylist([{"n": batch, "tags": ["x"] * (place % 3)} for place, _ in enumerate(kept)], _VALUE)
    found: dict[bytes, bytes | None] = dict(zip(_keys(kept), encode_values(values).to_pylist(), strict=True))
    return {**found, **dict.fromkeys(_keys(gone))}


def _keys(rows: list[dict[str, object]]) -> list[bytes]:
    groups = np.array([len(str(row["name"])) % 3 for row in rows])
    keys: list[bytes] = encode_keys(groups, pa.Table.from_pylist(rows, _KEY)).to_pylist()
    return keys


def _run(root: Path, draft: Path, stage: Stage) -> None:
    from tests.faults.fuzz import verbs

    if stage is Stage.SNAPSHOTS:
        done = verbs.run(
            "snapshot",
            root,
            "--mode",
            "full",
            "--at-head",
            "--confirm-stopped",
            "--workers",
            1,
            "--scratch",
            draft / "scratch",
        )
    else:
        to = structure_of(open_storage(str(root))).other.value
        done = verbs.run(
            "switch", root, "--to", to, "--apply", "--confirm-stopped", "--workers", 1, "--scratch", draft / "scratch"
        )
    assert done.exit_code == 0, done.output
