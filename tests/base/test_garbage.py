"""Garbage collections of workers: what modules hold is left out, and the garbage of tasks is not."""

from __future__ import annotations

import subprocess
import sys

_IN_A_NEW_PROCESS = """
import gc, sys, types, weakref
import pandas
from statekeeper.statestore.base.garbage import freeze_modules

class Cycle:
    def __init__(self):
        self.itself = self

gc.disable()
before = weakref.ref(Cycle())
freeze_modules()
assert before() is None, "the garbage from before is collected"
assert gc.get_freeze_count() > 50_000 and len(gc.get_objects()) < 5_000

after = weakref.ref(Cycle())
kept = [Cycle() for _ in range(100)]
freeze_modules()
frozen = gc.get_freeze_count()
assert after() is not None, "without new modules, nothing happens"
gc.collect()
assert after() is None, "the garbage of later tasks is collected"

for number in range(len(sys.modules)):
    sys.modules[f"new{number}"] = types.ModuleType(f"new{number}")
freeze_modules()
assert gc.get_freeze_count() >= frozen + 100 + len(sys.modules) // 2, "new modules are left out too"
print("checked")
"""


def test_modules_are_left_out_of_collections_and_garbage_is_not():
    done = subprocess.run([sys.executable, "-c", _IN_A_NEW_PROCESS], capture_output=True, text=True, check=False)
    assert done.stdout == "checked\n", done.stderr
