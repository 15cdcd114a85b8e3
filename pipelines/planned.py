"""The changes of columns that a start of a job will make, for a look before the start."""

from __future__ import annotations

from pipelines.operator import StatefulOperator
from pipelines.stored import require_free_stores, stored
from statestore.binding import changes_to
from statestore.clock import RandomIds, SystemClock
from statestore.declared_columns import ColumnChange
from statestore.format.types import spark_schema_json
from statestore.storage import StorageSpec, open_storage


def planned_changes(operator: StatefulOperator, root: str | StorageSpec) -> tuple[ColumnChange, ...]:
    """Return the changes of state columns that the first batch of the next start makes, one for each changed store.

    It reads a few small files of the root and writes nothing, so it also works beside a running job, and in a unit test
    against a copy of the root. `str` of a change shows it.

    Raises `SchemaMismatch` for a change that a start cannot make, `ObjectMissing` if there is no root, `CorruptFile`,
    `StorageError`.
    """
    require_free_stores(operator)
    spec = StorageSpec(root) if isinstance(root, str) else root
    values = {store.name: spark_schema_json(store.values) for store in stored(operator)}
    return changes_to(open_storage(spec, clock=SystemClock(), ids=RandomIds()), values, operator.mappings)
