"""The guardian: a process that kills the children of a launcher when the launcher dies, however it dies.

    launcher --- pipe: a line with the process group of each child ---> guardian

The pipe ends when the processes that hold it are dead, on Linux and macOS. A child writes its group into the pipe itself
before it executes its command, which closes the pipe for it. Until then the child holds the pipe as the launcher does.

*Race*: the launcher starts a child and is killed before it records the child, for example by the out-of-memory killer. No
process knows the child, and the child occupies the port forever.

The guardian sends SIGKILL, so the port is free at once. Maintenance tolerates SIGKILL at any time.
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
    """The launcher's side. Not thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, groups: Collection[int]) -> int:
        """Start the guardian of these groups unless it runs. Returns the file descriptor for a child's standard input.

        Raises OSError.
        """
        if self._process is None or self._process.poll() is not None:
            # Its own session, and an isolated interpreter that imports only the standard library.
            self._process = subprocess.Popen(  # noqa: S603 - this file
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

    def announcing(self, arguments: Sequence[str]) -> list[str]:
        """Wrap a command so that its process first announces its group. The process must lead its group."""
        return [*_ANNOUNCED, *arguments]

    def close(self) -> None:
        """End the guardian. It kills the remaining members of the groups."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def has_members(group: int) -> bool:
    """Whether a process group has a process. A dead process counts until it is waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Run the guardian. The pipe is its standard input."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    groups: set[int] = set()
    line = b""
    while True:
        if select.select([0], [], [], _POLL_SECONDS)[0]:
            received = os.read(0, _PIPE_BYTES)
            if not received:
                break
            *lines, line = (line + received).split(b"\n")
            groups.update(int(group) for group in lines)
        # The system may reuse the number of an empty group.
        groups = {group for group in groups if has_members(group)}
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
