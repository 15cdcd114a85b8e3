"""PySpark streaming jobs that write only changelogs: a stateful operator, its sinks, and the call that starts it."""

from statekeeper.statestore.base.extras import needed_by

if __name__ != "statekeeper.pipelines":
    raise ImportError("the package is now a part of statekeeper: import statekeeper.pipelines")

with needed_by("statekeeper.pipelines", "spark"):
    from statekeeper.pipelines.batch.progress import BatchReport, Observer, Outcome, Phase
    from statekeeper.pipelines.operator.declaration import Frames, Pieces, StatefulOperator, Update
    from statekeeper.pipelines.operator.times import Batch, TimeKind, Ttl
    from statekeeper.pipelines.sinks.delta_writer import Writer, WriterUsed
    from statekeeper.pipelines.sinks.sink import AtLeastOnceSink, Attempt, DeltaSink, NoSink, Sink
    from statekeeper.pipelines.startup.planned import planned_changes
    from statekeeper.pipelines.startup.query import StatefulQuery, start
    from statekeeper.pipelines.startup.session import spark_session
    from statekeeper.pipelines.task.batch_log import LogLayout
    from statekeeper.pipelines.task.host import Host
    from statekeeper.pipelines.testing.harness import OperatorHarness, Result
    from statekeeper.statestore.format.structure import Structure
    from statekeeper.statestore.root.columns import ColumnChange, ColumnMapping

__all__ = [
    "AtLeastOnceSink",
    "Attempt",
    "Batch",
    "BatchReport",
    "ColumnChange",
    "ColumnMapping",
    "DeltaSink",
    "Frames",
    "Host",
    "LogLayout",
    "NoSink",
    "Observer",
    "OperatorHarness",
    "Outcome",
    "Phase",
    "Pieces",
    "Result",
    "Sink",
    "StatefulOperator",
    "StatefulQuery",
    "Structure",
    "TimeKind",
    "Ttl",
    "Update",
    "Writer",
    "WriterUsed",
    "planned_changes",
    "spark_session",
    "start",
]
