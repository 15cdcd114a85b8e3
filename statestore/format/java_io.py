"""The primitives of Java's DataOutputStream in Spark's files: big-endian ints and `writeUTF`."""

from __future__ import annotations

import struct

from statekeeper.statestore.base.errors import CorruptFile

UTF_LIMIT_BYTES = 65_535
"""Maximum size of a text in `writeUTF`: its size is an unsigned 16-bit number."""

_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_USHORT = struct.Struct(">H")


def utf(text: str) -> bytes:
    """Encode a text as `DataOutputStream.writeUTF`: 2 bytes for the size, then Java's modified UTF-8.

    Modified: NUL takes two bytes, and a character beyond U+FFFF is written as two surrogates of three bytes each.
    Raises `ValueError` for more than `UTF_LIMIT_BYTES`.
    """
    if text.isascii() and "\0" not in text:
        body = text.encode("ascii")
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        halves = "".join(chr(units[i] << 8 | units[i + 1]) for i in range(0, len(units), 2))
        body = halves.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(body) > UTF_LIMIT_BYTES:
        raise ValueError(f"a text has {len(body):,} bytes; the maximum of writeUTF is {UTF_LIMIT_BYTES:,}")
    return _USHORT.pack(len(body)) + body


def from_modified_utf8(body: bytes) -> str:
    """Decode modified UTF-8. Raises `UnicodeError` for other bytes."""
    halves = body.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    return halves.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


class Reader:
    """Reads these primitives in order. A read past the end raises a `CorruptFile` that names the file."""

    def __init__(self, data: bytes, path: str, position: int = 0) -> None:
        self.data = data
        self.path = path
        self.position = position

    def take(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes."""
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise CorruptFile(
                f"is truncated: {what} at byte {self.position:,} has {count:,} bytes, but the file has only "
                f"{len(self.data):,}",
                path=self.path,
                hint="restore the file from a backup, or load an older version",
            )
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def int16(self, what: str) -> int:
        """Read a signed 16-bit number."""
        return int(_SHORT.unpack(self.take(2, what))[0])

    def int32(self, what: str) -> int:
        """Read a signed 32-bit number."""
        return int(_INT.unpack(self.take(4, what))[0])

    def utf(self, what: str) -> str:
        """Read a text written by `writeUTF`."""
        length = int(_USHORT.unpack(self.take(2, what))[0])
        body = self.take(length, what)
        try:
            return from_modified_utf8(body)
        except UnicodeError as error:
            raise CorruptFile(f"has a text that is not UTF-8: {what}", path=self.path) from error
