"""The asset `savepoint`: keeps the state of one batch in another location when a person launches it."""

from enum import Enum

import dagster as dg
from pydantic import Field

from statekeeper.assets.launches import Copy, config_of, copied, options_in
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.statestore.maintenance.copies.savepoints import Tables
from statekeeper.statestore.maintenance.verbs.savepoint import SaveFiles, SaveRows


class Keep(Enum):
    """The content of the savepoint."""

    FILES = "files"
    PARQUET = "rows in Parquet tables"
    DELTA = "rows in Delta tables"


class SavepointLaunch(config_of(SaveFiles, Copy)):  # type: ignore[misc]
    """The launchpad's configuration. The default only plans."""

    label: str | None = Field(default=None, description="The name of the savepoint in the list. FILES need one.")
    keep: Keep = Field(
        default=Keep.FILES,
        description="FILES: a checkpoint from which Spark or a job can start. PARQUET, DELTA: typed rows.",
    )


def savepoint(names: Names, sources: Sources) -> dg.AssetsDefinition:
    """Make the asset `savepoint` of a fleet."""

    @names.asset("savepoint", deps=[sources.streaming_query], does="adds-files")
    def made(context: dg.AssetExecutionContext, config: SavepointLaunch) -> dg.MaterializeResult:
        """Keeps the state of a checkpoint at one batch in another location, as files or as typed rows. Launch it by hand;
        it only plans unless the launchpad sets `do: APPLY`.

        The source may be running. Garbage collection of the source does not delete a savepoint. By hand:
        `statekeeper savepoint`.
        """
        fleet, given = names.fleet_in(context), options_in(config, SaveFiles)
        if config.keep is Keep.FILES:
            if not given["label"]:
                raise dg.Failure("a savepoint with files needs a label")
            return copied(context, fleet, config, SaveFiles(**given))
        if given.pop("location") is not None:
            raise dg.Failure("location applies only to a savepoint with files: rows contain no URL of the destination")
        tables = Tables.DELTA if config.keep is Keep.DELTA else Tables.PARQUET
        return copied(context, fleet, config, SaveRows(**{**given, "label": given["label"] or None}, tables=tables))

    return made
