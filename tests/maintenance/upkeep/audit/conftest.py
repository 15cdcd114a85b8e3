"""Checkpoints to audit: of Statekeeper on each storage, and of Spark in both structures."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.snapshots import publish_snapshot, take
from tests.support.sparks_checkpoints import STORE, add_sidecar, changelog, commit, describe


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("template")
    made = Checkpoint(open_storage(str(folder / "root")), folder)
    made.grow(3)
    take(made.storage, folder)
    made.grow(3)
    return made


@pytest.fixture
def checkpoint(template: Checkpoint, storage: Storage, tmp_path: Path) -> Checkpoint:
    """Two stores, versions 1 to 6, a snapshot of version 3."""
    return template.copied_to(storage, tmp_path)


@pytest.fixture(scope="session")
def sparks(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Structure V2, two stores, versions 1 to 6, snapshots of version 3."""
    folder = tmp_path_factory.mktemp("sparks")
    checkpoint = Checkpoint(open_storage(str(folder / "root")), folder)
    checkpoint.grow(3)
    take(checkpoint.storage, folder)
    checkpoint.grow(3)
    storage = checkpoint.storage
    for batch in range(6):
        commit(storage, batch, [str(version.id) for version in checkpoint.versions[batch + 1]])
    for entry in storage.list(names.STATE):
        if entry.path.endswith((".changelog", ".zip")):
            add_sidecar(storage, entry.path)
    storage.delete([entry.path for entry in storage.list(names.CONTROL)])
    return checkpoint


@pytest.fixture
def v2(sparks: Checkpoint, tmp_path: Path) -> Checkpoint:
    return sparks.copied_to(open_storage(str(tmp_path / "of V2")), tmp_path)


@pytest.fixture
def v1(tmp_path: Path) -> Storage:
    """Structure V1, one store, versions 1 to 6, a snapshot of version 3."""
    storage = open_storage(str(tmp_path / "of V1"))
    describe(storage)
    for number in range(1, 7):
        storage.create(STORE.changelog(VersionId(number)), changelog(number))
        commit(storage, number - 1, None)
    publish_snapshot(storage, STORE, VersionId(3), {b"key %d" % n: b"value %d" % n for n in (1, 2, 3)}, tmp_path)
    return storage
