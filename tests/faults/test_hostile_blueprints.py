"""Damaged blueprints: a migration ends with a typed error, or its checkpoint is whole. `slow` has more cases."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.storage import open_storage
from tests.faults.fuzz.choices import Inapplicable
from tests.faults.fuzz.damages import DAMAGES
from tests.faults.fuzz.files import fingerprint
from tests.faults.fuzz.verbs import Call, is_typed, run
from tests.support.dumped import dumped
from tests.support.evolved_roots import commit, old_rows
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
KINDS = (
    "bits flipped",
    "truncated",
    "zeroed",
    "bytes added",
    "deleted",
    "swapped",
    "huge",
    "JSON changed",
    "JSON changed",
    "JSON changed",
)
CALL = Call("migrate", ())


def native(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        made = unpacked(FIXTURES / f"spark-4.2.0-{name}.zip", folder)
        # With Hadoop's checksums, the audit would refuse each damage before the migration sees it.
        for sidecar in list(made.rglob(".*.crc")):
            sidecar.unlink()
        return made

    return make


def job(folder: Path) -> Path:
    commit(open_storage(str(folder / "root")), folder / "host", 0, old_rows(*"abc"), _SUMS)
    return folder / "root"


_SUMS = pa.table({"key": [*"ab"], "sum": [1, 2]})
MADE: Mapping[str, Callable[[Path], Path]] = {
    "aggregation": native("v2-aggregation"),
    "variables": native("v2-transformWithState"),
    "join": native("v1-join-2"),
    "job": job,
}


def _some(fewer: int, more: int) -> list[object]:
    return [*range(fewer), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(fewer, more))]


@pytest.mark.parametrize("seed", _some(6, 100))
@pytest.mark.parametrize("kind", MADE)
def test_a_hostile_blueprint_causes_a_typed_error_or_a_whole_checkpoint(kind: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(f"{kind} {seed}")
    old, blueprint, new = MADE[kind](tmp_path / "old"), MADE[kind](tmp_path / "blueprint"), tmp_path / "new"
    done = _damage(chance, blueprint)
    before = fingerprint(old), fingerprint(blueprint)
    given = (blueprint, new, "--allow-dropped-state", "--scratch", tmp_path / "scratch")
    planned = run("migrate", old, *given)
    assert is_typed(CALL, planned), (done, planned.exception)
    assert not new.exists(), done
    made = run("migrate", old, *given, "--apply", "--confirm-stopped")
    assert is_typed(CALL, made), (done, made.exception)
    assert (fingerprint(old), fingerprint(blueprint)) == before, done
    metadata = new / names.QUERY_METADATA
    if made.exit_code != 0:
        assert not metadata.exists() or metadata.read_bytes() == logs.UNFINISHED, (done, made.output)
        return
    audit = run("audit", new, "--deep", "--scratch", tmp_path / "scratch")
    assert audit.exit_code == 0, (done, audit.output)
    lost = "is dropped" in planned.output or "starts empty" in planned.output
    assert lost or len(dumped(str(new))) == len(dumped(str(old))), done


def _damage(chance: random.Random, root: Path) -> list[str]:
    """Damage a blueprint outside its rows, which a migration ignores, in one or two places."""
    done = list[str]()
    while len(done) < chance.choice((1, 1, 2)):
        damage, _ = DAMAGES[chance.choice(KINDS)]
        try:
            done.append(damage(chance, root))
        except Inapplicable:
            continue
    return done


def test_a_blueprint_of_endless_size_is_refused(tmp_path: Path) -> None:
    old, blueprint = MADE["aggregation"](tmp_path / "old"), MADE["aggregation"](tmp_path / "blueprint")
    newest = catalog.newest_batch(open_storage(str(blueprint)))
    assert newest is not None
    for path in (
        names.state_schema(0),
        names.offsets(newest),
        names.commits(newest),
        names.operator_metadata(0),
    ):
        spoiled = tmp_path / "spoiled"
        shutil.copytree(blueprint, spoiled)
        with (spoiled / path).open("r+b") as file:
            file.truncate(2**40)
        found = run("migrate", old, spoiled, tmp_path / "new")
        assert is_typed(CALL, found), (path, found.exception)
        assert found.exit_code != 0, path
        shutil.rmtree(spoiled)
