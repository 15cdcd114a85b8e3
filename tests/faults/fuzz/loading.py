"""Digests of the rows that the library loads from each head, to detect losses by a damage or a verb."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.contents.rows import Contents, contents_at
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import EngineLimits
from statekeeper.statestore.store.loading.loader import Loader
from tests.faults.fuzz.files import fingerprint

_LIMITS = EngineLimits(block_bytes=4096)


@dataclass
class Heads:
    """Loads the heads of checkpoints that are copies of one another. Unchanged heads are loaded once."""

    scratch: Path
    _known: dict[tuple[str, ...], str | None] = field(default_factory=dict)

    def of(self, root: Path) -> dict[str, str]:
        """A digest of the rows of each store whose head loads, by the store's path."""
        storage = open_storage(str(root))
        try:
            contents = contents_at(storage)
        except StatekeeperError:
            return {}
        if contents is None:
            return {}
        logs = fingerprint(root, "commits", "offsets", names.BATCH_LOGS)
        found = {}
        for store, version in contents.stores.items():
            key = (str(store), str(version), logs, fingerprint(root, store.folder))
            if key not in self._known:
                self._known[key] = self._loaded(contents, store)
            digest = self._known[key]
            if digest is not None:
                found[str(store)] = digest
        return found

    def why_not(self, root: Path, store: str) -> str:
        """Return the library's error for a head that cannot be loaded."""
        try:
            contents = contents_at(open_storage(str(root)))
            if contents is None:
                return "no batch is committed"
            [path] = [path for path in contents.stores if str(path) == store]
            _digest(contents, path, self.scratch)
        except (StatekeeperError, ValueError) as error:
            return str(error)
        return "it loads, with other rows"

    def _loaded(self, contents: Contents, store: StorePath) -> str | None:
        try:
            return _digest(contents, store, self.scratch)
        except StatekeeperError:
            return None


def _digest(contents: Contents, store: StorePath, scratch: Path) -> str:
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        cache = LocalCopyFolder(Path(name) / "store", _LIMITS, RandomIds())
        loader = Loader(
            store, contents.storage, cache, _LIMITS, clock=SystemClock(), lock_timeout_seconds=0, conf=contents.conf
        )
        digest = hashlib.sha256()
        with loader.restore(contents.stores[store], Path(name) / "database").database as database:
            for keys, values in database.scan():
                for pair in zip(keys, values, strict=True):
                    for part in pair:
                        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
