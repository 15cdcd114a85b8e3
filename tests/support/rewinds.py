"""Rewinds of checkpoints in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import Storage
from tests.support import verbs
from tests.support.clocks import SleeplessClock
from tests.support.clones import FULL


def maintainer() -> Maintainer:
    """A maintainer that does not wait before it treats a query as stopped."""
    return Maintainer("a test", SleeplessClock(SystemClock().now_seconds()), RandomIds())


def planned(storage: Storage, batch: int, scratch: Path, **how: Any) -> verbs.Seen:
    return verbs.rewind.plan(storage, FULL, maintainer(), batch, scratch=scratch, **how)


def rewound(storage: Storage, batch: int, scratch: Path, **how: Any) -> str:
    """Plan a rewind and execute it; return the id of the run."""
    by = maintainer()
    run = by.ids.fresh()
    prepared = planned(storage, batch, scratch, **how)
    verbs.rewind.execute(storage, prepared, by, run=run, stopped=True, scratch=scratch)
    return run


def undone(storage: Storage, run: str, **how: Any) -> list[str]:
    by = maintainer()
    return verbs.rewind.undo(storage, FULL, run, by, run=by.ids.fresh(), stopped=True, **how)
