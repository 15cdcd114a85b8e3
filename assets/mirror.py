"""The asset `mirror`: the copy of a checkpoint that is kept up to date."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from statekeeper.assets.checks import MIRROR_IS_FRESH, mirror_is_fresh
from statekeeper.assets.launches import of_prepared
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.work import Given, Outcome, of_asset, recorded
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import after_each_step, counted
from statekeeper.statestore.maintenance.copies import mirrors
from statekeeper.statestore.maintenance.copies.mirrors import Lag
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.mirror import Mirror


def mirror(names: Names, sources: Sources) -> dg.AssetsDefinition:
    """Make the asset `mirror` of a fleet."""

    @names.asset("mirror", deps=[sources.streaming_query], does="deletes-files", checks=[MIRROR_IS_FRESH])
    def made(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        """Copies the batches that the mirror of a query lacks, so that the query can start from the mirror if the source is
        lost. Afterwards it deletes the files that it has copied and that the source has deleted.

        The source may be running and is not changed. After each complete run, a query can start from the mirror. It can
        also start after an interrupted run, except if the source had already deleted batches that the mirror lacks: then
        Spark cannot start before the next complete run. Destination and allowed lag: `mirror` of the query in
        statekeeper.toml. By hand: `statekeeper mirror QUERY`.
        """
        query = names.fleet_in(context).open(context.partition_key)
        if query.mirror is None:
            raise dg.Failure(
                f'{query.name} has no mirror: add mirror = {{ url = "..." }} to its table in statekeeper.toml'
            )
        yield from recorded(context, names, MIRROR)

    return made


def _do(given: Given, how: Mapping[str, Any]) -> Outcome:
    del how
    query = given.query
    assert query.mirror is not None
    verb = Mirror(destination=query.mirror.url, location=query.mirror.location)
    try:
        told = after_each_step(given.told, lambda done: f"mirror: {counted(done, 'file')}")
        prepared = perform(prepare(verb, given.run), told)
    except StatekeeperError as error:
        check = mirror_is_fresh(_lag(given.fleet, query), error, query)
        return Outcome(checks=[check], errors={query.name: str(error)})
    shown = {**of_prepared(prepared), "seconds": round(prepared.seconds, 3)}
    return Outcome(metadata=shown, checks=[mirror_is_fresh(prepared.plan.plan.left, None, query)])


def _checks_without_result(fleet: Fleet, query: OpenedQuery) -> Sequence[dg.AssetCheckResult]:
    return [mirror_is_fresh(_lag(fleet, query), None, query)]


def _lag(fleet: Fleet, query: OpenedQuery) -> Lag | None:
    """Measure the lag after a failed run; None if the source or the mirror cannot be read."""
    assert query.mirror is not None
    try:
        return mirrors.measure(query.storage, fleet.open_destination(query.mirror.url, query))
    except StatekeeperError:
        return None


MIRROR = of_asset("mirror", _do, without_result=_checks_without_result)
"""The work of the asset."""
