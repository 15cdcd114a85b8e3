"""Byte strings of unequal length, consecutive in one buffer: slices and joins without a loop per row.

This module is independent of rows and types. Offsets, starts and lengths are int64 and count bytes of a uint8 buffer
unless a name says otherwise. Arrow does the copies and moves each slice with one memcpy: an index per byte would cost
several times the bytes that it moves, and eight times their memory. Arrow arrays are built from buffers, because
`pa.array` and `pa.scalar` import pandas if it is installed, which takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """`n` byte strings: string `i` is `data[offsets[i]:offsets[i + 1]]`. `offsets`: n + 1 entries, never decreasing."""

    offsets: Counts
    data: Bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Counts:
        return np.diff(self.offsets)

    def to_arrow(self) -> pa.LargeBinaryArray:
        """Return the same bytes as an Arrow array without nulls, without a copy."""
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.offsets)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)

    @classmethod
    def from_arrow(cls, array: pa.LargeBinaryArray) -> Ragged:
        """Wrap the bytes of an Arrow array, which may be a slice, without a copy. Nulls keep their bytes."""
        return cls(_offsets(array), as_numpy(array.buffers()[2], np.dtype(np.uint8)))

    @classmethod
    def of_equal_length(cls, rows: Bytes) -> Ragged:
        """Wrap each row of a (n, width) array as one string."""
        count, width = rows.shape
        return cls(np.arange(count + 1, dtype=np.int64) * width, np.ascontiguousarray(rows).reshape(-1))


def as_numpy(buffer: pa.Buffer | None, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a view of an Arrow buffer. Arrow omits empty buffers."""
    if buffer is None:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, count=buffer.size // dtype.itemsize)


def _offsets(array: pa.LargeBinaryArray) -> Counts:
    offsets = as_numpy(array.buffers()[1], np.dtype(np.int64))
    if not len(array):
        return np.zeros(1, np.int64)
    return offsets[array.offset : array.offset + len(array) + 1]


def offsets_of(lengths: npt.NDArray[Any]) -> Counts:
    """Return the start of each string in a consecutive layout, and the end of the last one: n + 1 entries."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def positions(bases: Counts, counts: Counts) -> Counts:
    """Return `bases[i], bases[i] + 1, ... bases[i] + counts[i] - 1` for each i, in order."""
    offsets = offsets_of(counts)
    return np.repeat(bases - offsets[:-1], counts) + np.arange(offsets[-1])


def gather(data: Bytes, starts: Counts, lengths: Counts) -> Ragged:
    """Copy the slices `data[starts[i]:starts[i] + lengths[i]]` into consecutive strings.

    The slices must lie inside `data`, in order and without overlap. The caller checks starts that come from a file.
    """
    count = len(starts)
    offsets = offsets_of(lengths)
    if not offsets[-1]:
        return Ragged(offsets, np.empty(0, np.uint8))
    if offsets[-1] == starts[-1] + lengths[-1] - starts[0]:
        return Ragged(offsets, data[starts[0] : starts[0] + offsets[-1]])
    # The slices and the gaps between them alternate. Together they are an Arrow array over the same bytes.
    edges = np.empty(2 * count + 1, np.int64)
    edges[:-1:2] = starts
    np.add(starts, lengths, out=edges[1::2])
    edges[-1] = edges[-2]
    both = Ragged(edges, data).to_arrow()
    slices = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.arange(0, 2 * count, 2))])
    taken = Ragged.from_arrow(both.take(slices))
    return Ragged(offsets, taken.data[: offsets[-1]])


def scatter(out: npt.NDArray[Any], bases: Counts, counts: Counts, values: npt.NDArray[Any]) -> None:
    """Copy the next `counts[i]` of `values` into `out` from element `bases[i]` on, for each i."""
    if len(counts) and len(values) == counts[0] * len(counts) and (counts == counts[0]).all():
        places = bases[:, None] + np.arange(counts[0])
        out[places] = values.reshape(places.shape)
    else:
        out[positions(bases, counts)] = values


def join(pieces: list[Ragged]) -> Ragged:
    """Concatenate the pieces string by string. All pieces have the same number of strings."""
    if len(pieces) == 1 or not len(pieces[0]):
        return pieces[0]
    return Ragged.from_arrow(pc.binary_join_element_wise(*[piece.to_arrow() for piece in pieces], _NOTHING))


_NOTHING = Ragged(np.zeros(2, np.int64), np.empty(0, np.uint8)).to_arrow()[0]
