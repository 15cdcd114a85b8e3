"""Deep audits while the query commits and retention deletes files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.upkeep.audit import Audit, FindingKind, gather, judge
from statekeeper.statestore.storage import Storage
from tests.support.apart import Apart
from tests.support.audits import audited, changelog, flipped, snapshot, the_only_finding
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import FaultyStorage
from tests.support.retention import AT_ONCE, collect, planned, take_snapshots


class Meanwhile(FaultyStorage):
    """Something happens before its first download of a file, that is, after the files were listed."""

    def __init__(self, inner: Storage, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self._happens: Callable[[], None] | None = happens
        self._first = Lock()

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        with self._first:
            happens, self._happens = self._happens, None
            if happens is not None:
                happens()
        return super().download(path, target, expected_bytes=expected_bytes)


def retained(checkpoint: Checkpoint, versions: int) -> None:
    deleted = collect(checkpoint.storage, planned(checkpoint.storage, replace(AT_ONCE, versions=versions)))
    assert sum(one.files for one in deleted) > 0


def test_files_that_retention_deletes_during_a_deep_audit_are_not_lost(checkpoint: Checkpoint, tmp_path: Path) -> None:
    def meanwhile() -> None:
        checkpoint.grow(1)
        retained(checkpoint, 3)

    audit = audited(Meanwhile(checkpoint.storage, meanwhile), tmp_path / "scratch")
    assert audit.findings == ()
    assert (audit.batch, audit.restart.as_is) == (6, True)
    unread = "2 files that were written during the audit were not read"
    assert unread in audit.restart.explained
    assert any(unread in one for one in audit.unproven)
    assert len(audit.decoded) == 2
    assert audited(checkpoint.storage, tmp_path / "scratch").restart.explained.endswith("newest batch, 6")


@pytest.mark.parametrize("what", ["a lost changelog", "a corrupt snapshot", "a corrupt changelog"])
def test_what_is_lost_or_corrupt_beside_the_deleted_files_stays_a_finding(
    checkpoint: Checkpoint, tmp_path: Path, what: str
) -> None:
    storage, path = checkpoint.storage, changelog(checkpoint, 5)

    def meanwhile() -> None:
        # As Spark does, which does not look whether the snapshot is intact.
        storage.delete([changelog(checkpoint, version, partition) for version in (1, 2) for partition in (0, 1)])
        if what == "a lost changelog":
            storage.delete([path])

    if what == "a corrupt snapshot":
        zipped = snapshot(checkpoint, 3)
        path = next(one.path for one in storage.list(zipped.rpartition("/")[0]) if one.path.endswith(".sst"))
    if what != "a lost changelog":
        body = storage.read(path)
        storage.replace(path, flipped(body, len(body) // 2))
    finding = the_only_finding(audited(Meanwhile(storage, meanwhile), tmp_path / "scratch"))
    kinds = {
        "a lost changelog": FindingKind.CHANGELOG_MISSING,
        "a corrupt snapshot": FindingKind.TABLE_UNREADABLE,
        "a corrupt changelog": FindingKind.CHANGELOG_UNREADABLE,
    }
    assert (finding.kind, finding.file) == (kinds[what], path)


def outran(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Retention has deleted every version that was listed."""
    checkpoint.grow(2)
    take_snapshots(checkpoint.storage, tmp_path / "snapshots")
    checkpoint.grow(2)
    retained(checkpoint, 2)
    assert not any(
        one.path == changelog(checkpoint, 6) for one in checkpoint.storage.list(str(checkpoint.stores[0].folder))
    )


def test_a_store_whose_versions_were_all_deleted_before_they_were_read_is_read_again(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    audit = audited(Meanwhile(checkpoint.storage, lambda: outran(checkpoint, tmp_path)), tmp_path / "scratch")
    assert audit.findings == ()
    assert audit.batch == 9
    assert all(one.changelogs and one.snapshots for one in audit.decoded.values())


class Cluster(Apart):
    """A cluster on which something happens after the files were listed, and the tasks of some stores fail."""

    happens: Callable[[], None] = staticmethod(lambda: None)
    lost: int = 0

    def map(self, task: Any, items: Sequence[Any], ended: Callable[[Any, Any], None]) -> None:
        type(self).happens()
        type(self).happens = staticmethod(lambda: None)
        super().map(task, items[self.lost :], ended)
        for item in items[: self.lost]:
            ended(item, StorageError("the host of the task was lost"))


def on_cluster(storage: Storage, tmp_path: Path, *, lost: int = 0, happens: Callable[[], None] = lambda: None) -> Audit:
    of_test = type("OfTest", (Cluster,), {"happens": staticmethod(happens), "lost": lost})
    cluster = of_test(clock=SystemClock(), scratch=tmp_path / "scratch")
    return judge(gather(storage, scratch=tmp_path / "scratch", cluster=cluster))


def test_on_a_cluster_a_store_is_read_again_too(checkpoint: Checkpoint, tmp_path: Path) -> None:
    audit = on_cluster(checkpoint.storage, tmp_path, happens=lambda: outran(checkpoint, tmp_path))
    assert audit.findings == ()
    assert audit.batch == 9
    assert all(one.changelogs and one.snapshots for one in audit.decoded.values())


def test_a_lost_task_leaves_the_results_of_the_other_stores(checkpoint: Checkpoint, tmp_path: Path) -> None:
    audit = on_cluster(checkpoint.storage, tmp_path, lost=1)
    finding = the_only_finding(audit)
    assert (finding.kind, finding.store) == (FindingKind.STORE_NOT_AUDITED, StorePath(0, 0))
    assert "the host of the task was lost" in finding.problem
    assert list(audit.decoded) == [StorePath(0, 1)]
    with pytest.raises(StorageError, match="the host of the task was lost"):
        on_cluster(checkpoint.storage, tmp_path, lost=2)
