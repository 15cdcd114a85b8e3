"""Mirrors of checkpoints in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import Storage
from tests.support import verbs
from tests.support.audits import audited
from tests.support.clones import FULL, query_of
from tests.support.maintained_query import Query
from tests.support.maintainers import MAINTAINER


def mirrored(
    source: Storage, destination: Storage, scratch: Path, *, by: Maintainer = MAINTAINER, **how: Any
) -> tuple[verbs.Seen, CleanupPlan]:
    """Plan a run of a mirror and execute it."""
    prepared = verbs.mirror.plan(source, destination, FULL, by, **how)
    return prepared, verbs.mirror.execute(source, destination, prepared, by, scratch=scratch)


def require_right(query: Query, destination: Storage, folder: Path) -> int:
    """Require that the mirror has the rows of its newest batch and that a deep audit finds nothing; return the batch."""
    heads = catalog.heads(destination)
    assert heads is not None
    assert query_of(query, destination, folder, heads.batch).is_right()
    assert audited(destination, scratch=folder / "deep").findings == ()
    return heads.batch
