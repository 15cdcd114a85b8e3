"""Clones of checkpoints in tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from statestore.maintenance import passes
from statestore.maintenance.passes import PreparedClone
from statestore.storage import Storage
from tests.support.checkpoints import Checkpoint
from tests.support.maintained_query import Query
from tests.support.maintainers import MAINTAINER


def cloned(source: Storage, destination: Storage, scratch: Path, **how: Any) -> PreparedClone:
    """Plan a clone and make it."""
    prepared = passes.clone.plan(source, destination, MAINTAINER, **how)
    passes.clone.execute(source, destination, prepared, MAINTAINER, scratch=scratch)
    return prepared


def at(made: Checkpoint, storage: Storage, folder: Path, batch: int) -> Checkpoint:
    """The model of a clone of a checkpoint at a batch."""
    twin = copy.copy(made)
    twin.storage, twin._folder = storage, folder
    twin.versions, twin.states = made.versions[: batch + 2], made.states[: batch + 2]
    return twin


def query_of(query: Query, storage: Storage, folder: Path, batch: int) -> Query:
    """The query that continues from a clone."""
    shadow = query.shadow
    if shadow is not None:
        shadow = at(shadow, shadow.storage, folder / "shadow job", batch)
    return Query(at(query.checkpoint, storage, folder / "job", batch), folder, shadow)
