"""Maintainers that wait briefly, or not at all, before they treat a query as stopped."""

from __future__ import annotations

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from tests.support.clocks import SleeplessClock

QUIET_SECONDS = 0.1

MAINTAINER = Maintainer("a test", SystemClock(), RandomIds(), quiet_seconds=QUIET_SECONDS)
"""For the passes, and as the context object of the command line: `CliRunner().invoke(main, ..., obj=MAINTAINER)`."""


def maintainer(clock: Clock | None = None) -> Maintainer:
    """Return a maintainer that does not wait."""
    return Maintainer("a test", clock or SleeplessClock(SystemClock().now_seconds()), RandomIds())
