"""Roots behind drivers: typed errors, the requirements for a driver, and every verb on each store.

`make interop-stores` runs the tests on real stores, here and in `test_storage`. `test_hdfs` covers HDFS.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fsspec.implementations.local import LocalFileSystem

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import AccessDenied, BucketMissing, StorageError
from statekeeper.statestore.cli import main
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.storage import StorageSpec, open_storage
from statekeeper.statestore.storage.drivers import Opened
from statekeeper.statestore.storage.local import LocalStorage
from statekeeper.statestore.storage.remote import RemoteStorage
from tests.support.checkpoints import Checkpoint
from tests.support.counted_state import SCHEMA, changes, counts
from tests.support.storage_answers import BODIES, PATHS, answer
from tests.support.storage_servers import Azurite, FakeGcs, StoreServer


class Linking(LocalFileSystem):
    """fsspec's driver of the local disk, with atomic create. The original checks first and writes then."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.makedirs(self._parent(path), exist_ok=True)
        unfinished = Path(f"{path}.{RandomIds().fresh()}.unfinished")
        unfinished.write_bytes(value)
        try:
            os.link(unfinished, path) if mode == "create" else unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def put_file(self, path1: str, path2: str, mode: str = "overwrite", **_: Any) -> None:
        self.pipe_file(path2, Path(path1).read_bytes(), mode)


def on_disk(folder: Path) -> RemoteStorage:
    files = Linking(skip_instance_cache=True)
    opened = Opened(files=files, service="linking", place=str(folder), upload={}, failures=(OSError,), copy=None)
    return RemoteStorage(f"linking://{folder}", opened, clock=SystemClock(), ids=RandomIds(), timeout_seconds=0.0)


def test_a_root_behind_a_driver_behaves_like_one_on_disk(tmp_path: Path) -> None:
    chance = random.Random(7)
    disk, driven = LocalStorage(tmp_path / "root", ids=RandomIds()), on_disk(tmp_path / "driven")
    source, target = tmp_path / "source", tmp_path / "target"

    def downloaded(storage: Any, path: str) -> bytes:
        target.unlink(missing_ok=True)
        return b"%d " % storage.download(path, target) + target.read_bytes()

    for _ in range(400):
        path, body = chance.choice(PATHS), chance.choice(BODIES)
        source.write_bytes(body)
        calls: list[Callable[[Any], object]] = [
            lambda storage, path=path, body=body: storage.create(path, body),
            lambda storage, path=path: storage.create(path, source),
            lambda storage, path=path, body=body: storage.replace(path, body),
            lambda storage, path=path: storage.read(path),
            lambda storage, path=path: storage.read_range(path, 1, 4),
            lambda storage, path=path: downloaded(storage, path),
            lambda storage, path=path: getattr(storage.stat(path), "size_bytes", None),
            lambda storage: [(entry.path, entry.size_bytes) for entry in storage.list("")],
            lambda storage: [(entry.path, entry.size_bytes) for entry in storage.list("b")],
            lambda storage: [entry.path for entry in storage.list("b", hidden=True)],
            lambda storage, path=path: storage.delete([path, "a"]),
        ]
        call = chance.choice(calls)
        assert answer(call, driven) == answer(call, disk)


