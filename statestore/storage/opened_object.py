"""An object as a file in which a library seeks, such as the reader of Parquet files."""

from __future__ import annotations

import io

from statekeeper.statestore.storage.base import Storage


class OpenedObject(io.RawIOBase):
    """An object of a storage as a file; each read is a request for a range.

    `size_bytes`: of the object, if it is known; otherwise one more request finds it. A missing object is empty then.
    """

    def __init__(self, storage: Storage, path: str, size_bytes: int | None = None) -> None:
        super().__init__()
        self._storage, self._path, self._at = storage, path, 0
        if size_bytes is None:
            entry = storage.stat(path)
            size_bytes = 0 if entry is None else entry.size_bytes
        self._size_bytes = size_bytes

    def read(self, size: int = -1) -> bytes:
        left = self._size_bytes - self._at
        data = self._storage.read_range(self._path, self._at, left if size < 0 else min(size, left))
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
