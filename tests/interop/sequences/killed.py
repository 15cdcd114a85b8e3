"""A command that kills its own process at one of its requests.

python -m tests.interop.sequences.killed ROOT NUMBER FAULT VERB ...
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from tests.interop.sequences.steps import faulty
from tests.interop.sequences.worlds import called
from tests.support import faulty_storage
from tests.support.faulty_storage import Fault


def _die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def main() -> None:
    root, number, fault, *command = sys.argv[1:]
    # In place of an exception, at the same request.
    faulty_storage.SimulatedCrash.__init__ = _die  # type: ignore[method-assign, assignment]
    with faulty(root, {int(number): Fault[fault]}):
        print(called(*command))


if __name__ == "__main__":
    main()
