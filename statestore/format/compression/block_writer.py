"""Cuts a stream of plain bytes into blocks of one size, for the writers of the codecs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class CompressedWriter(Protocol):
    """Compresses plain bytes into a sink as they arrive. `finish` writes the rest; the sink stays open."""

    def write(self, plain: bytes | memoryview) -> None: ...
    def finish(self) -> None: ...


class Blocks:
    """Passes plain bytes to `emit` in blocks of `block_bytes`; the last one may be shorter. Full blocks are passed at
    once."""

    def __init__(self, block_bytes: int, emit: Callable[[bytes | memoryview], None]) -> None:
        self._block_bytes = block_bytes
        self._emit = emit
        self._open_block = bytearray()

    def write(self, plain: bytes | memoryview) -> None:
        """Append plain bytes."""
        view = memoryview(plain)
        position = 0
        if self._open_block:
            position = min(self._block_bytes - len(self._open_block), len(view))
            self._open_block += view[:position]
            if len(self._open_block) < self._block_bytes:
                return
            self._emit_open_block()
        while len(view) - position >= self._block_bytes:
            self._emit(view[position : position + self._block_bytes])
            position += self._block_bytes
        self._open_block += view[position:]

    def flush(self) -> None:
        """Pass the last block, if there is one."""
        if self._open_block:
            self._emit_open_block()

    def _emit_open_block(self) -> None:
        self._emit(bytes(self._open_block))
        self._open_block.clear()
