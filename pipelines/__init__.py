"""PySpark streaming jobs that write only changelogs: a stateful operator, its sinks, and the call that starts it."""

from statekeeper.pipelines.batch_log import LogLayout
from statekeeper.pipelines.harness import OperatorHarness, Result
from statekeeper.pipelines.host import Host
from statekeeper.pipelines.operator import Frames, Pieces, StatefulOperator, Update
from statekeeper.pipelines.planned import planned_changes
from statekeeper.pipelines.progress import BatchReport, Observer, Outcome, Phase
from statekeeper.pipelines.query import StatefulQuery, start
from statekeeper.pipelines.session import spark_session
from statekeeper.pipelines.sinks import AtLeastOnceSink, Attempt, DeltaSink, NoSink, Sink, Writer
from statekeeper.pipelines.times import Batch, TimeKind, Ttl
from statekeeper.statestore.declared_columns import ColumnChange, ColumnMapping
from statekeeper.statestore.format.structure import Structure

if __name__ != "statekeeper.pipelines":
    raise ImportError("the package is now a part of statekeeper: import statekeeper.pipelines")

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
