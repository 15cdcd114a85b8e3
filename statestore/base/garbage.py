"""Garbage collections of Spark's Python workers."""

from __future__ import annotations

import gc
import sys

_GROWTH = 1.1
"""With so many times the modules of the last freeze, modules are frozen again. So this happens a few times only."""
_modules = 0
"""The modules at the last freeze."""


def freeze_modules() -> None:
    """Exempt the objects of this process, most of them of its modules, from garbage collections; again after many imports.

    Spark collects the garbage of a worker after each task (`pyspark/daemon.py`). With pyarrow and pandas in memory, this
    takes more CPU than a small task. It still collects all garbage of later tasks. Frozen objects that become garbage in
    cycles stay in memory.
    """
    global _modules
    if len(sys.modules) < _GROWTH * _modules:
        return
    gc.collect()
    gc.freeze()
    _modules = len(sys.modules)
