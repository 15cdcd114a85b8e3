"""Arithmetic on the digests of `Database.digest`, which do not depend on the order of rows."""

from __future__ import annotations

from collections.abc import Iterable

_MODULUS = 2**128


def total(digests: Iterable[str]) -> str:
    """Return the digest of all rows of disjoint databases."""
    rows = digest = 0
    for one in digests:
        count, _, text = one.partition(":")
        rows += int(count)
        digest += int(text, 16)
    return f"{rows}:{digest % _MODULUS:032x}"


def rows_of(digest: str) -> int:
    """Return the number of rows."""
    return int(digest.partition(":")[0])
