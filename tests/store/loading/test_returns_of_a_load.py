"""The number of functions through which a version and the result of its load pass."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import statekeeper.statestore.store.loading
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.store.engine.rocks import Database
from statekeeper.statestore.store.state_store import StateStore, StoreAddress
from tests.support.checkpoints import Checkpoint
from tests.support.switching import take_snapshots

MOST_RETURNS = 10
FOLDER = str(Path(statekeeper.statestore.store.loading.__file__).parent)


def carries(value: object) -> bool:
    """Return whether a value is or contains a version, an open database or a dataclass of `statestore.loading`."""
    if isinstance(value, VersionId):
        return value != EMPTY
    if isinstance(value, StateStore | Database):
        return True
    if isinstance(value, Mapping):
        return any(map(carries, (*value, *value.values())))
    if isinstance(value, tuple | list | set | frozenset):
        return any(map(carries, value))
    if dataclasses.is_dataclass(value):
        is_of_load = type(value).__module__.startswith("statekeeper.statestore.store.loading.")
        return is_of_load or any(carries(getattr(value, one.name)) for one in dataclasses.fields(value))
    return False


def test_a_cold_load_passes_its_version_through_at_most_ten_returns(tmp_path: Path) -> None:
    checkpoint = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path)
    checkpoint.grow(3)
    take_snapshots(checkpoint.storage, tmp_path / "scratch")
    checkpoint.grow(3)
    address = StoreAddress(checkpoint.stores[0], tmp_path / "another host")
    returns: list[str] = []

    def count(frame: FrameType, event: str, value: object) -> None:
        code = frame.f_code
        is_of_load = code.co_filename.startswith(FOLDER) or code is StateStore.load.__code__
        # The frames of generators and comprehensions are parts of a function.
        is_function = (
            not inspect.isgenerator(value) and not code.co_flags & inspect.CO_GENERATOR and code.co_name[0] != "<"
        )
        if event == "return" and is_of_load and is_function and carries(value):
            returns.append(code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        store = StateStore.load(
            address, checkpoint.versions[-1][0], storage=checkpoint.storage, clock=SystemClock(), ids=RandomIds()
        )
    finally:
        sys.setprofile(before)
    with store:
        assert dict(store.scan()) == checkpoint.states[-1][0]
    assert (store.load_report.base, store.load_report.replayed_changelogs) == (BaseKind.SNAPSHOT, 3)
    assert {"StateStore.load", "Loader.load", "plan_from_storage"} <= set(returns), "they are counted"
    assert len(returns) <= MOST_RETURNS, returns
