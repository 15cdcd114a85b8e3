"""The order in which a copy gets its logs: whatever a crash leaves of them, its files load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Kind, Storage
from tests.support.clones import FEW_KINDS, Roots, cloned, made, query_of
from tests.support.crashes import put_again
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash
from tests.support.maintained_query import maintained_query
from tests.support.mirrors import mirrored

_LOGS = (names.OFFSETS, names.COMMITS)


def _release(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list(names.LEASES)])


def test_the_offsets_of_a_batch_are_copied_before_its_commit_and_the_newest_commit_last(
    disks: Roots, tmp_path: Path
) -> None:
    """By number: as text, 9 comes after 10."""
    source, destination = disks
    query = maintained_query(source, tmp_path, Structure.V2, Origin.OWN, batches=12)
    assert query.is_right()
    traced = FaultyStorage(destination)
    cloned(source, traced, tmp_path, batch=10)
    written = [request.path for request in traced.trace if request.kind is Kind.CREATE]
    of_checkpoint = [path for path in written if not path.startswith(names.CONTROL)]
    assert of_checkpoint[-1] == names.commits(10)
    expected = [path for batch in range(11) for path in (names.offsets(batch), names.commits(batch))]
    assert [path for path in of_checkpoint if path.startswith((names.OFFSETS, names.COMMITS))] == expected


@pytest.mark.parametrize("verb", [cloned, mirrored])
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_the_first_commit_of_a_copy_is_one_that_its_files_load(
    disks: Roots,
    tmp_path: Path,
    verb: Callable[..., object],
    kind: str,
    structure: Structure,
    in_batch_logs: bool,
) -> None:
    """The snapshot is at the head, so the files load only the newest batch. The source also has the commit before it."""
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    query.snapshot()
    traced = FaultyStorage(destination)
    verb(source, traced, tmp_path, stopped=True)
    of_logs = [one for one in traced.trace if one.kind is Kind.CREATE and one.path.startswith(_LOGS)]
    assert [one.path for one in of_logs] == [*map(names.offsets, (6, 7)), *map(names.commits, (7, 6))]
    for request in of_logs[2:]:
        put_again(destination, {})
        with pytest.raises(SimulatedCrash):
            verb(source, FaultyStorage(destination, {request.number: Fault.AFTER}), tmp_path, stopped=True)
        _release(source)
        _release(destination)
        assert query_of(query, destination, tmp_path / f"after {request.number}", 7).is_right()
