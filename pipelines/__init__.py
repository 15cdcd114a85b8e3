"""PySpark streaming jobs that write only changelogs: a stateful operator, its sinks, and the call that starts it."""

from pipelines.batch_log import LogLayout
from pipelines.harness import OperatorHarness, Result
from pipelines.host import Host
from pipelines.operator import Frames, Pieces, StatefulOperator, Update
from pipelines.planned import planned_changes
from pipelines.progress import BatchReport, Observer, Outcome, Phase
from pipelines.query import StatefulQuery, start
from pipelines.session import spark_session
from pipelines.sinks import AtLeastOnceSink, Attempt, DeltaSink, NoSink, Sink, Writer
from pipelines.times import Batch, TimeKind, Ttl
from statestore.declared_columns import ColumnChange, ColumnMapping
from statestore.format.structure import Structure

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
    "planned_changes",
    "spark_session",
    "start",
]
