"""Logs that are never purged: audit and retention keep only versions with files in memory, and have the same
findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.commit_log import CommitLog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep import audit, retention, snapshot
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy, commits
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint

FIRST = 12
"""The first of 20 versions with files. The damages add files of older versions."""


@pytest.fixture(scope="module", params=[Structure.V2, pytest.param(Structure.V1, marks=pytest.mark.slow)])
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("grown")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job", structure=request.param)
    for _ in range(5):
        made.grow(4)
        planned = snapshot.plan(snapshot.gather(made.storage), snapshot.SnapshotPolicy(), take_all=True)
        for action in planned.take:
            snapshot.execute(made.storage, action, scratch=folder, clock=SystemClock(), ids=RandomIds())
    return made


Damage = Callable[[Checkpoint], None]


def _gone_below(checkpoint: Checkpoint, number: int) -> None:
    """As retention leaves it: the snapshot of that version, and changelogs after it."""
    for store, files in catalog.files(checkpoint.storage).items():
        old = [store.changelog(version) for version in files.changelogs if version.version <= number]
        old += [store.snapshot(version) for version in files.snapshots if version.version < number]
        checkpoint.storage.delete(old)


def _nothing(_: Checkpoint) -> None:
    pass


def _deleted(*paths: Callable[[Checkpoint], str]) -> Damage:
    return lambda checkpoint: checkpoint.storage.delete([path(checkpoint) for path in paths])


def _changelog(number: int, partition: int = 0) -> Callable[[Checkpoint], str]:
    return lambda one: one.stores[partition].changelog(one.versions[number][partition])


def _snapshot(number: int, partition: int = 0) -> Callable[[Checkpoint], str]:
    return lambda one: one.stores[partition].snapshot(one.versions[number][partition])


def _replaced(path: str, data: bytes) -> Damage:
    return lambda checkpoint: checkpoint.storage.replace(path, data)


def _created(path: str) -> Damage:
    return lambda checkpoint: checkpoint.storage.replace(path, b"") and None


def _another_id(batch: int) -> Damage:
    """A commit names an id that no file has."""

    def damage(checkpoint: Checkpoint) -> None:
        path = names.commits(batch)
        commit = logs.parse_commit(checkpoint.storage.read(path), path)
        marks = {0: tuple((RandomIds().fresh(),) for _ in checkpoint.stores)}
        commit = replace(commit, digests=marks) if commit.ids is None else replace(commit, ids=marks)
        checkpoint.storage.replace(path, logs.encode_commit(commit))

    return damage


def _fewer_partitions(batch: int) -> Damage:
    def damage(checkpoint: Checkpoint) -> None:
        path = names.commits(batch)
        commit = logs.parse_commit(checkpoint.storage.read(path), path)
        marks = {0: (commit.marks or {})[0][:1]}
        commit = replace(commit, digests=marks) if commit.ids is None else replace(commit, ids=marks)
        checkpoint.storage.replace(path, logs.encode_commit(commit))

    return damage


def _taken_back(checkpoint: Checkpoint) -> None:
    later = range(15, 20)
    checkpoint.storage.delete([path(batch) for batch in later for path in (names.commits, names.offsets)])


def _a_store_is_gone(checkpoint: Checkpoint) -> None:
    checkpoint.storage.delete([entry.path for entry in checkpoint.storage.list(checkpoint.stores[1].folder)])


def _all_gone(checkpoint: Checkpoint) -> None:
    checkpoint.storage.delete(
        [entry.path for entry in checkpoint.storage.list(names.STATE) if "_meta" not in entry.path]
    )


DAMAGES: Mapping[str, Damage] = {
    "nothing": _nothing,
    "a changelog": _deleted(_changelog(14)),
    "the first changelog": _deleted(_changelog(13)),
    "the base": _deleted(_snapshot(12)),
    "the bases": _deleted(_snapshot(12), _snapshot(12, 1)),
    "all snapshots": _deleted(*(_snapshot(n, p) for n in (12, 16, 20) for p in (0, 1))),
    "the snapshots of one": _deleted(*(_snapshot(n) for n in (12, 16, 20))),
    "the head": _deleted(_changelog(20), _snapshot(20)),
    "an empty changelog": lambda one: one.storage.replace(_changelog(17)(one), b""),
    "an old commit": _deleted(lambda _: names.commits(3)),
    "a commit": _deleted(lambda _: names.commits(14)),
    "a corrupt old commit": _replaced(names.commits(3), b"v2\n{"),
    "an unknown old commit": _replaced(names.commits(3), b"v9\n{}"),
    "a corrupt commit": _replaced(names.commits(14), b"v2\n{"),
    "another id long ago": _another_id(3),
    "another id below the base": _another_id(10),
    "another id": _another_id(14),
    "another id at the end": _another_id(19),
    "fewer partitions long ago": _fewer_partitions(3),
    "fewer partitions": _fewer_partitions(14),
    "offsets": _deleted(lambda _: names.offsets(3)),
    "taken back": _taken_back,
    "a store": _a_store_is_gone,
    "everything": _all_gone,
    "a dead branch long ago": _created(f"state/0/0/5_{RandomIds().fresh()}.changelog"),
    "a dead branch": _created(f"state/0/1/15_{RandomIds().fresh()}.changelog"),
}


def _audited(storage: Storage, retained: int) -> object:
    try:
        found = audit.judge(audit.gather(storage), AuditPolicy(retained_versions=retained))
    except StatekeeperError as error:
        return type(error), str(error)
    return replace(found, requests=None)  # type: ignore[arg-type]


def _planned(storage: Storage, policy: RetentionPolicy) -> object:
    try:
        gathered = retention.gather(storage, policy, clock=SystemClock(), everything=True)
    except StatekeeperError as error:
        return type(error), str(error)
    return retention.plan(gathered, policy), retention.judge_stores(gathered, policy)


class _AllOfIt(CommitLog):
    """All commits, as a dictionary for each store: the definition."""

    def __init__(self, log: CommitLog, batches: range) -> None:
        super().__init__(log.newest)
        self.batches = {batch: found for batch in batches if (found := log.at(batch)) is not None}

    def at(self, batch: int) -> Mapping[StorePath, VersionId] | None:
        return self.batches.get(batch)

    def of_store(self, store: StorePath) -> Mapping[int, VersionId]:
        found, batch = {}, self.newest.batch
        while (version := self.batches.get(batch, {}).get(store)) is not None:
            found[version.version] = version
            batch -= 1
        return found

    def is_first(self, committed: Mapping[int, VersionId], version: int) -> bool:
        oldest = min(committed, default=1)
        return version <= (oldest if oldest - 2 in self.batches else 1)


@pytest.mark.parametrize("origin", [Origin.NATIVE, pytest.param(Origin.OWN, marks=pytest.mark.slow)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_findings_with_a_purged_log_equal_those_with_the_whole_log(
    grown: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, origin: Origin
) -> None:
    one = grown.copied_to(open_storage(str(tmp_path / "root")), tmp_path / "job")
    _gone_below(one, FIRST)
    if origin is Origin.NATIVE:
        one.storage.delete([names.BINDING])
    DAMAGES[damage](one)
    policies = [RetentionPolicy(versions=versions, grace_seconds=0) for versions in (3, 6, 100)]
    gathered = audit.gather(one.storage)
    found = [_audited(one.storage, policy.versions) for policy in policies]
    assert gathered.logs.whole_since > 0 or damage == "a dead branch long ago", "nothing was left out"
    plans = [_planned(one.storage, policy) for policy in policies]
    right = catalog.commit_log

    def all_of_it(storage: Storage, *, down_to: int | None = None) -> CommitLog | None:
        log = right(storage)
        return None if log is None else _AllOfIt(log, range(-1, log.newest.batch + 1))

    monkeypatch.setattr(commits, "_whole_since", lambda batches, files: 0)
    assert found == [_audited(one.storage, policy.versions) for policy in policies]
    if "old commit" in damage or "long ago" in damage:
        return  # a plan that retains little does not read them any more
    monkeypatch.setattr(catalog, "commit_log", all_of_it)
    assert plans == [_planned(one.storage, policy) for policy in policies]
