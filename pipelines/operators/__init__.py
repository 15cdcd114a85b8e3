"""Ready-made stateful operators, built on the public interface as an operator of yours would be."""

from pipelines.operators.aggregates import running_aggregates
from pipelines.operators.duplicates import first_rows
from pipelines.operators.latest import latest_rows
from pipelines.operators.partial import Aggregates
from pipelines.operators.sessions import sessions, with_sessions
from pipelines.operators.windows import windows, with_windows

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
