"""The asset `clone`: copies a checkpoint to another location when a person launches it."""

from enum import Enum

import dagster as dg
from pydantic import Field

from statekeeper.assets import metadata
from statekeeper.assets.launches import for_launchpad, with_refusal_for_launchpad
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import holder
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.verbs import Maintainer


class DoClone(Enum):
    """The action of a launch."""

    PLAN = "plan"
    APPLY = "apply"


class Clone(dg.Config):
    """The launchpad's configuration. The default only plans."""

    destination: str = Field(description="The empty location to copy to: a URL, a path, or a name in statekeeper.toml.")
    do: DoClone = Field(
        default=DoClone.PLAN, description="PLAN shows the plan. APPLY executes it, or completes an interrupted clone."
    )
    batch: int | None = Field(
        default=None, description="The batch to clone. Without it: the newest that is safe to copy."
    )
    new_query: bool = Field(
        default=False,
        description="Give the clone a new query id. With the old id, a sink such as Delta skips batches that it has.",
    )
    query_id: str | None = Field(
        default=None, description="The new query id, a UUID, if it must be a certain one. Implies new_query."
    )
    confirm_stopped: bool = Field(
        default=False, description="The query is stopped. Needed for the newest two batches of a query in structure V1."
    )
    location: str | None = Field(
        default=None,
        description="The URL that Spark uses for the destination, if it cannot be derived from the source.",
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
def clone(context: dg.AssetExecutionContext, config: Clone, fleet: Fleet) -> dg.MaterializeResult:
    """Copies a checkpoint at one batch to another location, from which Spark or a job can start. Launch it by hand; it only
    plans unless the launchpad sets `do: APPLY`.

    The source may be running and is not changed. Inside one storage service, no state passes through this machine. By hand:
    `statekeeper clone`.
    """
    if config.query_id is not None and not names.is_checkpoint_id(config.query_id):
        raise dg.Failure(f"query_id: {config.query_id!r} is not a UUID")
    query = fleet.open(context.partition_key)
    destination = fleet.open_destination(config.destination, query)
    by = Maintainer(holder(context.run.run_id), SystemClock(), RandomIds(), fleet.quiet_seconds)
    started = by.clock.monotonic_seconds()
    try:
        prepared = verbs.clone.plan(
            query.storage,
            destination,
            query.policies,
            by,
            batch=config.batch,
            new_query=config.new_query,
            query_id=config.query_id,
            stopped=config.confirm_stopped,
            location=config.location,
        )
        shown = metadata.of_clone(prepared, destination.url)
        if config.do is DoClone.APPLY:
            verbs.clone.execute(query.storage, destination, prepared, by, scratch=fleet.scratch_folder())
            shown |= {"phase": "cloned", "seconds": round(by.clock.monotonic_seconds() - started, 3)}
    except StatekeeperError as error:
        raise dg.Failure(for_launchpad(str(error), query)) from error
    return dg.MaterializeResult(metadata=with_refusal_for_launchpad(shown, query))
