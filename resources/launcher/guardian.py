"""Ends what a launcher has started when the launcher dies, however it dies: a process that only waits for that.

    launcher --- pipe: a line with the process group of each child ---> guardian

The end of the pipe is the death of who writes into it, on Linux and on macOS alike. A child writes its group itself, and
only then becomes what it is to be, which closes the pipe for it: until then it holds the pipe as its launcher does.

*The losing schedule*: the launcher starts a child, and is killed (by the kernel that is out of memory, by a person) before
it could write down whom it has started; the child is in nobody's books and keeps the port for ever.

The groups get SIGKILL: the port is free at once, and whatever is maintained may be killed at any time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence

_POLL_SECONDS = 0.25
_PIPE_BYTES = 4096
_ANNOUNCED = ["/bin/sh", "-c", 'echo $$ >&0; exec "$@" </dev/null', "announced"]


class Guardian:
    """The launcher's side. Not to be shared by threads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def stand(self, groups: Collection[int]) -> int:
        """Start it, or again if it has died, for these groups. Returns what a child needs for its standard input.

        Raises OSError."""
        if self._process is None or self._process.poll() is not None:
            # It shares nothing with what it may have to kill, and imports nothing that could fail.
            self._process = subprocess.Popen(  # noqa: S603 - this very file
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), b"".join(b"%d\n" % group for group in groups))
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def announced(self, arguments: Sequence[str]) -> list[str]:
        """A command that does the same, after it has told the guardian of itself. It has to lead a group of its own."""
        return [*_ANNOUNCED, *arguments]

    def leave(self) -> None:
        """Let it end. What is still there of the groups is killed."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def has_members(group: int) -> bool:
    """Whether there is a process in a process group, be it a dead one that nobody has waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """The guardian's side: the pipe is its standard input."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    groups: set[int] = set()
    line = b""
    while True:
        if select.select([0], [], [], _POLL_SECONDS)[0]:
            said = os.read(0, _PIPE_BYTES)
            if not said:
                break
            *lines, line = (line + said).split(b"\n")
            groups.update(int(group) for group in lines)
        # The number of a group that is gone may be given to strangers.
        groups = {group for group in groups if has_members(group)}
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
