"""Rewinds of checkpoints in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.storage import Storage
from tests.support import verbs
from tests.support.clones import FULL
from tests.support.maintainers import maintainer as maintainer


def planned(storage: Storage, batch: int, scratch: Path, **how: Any) -> verbs.Seen:
    return verbs.rewind.plan(storage, FULL, maintainer(), batch, scratch=scratch, **how)


def rewound(storage: Storage, batch: int, scratch: Path, *, clock: Clock | None = None, **how: Any) -> str:
    """Plan a rewind and execute it; return the id of the run."""
    by = maintainer(clock)
    run = by.ids.fresh()
    prepared = verbs.rewind.plan(storage, FULL, by, batch, scratch=scratch, **how)
    verbs.rewind.execute(storage, prepared, by, run=run, stopped=True, scratch=scratch)
    return run


def undone(storage: Storage, run: str, *, clock: Clock | None = None, **how: Any) -> list[str]:
    by = maintainer(clock)
    return verbs.rewind.undo(storage, FULL, run, by, run=by.ids.fresh(), stopped=True, **how)
