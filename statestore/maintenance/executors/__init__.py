"""Where the tasks of a verb run: a pool on this machine, or a Spark cluster.

    plan -> Executor.map(task, items) -> an outcome for each item -> one commit

The plan, the guards, the lease, the journal and the commit stay in the process that runs the verb. A task gets one item,
for example a planned snapshot, and returns counts, digests and names of written objects, never rows. It may run twice, on
two hosts at the same time: it writes under names of its own, or with create-if-absent.

There are two implementations: `LocalExecutor`, the default, and `spark.SparkExecutor`.
"""

from statekeeper.statestore.maintenance.executors.base import (
    MEMORY_BYTES,
    Ended,
    Executor,
    LocalExecutor,
    Place,
    Task,
    results_of,
)

__all__ = ["MEMORY_BYTES", "Ended", "Executor", "LocalExecutor", "Place", "Task", "results_of"]
