"""Enumerates damage to a small file: bit patterns of each important byte, and each prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from statestore.errors import StatekeeperError

T = TypeVar("T")


def flips(data: bytes) -> Iterator[bytes]:
    """The bytes with one of them changed: all its bits, its lowest, its highest."""
    for position in range(len(data)):
        for mask in (0xFF, 0x01, 0x80):
            yield data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]


def prefixes(data: bytes) -> Iterator[bytes]:
    """All that is left when the end is cut off, the empty file first."""
    for length in range(len(data)):
        yield data[:length]


def value_or_error(act: Callable[[bytes], T], data: bytes, *, names: str) -> T | StatekeeperError:
    """Return the result of `act` on the bytes, or the library's error, which must name the file. Other exceptions
    are raised."""
    try:
        return act(data)
    except StatekeeperError as error:
        if names not in str(error):
            raise AssertionError(f"an error that does not name {names}") from error
        return error
