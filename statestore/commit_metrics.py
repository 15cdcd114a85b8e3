"""The figures of a commit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class CommitMetrics:
    """The work of a commit. `changed_bytes` is uncompressed; `uploaded_bytes` is compressed.

    lineage_versions       the number of versions that the changelog names, 0 in structure V1
    tail_changelogs        the number of changelogs since the newest snapshot, including this one
    early_bytes            the part of `uploaded_bytes` that was in storage before `commit` was called
    back_pressure_seconds  time that the changes waited for their upload before `commit` was called
    """

    changed_keys: int = 0
    changed_bytes: int = 0
    uploaded_bytes: int = 0
    requests: int = 0
    encode_milliseconds: float = 0.0
    upload_milliseconds: float = 0.0
    lineage_versions: int = 0
    tail_changelogs: int = 0
    early_bytes: int = 0
    back_pressure_seconds: float = 0.0
