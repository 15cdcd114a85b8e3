"""A digest of rows that depends neither on their order nor on the tables that hold them."""

from __future__ import annotations

from collections.abc import Iterable

from xxhash import xxh3_128_intdigest

_DIGEST_BYTES = 16
_MODULUS = 2 ** (8 * _DIGEST_BYTES)


class RowsDigest:
    """The number of rows, and the sum of their 128-bit hashes. As text: `<rows>:<sum>`.

    It reveals accidents, not attacks: XXH3 is not a cryptographic hash.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Add keys with their values."""
        total = count = 0
        for key, value in pairs:
            total += xxh3_128_intdigest(len(key).to_bytes(4, "big") + key + value)
            count += 1
        self.rows += count
        self._sum += total

    def merge(self, other: RowsDigest) -> None:
        """Add the rows of another digest."""
        self.rows += other.rows
        self._sum += other._sum

    @classmethod
    def parse(cls, text: str) -> RowsDigest:
        """Parse the text of a digest. Raises `ValueError`."""
        digest = cls()
        rows, _, total = text.partition(":")
        digest.rows, digest._sum = int(rows), int(total, 16)
        return digest

    def take(self, other: RowsDigest) -> None:
        """Remove rows that were added before."""
        self.rows -= other.rows
        self._sum -= other._sum

    def __str__(self) -> str:
        return f"{self.rows}:{self._sum % _MODULUS:0{2 * _DIGEST_BYTES}x}"
