"""Peak memory of a function call in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parent.parent
_RUN = """
import importlib, json, resource, sys, time
work = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
imported = resource.getrusage(resource.RUSAGE_SELF)
started = time.perf_counter()
result = work(*sys.argv[3:])
done = resource.getrusage(resource.RUSAGE_SELF)
cpu = done.ru_utime + done.ru_stime - imported.ru_utime - imported.ru_stime
print(json.dumps([done.ru_maxrss, imported.ru_maxrss, cpu, time.perf_counter() - started, result]))
"""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Resources of one call. `peak_mib`: of the whole process. `imported_mib`: after the imports, before the call."""

    peak_mib: float
    imported_mib: float
    cpu_seconds: float
    seconds: float
    result: Any


def peak_of(module: str, function: str, *arguments: str) -> Peak:
    """Call a function of a module in a new process. Its result must be serializable as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, module, function, *arguments],
        cwd=_REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    peak_kib, imported_kib, cpu, seconds, result = json.loads(done.stdout.splitlines()[-1])
    return Peak(
        peak_mib=peak_kib / 1024, imported_mib=imported_kib / 1024, cpu_seconds=cpu, seconds=seconds, result=result
    )
