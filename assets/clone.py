"""The asset `clone`: copies a checkpoint to another location when a person launches it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from statekeeper.assets.launches import Copy, DoCopy, config_of, of_prepared, options_in
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.work import Given, Outcome, of_asset, recorded
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import after_each_step, counted
from statekeeper.statestore.maintenance.verbs.clone import Clone
from statekeeper.statestore.maintenance.verbs.contract import Verb, perform, prepare


class CloneLaunch(config_of(Clone, Copy)):  # type: ignore[misc]
    """The launchpad's configuration. The default only plans."""


def clone(names: Names, sources: Sources) -> dg.AssetsDefinition:
    """Make the asset `clone` of a fleet."""

    @names.asset("clone", deps=[sources.streaming_query], does="adds-files")
    def made(
        context: dg.AssetExecutionContext, config: CloneLaunch
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        """Copies a checkpoint at one batch to another location, from which Spark or a job can start. Launch it by hand; it
        only plans unless the launchpad sets `do: APPLY`.

        The source may be running and is not changed. Inside one storage service, no state passes through this machine. By
        hand: `statekeeper clone`.
        """
        yield from recorded(context, names, CLONE, config)

    return made


def _do(given: Given, how: Mapping[str, Any]) -> Outcome:
    launch = CloneLaunch(**how)
    return copied(given, launch, Clone(**options_in(launch, Clone)), "file")


CLONE = of_asset("clone", _do)
"""The work of the asset. What is asked for is a launch."""


def copied(given: Given, launch: Any, verb: Verb[Any, Any, Any], noun: str) -> Outcome:
    """Plan a copy of a query, or make it. `launch`: a `Copy`; `noun`: what one step handles: file or step."""
    try:
        prepared = prepare(verb, replace(given.run, stopped=launch.confirm_stopped))
        if launch.do is DoCopy.APPLY:
            told = after_each_step(given.told, lambda done: f"{verb.name}: {counted(done, noun)}")
            prepared = perform(prepared, told)
    except StatekeeperError as error:
        return Outcome(errors={given.query.name: str(error)})
    shown = of_prepared(prepared)
    if launch.do is DoCopy.APPLY:
        shown["seconds"] = round(prepared.seconds, 3)
    return Outcome(metadata=shown)
