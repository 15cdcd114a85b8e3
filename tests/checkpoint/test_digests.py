"""Digests detect differences between chains of files."""

from __future__ import annotations

from pathlib import Path

from statekeeper.statestore.checkpoint import digests
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId, is_checkpoint_id

STORE = StorePath(0, 3)


def test_a_digest_depends_on_bytes_predecessors_and_store(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.write_bytes(b"changes")
    other.write_bytes(b"others!")
    first = digests.following(STORE, EMPTY, mine)
    assert first == VersionId(1)
    assert is_checkpoint_id(str(first.digest))
    assert first.is_same(digests.following(STORE, EMPTY, mine))
    second = digests.following(STORE, first, mine)
    alike = [
        digests.following(STORE, EMPTY, other),
        digests.following(StorePath(0, 4), EMPTY, mine),
        VersionId(1),
        VersionId(1, first.digest),
    ]
    assert second.version == 2
    assert second.digest != first.digest
    assert not any(first.is_same(one) for one in alike)
    assert not second.is_same(digests.following(STORE, alike[0], mine))
