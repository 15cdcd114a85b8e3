"""Digests: in structure V1, which of the files that one name may have had was confirmed.

A changelog of structure V1 is named by its number alone, and an attempt that runs again replaces the one of the attempt
before. So the driver confirms a version by a digest, which chains the files since the one that the chain began with:

    digest(version) = hash(digest(version - 1), bytes of the changelog, as they lie in storage)

    commits/N   v1, with statekeeperDigests: operator -> partition -> the digest of version N+1

A digest looks like a checkpoint id. To whoever compares it is a text: a chain may begin at any version that has a
snapshot, with any text that was never used before. So does a switchover to V1.
"""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

from statestore.format.names import StorePath, VersionId

_SIZE_BYTES = 16


def following(store: StorePath, base: VersionId, changelog: Path) -> VersionId:
    """What a changelog, as a file on the local disk, makes of `base`. Raises `OSError`.

    `base` has a digest, or is the empty version: its chain begins with the store's own name, so that a file of another
    partition fits nowhere.
    """
    before = base.digest or store.folder
    digest = hashlib.blake2b(before.encode() + b"\0", digest_size=_SIZE_BYTES, person=b"statekeeper 1")
    with changelog.open("rb") as file:
        while piece := file.read(1024 * 1024):
            digest.update(piece)
    return VersionId(base.version + 1, digest=str(uuid.UUID(bytes=digest.digest())))
