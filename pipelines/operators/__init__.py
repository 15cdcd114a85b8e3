"""Ready-made stateful operators, built on the public interface as an operator of yours would be."""

from statekeeper.pipelines.operators.aggregates import running_aggregates
from statekeeper.pipelines.operators.duplicates import first_rows
from statekeeper.pipelines.operators.latest import latest_rows
from statekeeper.pipelines.operators.partial import Aggregates
from statekeeper.pipelines.operators.sessions import sessions, with_sessions
from statekeeper.pipelines.operators.windows import windows, with_windows

__all__ = [
    "Aggregates",
    "first_rows",
    "latest_rows",
    "running_aggregates",
    "sessions",
    "windows",
    "with_sessions",
    "with_windows",
]
