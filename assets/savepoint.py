"""The asset `savepoint`: keeps the state of one batch in another location when a person launches it."""

from enum import Enum

import dagster as dg
from pydantic import Field

from statekeeper.assets import metadata
from statekeeper.assets.launches import for_launchpad, with_refusal_for_launchpad
from statekeeper.assets.metadata import Metadata
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.resources.worker import holder
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.copies.savepoints import Tables
from statekeeper.statestore.maintenance.verbs import Maintainer
from statekeeper.statestore.storage import Storage


class DoSavepoint(Enum):
    """The action of a launch."""

    PLAN = "plan"
    APPLY = "apply"


class Keep(Enum):
    """The content of the savepoint."""

    FILES = "files"
    PARQUET = "rows in Parquet tables"
    DELTA = "rows in Delta tables"


class Savepoint(dg.Config):
    """The launchpad's configuration. The default only plans."""

    destination: str = Field(
        description="The empty location to write to: a URL, a path, or a name in statekeeper.toml."
    )
    keep: Keep = Field(
        default=Keep.FILES,
        description="FILES: a checkpoint from which Spark or a job can start; needs a label. PARQUET, DELTA: typed rows.",
    )
    label: str | None = Field(default=None, description="The name of the savepoint in the list.")
    note: str = Field(default="", description="A note for the list. Needs a label.")
    do: DoSavepoint = Field(
        default=DoSavepoint.PLAN,
        description="PLAN shows the plan. APPLY executes it, or completes an interrupted savepoint.",
    )
    batch: int | None = Field(
        default=None, description="The batch whose state to keep. Without it: the newest that is safe to copy."
    )
    confirm_stopped: bool = Field(
        default=False, description="The query is stopped. Needed for the newest two batches of a query in structure V1."
    )
    location: str | None = Field(
        default=None,
        description="The URL that Spark uses for the destination, if it cannot be derived from the source. Only for FILES.",
    )


@dg.asset(
    partitions_def=QUERIES,
    deps=[STREAMING_QUERY],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
)
def savepoint(context: dg.AssetExecutionContext, config: Savepoint, fleet: Fleet) -> dg.MaterializeResult:
    """Keeps the state of a checkpoint at one batch in another location, as files or as typed rows. Launch it by hand; it
    only plans unless the launchpad sets `do: APPLY`.

    The source may be running. Garbage collection of the source does not delete a savepoint. By hand:
    `statekeeper savepoint`.
    """
    query = fleet.open(context.partition_key)
    destination = fleet.open_destination(config.destination, query)
    by = Maintainer(holder(context.run.run_id), SystemClock(), RandomIds(), fleet.quiet_seconds)
    started = by.clock.monotonic_seconds()
    try:
        save = _files if config.keep is Keep.FILES else _rows
        shown = save(config, fleet, query, destination, by)
    except StatekeeperError as error:
        raise dg.Failure(for_launchpad(str(error), query)) from error
    if config.do is DoSavepoint.APPLY:
        shown |= {"phase": "saved", "seconds": round(by.clock.monotonic_seconds() - started, 3)}
    return dg.MaterializeResult(metadata=with_refusal_for_launchpad(shown, query))


def _files(config: Savepoint, fleet: Fleet, query: OpenedQuery, destination: Storage, by: Maintainer) -> Metadata:
    if config.label is None:
        raise dg.Failure("a savepoint with files needs a label")
    prepared = verbs.savepoint.plan_files(
        query.storage,
        destination,
        query.policies,
        by,
        label=config.label,
        note=config.note,
        batch=config.batch,
        stopped=config.confirm_stopped,
        location=config.location,
    )
    shown = metadata.of_savepoint_with_files(prepared)
    if config.do is DoSavepoint.APPLY:
        listed = verbs.savepoint.execute_files(query.storage, destination, prepared, by, scratch=fleet.scratch_folder())
        shown["listed"] = listed
    return shown


def _rows(config: Savepoint, fleet: Fleet, query: OpenedQuery, destination: Storage, by: Maintainer) -> Metadata:
    if config.location is not None:
        raise dg.Failure("location applies only to a savepoint with files: rows contain no URL of the destination")
    prepared = verbs.savepoint.plan_rows(
        query.storage,
        destination,
        by,
        policies=query.policies,
        batch=config.batch,
        tables=Tables.DELTA if config.keep is Keep.DELTA else Tables.PARQUET,
        stopped=config.confirm_stopped,
        label=config.label,
        note=config.note,
    )
    made = None
    if config.do is DoSavepoint.APPLY:
        made = verbs.savepoint.execute_rows(
            query.storage, destination, prepared, by, query.policies, scratch=fleet.scratch_folder()
        )
    return metadata.of_savepoint_with_rows(prepared, destination.url, made)
