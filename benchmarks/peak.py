"""Peak memory of a function call in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parent.parent
_MIB = 2**20
_RUN = """
import importlib, json, os, sys, time
from benchmarks.peak import peak_bytes
work = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
imported, imported_cpu = peak_bytes(os.getpid()), time.process_time()
started = time.perf_counter()
result = work(*sys.argv[3:])
cpu, seconds = time.process_time() - imported_cpu, time.perf_counter() - started
print(json.dumps([peak_bytes(os.getpid()), imported, cpu, seconds, result]))
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
    peak, imported, cpu, seconds, result = json.loads(done.stdout.splitlines()[-1])
    return Peak(peak_mib=peak / _MIB, imported_mib=imported / _MIB, cpu_seconds=cpu, seconds=seconds, result=result)


def peak_bytes(process: int) -> int:
    """Return the peak memory of a process. Unlike `getrusage`, it does not include the process that started it."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no peak memory")
