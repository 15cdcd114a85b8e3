"""Preview of the changes of columns that the first batch after a start of a job makes."""

from __future__ import annotations

from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.startup.older_roots import as_in_root
from statekeeper.pipelines.task.stored import require_free_stores, stored
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.root.binding import changes_to
from statekeeper.statestore.root.columns import ColumnChange
from statekeeper.statestore.storage import StorageSpec, open_storage


def planned_changes(operator: StatefulOperator, root: str | StorageSpec) -> tuple[ColumnChange, ...]:
    """Return the changes of state columns that the first batch after the next start makes, one for each changed store.

    No changes if the columns are equal. The function reads a few small files of the root and writes nothing, so you can
    call it while the job runs, for example before a deployment.

    Raises `SchemaMismatch` if the job cannot start with this root, `ObjectMissing` if there is no root, `CorruptFile` if a
    file of the root cannot be parsed, `StorageError` if the storage cannot be read.
    """
    require_free_stores(operator)
    spec = StorageSpec(root) if isinstance(root, str) else root
    storage = open_storage(spec, clock=SystemClock(), ids=RandomIds())
    values = {store.name: spark_schema_json(store.values) for store in stored(as_in_root(operator, storage))}
    return changes_to(storage, values, operator.mappings)
