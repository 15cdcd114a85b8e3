"""Tables of history: the runs of many roots, their steps, and the health of each day, as three Delta tables.

    rows      the columns, and the rows of one run                              pure
    tables    which runs a table lacks, then one commit of each table

The roots are only read. The tables outlive the records below the roots, which retention deletes, and the database of
Dagster. The pass over the roots is in `verbs.history`.
"""

from statekeeper.statestore.maintenance.copies.history_tables.rows import (
    CHANGES_STATE,
    HEALTH,
    RUNS,
    STEPS,
    About,
    Lines,
    RunFiles,
    Unreadable,
    day_of,
    run_rows,
    runs_in,
)
from statekeeper.statestore.maintenance.copies.history_tables.tables import (
    Addition,
    HistoryTable,
    HistoryWriter,
    KeptRun,
    RunKey,
    Written,
    addition,
    opened,
)

__all__ = [
    "CHANGES_STATE",
    "HEALTH",
    "RUNS",
    "STEPS",
    "About",
    "Addition",
    "HistoryTable",
    "HistoryWriter",
    "KeptRun",
    "Lines",
    "RunFiles",
    "RunKey",
    "Unreadable",
    "Written",
    "addition",
    "day_of",
    "opened",
    "run_rows",
    "runs_in",
]
