"""The root in memory, which simulations use, behaves like a root on disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.storage.local import LocalStorage
from tests.support.memory import MemoryStorage
from tests.support.storage_answers import BODIES, PATHS, answer


def test_a_root_in_memory_behaves_like_one_on_disk(tmp_path: Path) -> None:
    chance = random.Random(5)
    disk, memory = LocalStorage(tmp_path / "root", ids=RandomIds()), MemoryStorage(lambda: 0.0)
    source, target = tmp_path / "source", tmp_path / "target"
    for _ in range(400):
        path, body = chance.choice(PATHS), chance.choice(BODIES)
        source.write_bytes(body)

        def downloaded(storage: Storage, path: str = path) -> bytes:
            target.unlink(missing_ok=True)
            return b"%d " % storage.download(path, target) + target.read_bytes()

        calls: list[Callable[[Storage], object]] = [
            lambda storage, path=path, body=body: storage.create(path, body),
            lambda storage, path=path: storage.create(path, source),
            lambda storage, path=path, body=body: storage.replace(path, body),
            lambda storage, path=path: storage.read(path),
            lambda storage, path=path: storage.read_range(path, 1, 4),
            downloaded,
            lambda storage, path=path: getattr(storage.stat(path), "size_bytes", None),
            lambda storage: [(entry.path, entry.size_bytes) for entry in storage.list("")],
            lambda storage: [(entry.path, entry.size_bytes) for entry in storage.list("b")],
            lambda storage: [entry.path for entry in storage.list("_statekeeper/tmp")],
            lambda storage, path=path: storage.delete([path, "a"]),
        ]
        call = chance.choice(calls)
        assert answer(call, disk) == answer(call, memory)
