"""Changes of the value columns of own roots: columns added with a default, dropped, widened and renamed.

    read_schema_file(path)  ->  Evolve  ->  evolutions(stores, evolve)  ->  NewColumns of each changed store

`rewrites` plans and executes them. Key columns do not change, because each row is in the partition of its key.
"""

from statekeeper.statestore.maintenance.rewrites.evolution.columns import (
    AddedColumn,
    ColumnChanges,
    Evolve,
    EvolvedRows,
    Widened,
    evolution_of,
    is_all,
    require_untimed,
    schema_change,
)
from statekeeper.statestore.maintenance.rewrites.evolution.schema_file import parse_changes, read_schema_file

__all__ = [
    "AddedColumn",
    "ColumnChanges",
    "Evolve",
    "EvolvedRows",
    "Widened",
    "evolution_of",
    "is_all",
    "parse_changes",
    "read_schema_file",
    "require_untimed",
    "schema_change",
]
