"""Digests of versions in structure V1. They identify the confirmed changelog among those of several attempts.

The name of a changelog in structure V1 is only its number, so that each attempt replaces the changelog of the previous one.
The driver therefore confirms a version by a digest, which covers all changelogs since the start of the chain:

    digest(version) = hash(digest(version - 1), bytes of the changelog in storage)

    commits/N   v1, with statekeeperDigests: operator -> partition -> the digest of version N+1

A digest has the form of a checkpoint id. Comparisons treat it as text: a chain may start at any version with a snapshot,
with any text that was never used before. A switchover to V1 starts such a chain.
"""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

from statekeeper.statestore.format.names import StorePath, VersionId

_SIZE_BYTES = 16


def following(store: StorePath, base: VersionId, changelog: Path) -> VersionId:
    """Compute the version that a changelog on the local disk adds to `base`. Raises `OSError`.

    `base` has a digest, or is version 0: its chain starts with the path of the store, so that changelogs of another store
    have other digests.
    """
    before = base.digest or store.folder
    digest = hashlib.blake2b(before.encode() + b"\0", digest_size=_SIZE_BYTES, person=b"statekeeper 1")
    with changelog.open("rb") as file:
        while piece := file.read(1024 * 1024):
            digest.update(piece)
    return VersionId(base.version + 1, digest=str(uuid.UUID(bytes=digest.digest())))
