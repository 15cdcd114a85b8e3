"""The common part of the assets that rewrite the state of a stopped query when a person launches them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import dagster as dg
from pydantic import Field

from statekeeper.assets.checks import nothing_left_half_switched
from statekeeper.assets.metadata import Metadata
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.resources.worker import holder
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.rewrites.switchover import Progress, ProgressCallback
from statekeeper.statestore.maintenance.verbs import Maintainer


class Do(Enum):
    """The action of a launch."""

    PLAN = "plan"
    APPLY = "apply"
    ABORT = "abort"


class DoOrUndo(Enum):
    """The action of a launch of a rewrite that can be reversed after it is complete."""

    PLAN = "plan"
    APPLY = "apply"
    ABORT = "abort"
    UNDO = "undo"


class ForSpark(Enum):
    """The Spark release that will run the query, if the checkpoint does not show it."""

    BY_THE_CHECKPOINT = "by the checkpoint"
    V4_0 = "4.0"
    V4_1 = "4.1"
    V4_2 = "4.2"
    V4_3 = "4.3"

    @property
    def spark(self) -> Spark | None:
        return None if self is ForSpark.BY_THE_CHECKPOINT else Spark(self.value)


class StoppedQuery(dg.Config):
    """The part of a launchpad's configuration that each rewrite of a stopped query has."""

    confirm_stopped: bool = Field(
        default=False, description="The query is stopped: its application has ended, and no scheduler will start it."
    )
    for_spark: ForSpark = Field(
        default=ForSpark.BY_THE_CHECKPOINT,
        description="In V2, Spark 4.0 cannot read the snapshots of later releases, nor later releases those of Spark 4.0.",
    )


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a rewrite needs of its run: the query, the process, the id of the run, and a callback for progress."""

    query: OpenedQuery
    by: Maintainer
    run: str
    scratch: Path
    report: ProgressCallback


_OPTIONS = {
    "confirm-stopped": "confirm_stopped: true",
    "for-spark": "for_spark",
    "file-sink": "file_sink",
    "replace-state": "replace_state: true",
    "location": "location",
    "batch": "batch",
    "abort": "do: ABORT",
}
"""The keys of the launchpad for the options of the command line."""

_ADD_OPTION = re.compile(rf"\b(?P<verb>add|with|use) --(?P<option>{'|'.join(_OPTIONS)})\b")


def for_launchpad(text: str, query: OpenedQuery) -> str:
    """Return a message of the library for a person at the launchpad: with its keys instead of the options of the command
    line, and with commands that can be pasted."""
    verbs = {"add": "set", "with": "with", "use": "set"}
    text = _ADD_OPTION.sub(lambda found: f"{verbs[found['verb']]} {_OPTIONS[found['option']]}", text)
    return query.pasteable(text)


def with_refusal_for_launchpad(shown: Metadata, query: OpenedQuery) -> Metadata:
    """Return the metadata of a plan with its refusal for a person at the launchpad."""
    refusal = shown.get("refusal")
    return {**shown, "refusal": for_launchpad(refusal, query)} if isinstance(refusal, str) else shown


Action = Callable[[Launch], tuple[Metadata, str | None]]
"""Plans, executes or reverses a rewrite. Returns the metadata, and why the execution was refused. Raises the errors of the
pass."""


def launched(
    context: dg.AssetExecutionContext, fleet: Fleet, action: Action
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Perform an action on the query of the partition; yield the results of its checks, then its metadata.

    Raises `dg.Failure` for an error of the pass and for a refused execution.
    """
    query = fleet.open(context.partition_key)
    by = Maintainer(holder(context.run.run_id), SystemClock(), RandomIds(), fleet.quiet_seconds)
    started = by.clock.monotonic_seconds()

    def report(progress: Progress) -> None:
        context.log.info(f"{progress.phase.value}: {progress.done} of {progress.of} {progress.store or ''}".strip())

    def verdicts() -> list[dg.AssetCheckResult]:
        found = nothing_left_half_switched(rewrite_journal.open_journal(query.storage), query)
        return with_fleet_verdicts(context, [found], fleet)

    launch = Launch(query=query, by=by, run=by.ids.fresh(), scratch=fleet.scratch_folder(), report=report)
    try:
        shown, refusal = action(launch)
    except StatekeeperError as error:
        yield from verdicts()
        raise dg.Failure(for_launchpad(str(error), query)) from error
    shown = with_refusal_for_launchpad(shown, query)
    shown["seconds"] = round(by.clock.monotonic_seconds() - started, 3)
    yield from verdicts()
    if refusal is not None:
        raise dg.Failure(printable(for_launchpad(refusal, query)), metadata=shown)
    yield dg.MaterializeResult(metadata=shown)
