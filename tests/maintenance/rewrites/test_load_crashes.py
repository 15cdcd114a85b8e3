"""A load that dies at each of its requests, and is then finished or reversed."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.clock import Clock
from statestore.storage import Storage, open_storage
from tests.support.loads import load, savepoint
from tests.support.rewrite_crashes import CrashMatrix
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
ARCHIVES = [FIXTURES / f"spark-4.2.0-{name}.zip" for name in ("v1-aggregation", "v2-aggregation")]
FINISH = pytest.mark.parametrize("finish", [True, False], ids=["finish", "abort"])


def matrix(archive: Path, folder: Path) -> CrashMatrix:
    of = savepoint(open_storage(str(unpacked(archive, folder / "source"))), folder / "savepoint")

    def rewrite(storage: Storage, scratch: Path, *, clock: Clock | None = None) -> object:
        return load(storage, of, scratch, clock=clock)

    return CrashMatrix(archive, rewrite, folder, guarded="-v1-" in archive.name)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
@FINISH
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_load_that_dies_at_any_request_is_finished_or_reversed(archive: Path, finish: bool, tmp_path: Path) -> None:
    cases = matrix(archive, tmp_path)
    for request, fault in cases.cases:
        cases.play(request, fault, finish=finish)


@pytest.mark.parametrize(("archive", "finish"), [(ARCHIVES[0], True), (ARCHIVES[1], False)], ids=["v1", "v2"])
def test_a_load_that_dies_at_a_write_is_finished_or_reversed(archive: Path, finish: bool, tmp_path: Path) -> None:
    cases = matrix(archive, tmp_path)
    for request, fault in cases.slice_for_ci[::8]:
        cases.play(request, fault, finish=finish)
