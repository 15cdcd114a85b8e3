"""A maintainer that waits briefly before it treats a query as stopped."""

from __future__ import annotations

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.maintenance.verbs.contract import Maintainer

QUIET_SECONDS = 0.1

MAINTAINER = Maintainer("a test", SystemClock(), RandomIds(), quiet_seconds=QUIET_SECONDS)
"""For the passes, and as the context object of the command line: `CliRunner().invoke(main, ..., obj=MAINTAINER)`."""
