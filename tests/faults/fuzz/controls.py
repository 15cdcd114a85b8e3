"""Faults injected into the library to verify that the harness finds each: `--break NAME`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from statekeeper.statestore.cli import inspect
from statekeeper.statestore.format.names import STATE
from statekeeper.statestore.storage import Storage
from tests.faults.fuzz import dispatch

_SECONDS = 5.0


def _ends_in_a_traceback(*_: Any, **__: Any) -> NoReturn:
    raise KeyError("on purpose")


def _hangs(*_: Any, **__: Any) -> NoReturn:
    while True:
        time.sleep(1)


def _takes_memory(*_: Any, **__: Any) -> NoReturn:
    bytearray(2 * dispatch.MEMORY_BYTES)
    raise AssertionError("the memory was there")


def _writes_outside(storage: Storage, *_: Any, **__: Any) -> NoReturn:
    root = Path(storage.url.removeprefix("file://"))
    (root.parent / "outside" / "of the root").write_text("on purpose")
    raise SystemExit(1)


def _writes_below_the_root(storage: Storage, *_: Any, **__: Any) -> NoReturn:
    storage.create(f"{STATE}/on purpose", b"")
    raise SystemExit(1)


def _deletes_all(storage: Storage, *_: Any, **__: Any) -> NoReturn:
    storage.delete([entry.path for entry in storage.list(STATE)])
    raise SystemExit(1)


CONTROLS: dict[str, tuple[Callable[..., NoReturn], str]] = {
    "traceback": (_ends_in_a_traceback, "TRACEBACK"),
    "hang": (_hangs, "HANG"),
    "memory": (_takes_memory, "TRACEBACK"),
    "outside": (_writes_outside, "WROTE OUTSIDE"),
    "reader": (_writes_below_the_root, "READER WROTE"),
    "loss": (_deletes_all, "LOST"),
}
"""Faults of `inspect` in place of its advice, and the kind of failure that the harness must report."""


@contextmanager
def built_in(name: str) -> Iterator[None]:
    """The library with a fault, for as long as the block lasts."""
    fault, _ = CONTROLS[name]
    seconds = _SECONDS if name == "hang" else dispatch.SECONDS
    with mock.patch.object(inspect, "advice", fault), mock.patch.object(dispatch, "SECONDS", seconds):
        yield
