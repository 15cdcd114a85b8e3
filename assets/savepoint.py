"""The asset `savepoint`: keeps the state of one batch in another location when a person launches it."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field

from statekeeper.assets.clone import copied
from statekeeper.assets.launches import Copy, config_of, options_in
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.work import Given, Outcome, of_asset, recorded
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
    def made(
        context: dg.AssetExecutionContext, config: SavepointLaunch
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        """Keeps the state of a checkpoint at one batch in another location, as files or as typed rows. Launch it by hand;
        it only plans unless the launchpad sets `do: APPLY`.

        The source may be running. Garbage collection of the source does not delete a savepoint. By hand:
        `statekeeper savepoint`.
        """
        if config.keep is Keep.FILES and not config.label:
            raise dg.Failure("a savepoint with files needs a label")
        if config.keep is not Keep.FILES and config.location is not None:
            raise dg.Failure("location applies only to a savepoint with files: rows contain no URL of the destination")
        yield from recorded(context, names, SAVEPOINT, config)

    return made


def _do(given: Given, how: Mapping[str, Any]) -> Outcome:
    launch = SavepointLaunch(**how)
    options = options_in(launch, SaveFiles)
    if launch.keep is Keep.FILES:
        return copied(given, launch, SaveFiles(**options), "file")
    del options["location"]
    tables = Tables.DELTA if launch.keep is Keep.DELTA else Tables.PARQUET
    return copied(given, launch, SaveRows(**{**options, "label": launch.label or None}, tables=tables), "step")


SAVEPOINT = of_asset("savepoint", _do)
"""The work of the asset. What is asked for is a launch."""
