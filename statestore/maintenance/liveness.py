"""Whether the process that holds a lease has ended, as far as this machine proves it.

A process id alone proves nothing: another process may have it later, and each container has ids of its own. So a process
is named by the start of the machine, the namespace of its id, the id, and the time of its start:

    5b3f.../4026531836/1234/881720

Only Linux shows all of them. For a process of another machine, of another container, or before a restart of this machine,
the answer is always no.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_BOOT = _PROC / "sys/kernel/random/boot_id"
_START_FIELD = 19
"""Fields of `stat` after the name: the first is the state of the process, this is the time of its start."""
_MOST_DIGITS = 10
"""Of a process id. The record is untrusted, and Python rejects numbers of thousands of digits."""
_ENDED = frozenset({"Z", "X"})
"""States of a process that has ended, and whose parent has not noticed it."""


def this_process() -> str:
    """Return the name of this process; empty if the machine does not show it."""
    place, about = _place(), _about(os.getpid())
    return "" if place is None or about is None else f"{place}/{os.getpid()}/{about[1]}"


def has_ended(process: str) -> bool:
    """Return whether the process with this name has ended. False if it lives, or if this machine cannot prove it."""
    place, _, rest = process.rpartition("/")[0].rpartition("/")
    started = process.rpartition("/")[2]
    if not place or place != _place() or not (rest.isascii() and rest.isdecimal() and started.isdecimal()):
        return False
    if len(rest) > _MOST_DIGITS:
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # It exists, and belongs to another user.
        pass
    about = _about(int(rest))
    return about is not None and (about[0] in _ENDED or about[1] != started)


def _place() -> str | None:
    """The start of this machine, and the namespace of the ids of this process."""
    with suppress(OSError):
        namespace = (_PROC / "self/ns/pid").stat().st_ino
        return f"{_BOOT.read_text().strip()}/{namespace}"
    return None


def _about(process_id: int) -> tuple[str, str] | None:
    """The state of a process, and the time of its start."""
    with suppress(OSError, IndexError):
        # The name of the process is in brackets, and may contain spaces and brackets.
        fields = (_PROC / str(process_id) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[_START_FIELD]
    return None