def test_pattern_characters_in_names_are_literal(tmp_path: Path) -> None:
    storage = on_disk(tmp_path / "driven")
    for path in ("a/1", "a/2", "a/*", "b/[12]", "b/1"):
        storage.create(path, b"")
    storage.delete(["a/*", "b/[12]"])
    assert [entry.path for entry in storage.list("")] == ["a/1", "a/2", "b/1"]


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("abfss://c@account.dfs.core.windows.net/jobs", "adlfs", "azure"),
        ("gs://bucket/jobs", "gcsfs", "google"),
        ("webhdfs://namenode:9870/jobs", "requests", "hdfs"),
    ],
)
def test_a_missing_driver_is_reported_with_the_extra_to_install(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    said = CliRunner().invoke(main, ["audit", url])
    assert said.exit_code == 1
    assert (
        f"needs the package {package}, which is not installed -> run: pip install 'statekeeper[{extra}]'" in said.output
    )
    monkeypatch.setattr(metadata, "version", lambda _: "1.2.3")
    with pytest.raises(StorageError, match=rf"needs {package} .* or later, but 1.2.3 is installed"):
        open_storage(url)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/jobs", {"token": "google_default"}),
        ("abfss://container/jobs", {}),
        ("abfss://c@account.dfs.core.windows.net/jobs", {"connection_string": "nonsense"}),
        ("webhdfs://namenode/jobs", {"user": "me", "token": "mine"}),
    ],
)
def test_missing_or_invalid_credentials_are_reported(
    url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(StorageError, match="check the credentials"):
        open_storage(url, options=options)


def test_an_option_that_a_store_does_not_support_is_rejected() -> None:
    with pytest.raises(StorageError, match=r"unknown options: endpoint -> use project, token, endpoint_url"):
        open_storage("gs://bucket/jobs", options={"endpoint": "http://127.0.0.1:1"})


@pytest.fixture(params=["azurite", "fake_gcs", "hdfs"])
def server(request: pytest.FixtureRequest) -> StoreServer:
    found: StoreServer = request.getfixturevalue(request.param)
    return found


@pytest.mark.slow
def test_every_verb_works_on_a_root_in_each_store(server: StoreServer, tmp_path: Path) -> None:
    spec = server.new_root()
    checkpoint = Checkpoint(open_storage(spec), tmp_path / "job", schema=SCHEMA)
    for n in range(4):
        checkpoint.batch(changes(a=n, b=2), changes(z=n))
    options = ", ".join(f'{name} = "{value}"' for name, value in spec.options)
    config = tmp_path / "statekeeper.toml"
    config.write_text(f'[roots.counts]\nurl = "{spec.url}/"\nstorage = {{ {options} }}\n')

    def say(verb: str, root: str, *rest: str, exit_code: int = 0) -> str:
        done = CliRunner().invoke(main, ["--config", str(config), verb, root, *rest])
        assert done.exit_code == exit_code, done.output
        return done.output

    spelled = spec.url.replace("abfss:", "abfs:")
    assert say("inspect", "counts") == say("inspect", spelled)
    assert "clean" in say("audit", "counts", "--deep")
    assert "2 taken, 0 failed" in say("snapshot", spelled, "--all", "--scratch", str(tmp_path))
    assert "nothing" not in say("gc", "counts", "--retain", "1", "--grace", "0s")
    say("gc", "counts", "--retain", "1", "--grace", "0s", "--apply")
    left = [entry.path for entry in checkpoint.storage.list("state") if entry.path.endswith(".changelog")]
    assert left == []
    assert "clean" in say("audit", spelled, "--deep")
    assert "the lease is free" in say("lease", "counts")
    checkpoint.batch(changes(b=None), changes(y=5))
    assert "clean" in say("audit", "counts", "--deep")
    assert counts([json.loads(row) for row in say("dump", spelled, "--output", "jsonl").splitlines()]) == [
        ("state/0/0", "a", 3),
        ("state/0/1", "y", 5),
        ("state/0/1", "z", 3),
    ]
    assert "1 removed" in say("diff", "counts")
    held = lease.acquire(open_storage(spec), "gc", run="a run", holder="elsewhere:1", clock=SystemClock())
    assert "elsewhere:1 holds the lease of this root for the command" in say("snapshot", spelled, "--all", exit_code=11)
    held.release()


@pytest.mark.slow
def test_access_errors_are_typed(azurite: Azurite, fake_gcs: FakeGcs, tmp_path: Path) -> None:
    for server in (azurite, fake_gcs):
        spec = StorageSpec(server.url("never-made"), tuple(server.options.items()))
        for act in (
            lambda spec=spec: open_storage(spec).list(""),
            lambda spec=spec: open_storage(spec).stat("a"),
            lambda spec=spec: open_storage(spec).folders(""),
            lambda spec=spec: open_storage(spec).create("a", b""),
        ):
            with pytest.raises(BucketMissing, match="does not exist"):
                act()
    wrong = azurite.options["connection_string"].replace(azurite.account_key, "bm90IHRoaXM=")
    with pytest.raises(AccessDenied, match="access denied"):
        open_storage(azurite.new_root().url, options={"connection_string": wrong}).list("")
    fake_gcs_is_gone = {"endpoint_url": "http://127.0.0.1:1", "token": "anon"}
    with suppress(BucketMissing), pytest.raises(StorageError, match="check the URL"):
        open_storage("gs://bucket/jobs", options=fake_gcs_is_gone).read("a")
