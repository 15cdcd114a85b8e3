"""Audits of a checkpoint in tests: its files, damage, and the proof of the advice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.upkeep.audit import Audit, AuditPolicy, Finding, gather, judge
from statekeeper.statestore.maintenance.upkeep.retention import Amount, RetentionPolicy
from statekeeper.statestore.maintenance.verbs.audit import look
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.storage import Storage
from tests.support.checkpoints import Checkpoint

SOME_ID = "0badc0de-0000-4000-8000-000000000000"


def audited(storage: Storage, scratch: Path | None = None, **policy: Any) -> Audit:
    return judge(gather(storage, scratch=scratch), AuditPolicy(**policy))


def garbage(storage: Storage, versions: int = 100) -> dict[StorePath, Amount]:
    """Return the files and bytes that the next gc deletes of each store, if no file is too young."""
    policies = Policies(retention=RetentionPolicy(versions=versions, grace_seconds=0.0))
    figures = look(storage, policies, clock=SystemClock()).forecast
    assert figures is not None
    return {store: amount for store, amount in figures.stores.items() if amount.files}


def the_only_finding(audit: Audit) -> Finding:
    assert len(audit.findings) == 1, audit.findings
    return audit.findings[0]


def changelog(checkpoint: Checkpoint, version: int, partition: int = 0) -> str:
    return checkpoint.stores[partition].changelog(checkpoint.versions[version][partition])


def snapshot(checkpoint: Checkpoint, version: int, partition: int = 0) -> str:
    return checkpoint.stores[partition].snapshot(checkpoint.versions[version][partition])


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


def loads(checkpoint: Checkpoint, batch: int, host: Path) -> bool:
    """Return whether every store loads the version of a batch on a new host. Loaded rows must be correct."""
    try:
        checkpoint.assert_right(host, batch)
    except StatekeeperError:
        return False
    return True


def assert_restart_is_right(checkpoint: Checkpoint, audit: Audit, tmp_path: Path) -> None:
    """The batch that is advised loads in every store and is right, and no newer one does."""
    newest_first = range(len(checkpoint.versions) - 2, -1, -1)
    loadable = (batch for batch in newest_first if loads(checkpoint, batch, tmp_path / f"host of {batch}"))
    assert audit.restart.batch == next(loadable, None)


Harm = Callable[[bytes], bytes | None]


HARMS: dict[str, Harm] = {
    "missing": lambda body: None,
    "empty": lambda body: b"",
    "truncated": lambda body: body[:-20],
    "flipped": lambda body: flipped(body, len(body) - 30),
}


def harm(checkpoint: Checkpoint, path: str, how: str) -> None:
    body = HARMS[how](checkpoint.storage.read(path))
    if body is None:
        checkpoint.storage.delete([path])
    else:
        checkpoint.storage.replace(path, body)
