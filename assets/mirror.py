"""The asset `mirror`: the copy of a checkpoint that is kept up to date."""

from collections.abc import Iterator

import dagster as dg

from statekeeper.assets.checks import MIRROR_IS_FRESH, mirror_is_fresh
from statekeeper.assets.launches import of_prepared, run_of
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.copies import mirrors
from statekeeper.statestore.maintenance.copies.mirrors import Lag
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.mirror import Mirror
from statekeeper.statestore.storage import Storage


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
        fleet = names.fleet_in(context)
        query = fleet.open(context.partition_key)
        if query.mirror is None:
            raise dg.Failure(
                f'{query.name} has no mirror: add mirror = {{ url = "..." }} to its table in statekeeper.toml'
            )
        verb = Mirror(destination=query.mirror.url, location=query.mirror.location)
        try:
            prepared = perform(prepare(verb, run_of(context, fleet, query)))
        except StatekeeperError as error:
            lag = _lag(query.storage, fleet.open_destination(query.mirror.url, query))
            yield from with_fleet_verdicts(context, [mirror_is_fresh(lag, error, query)], names)
            raise dg.Failure(str(error)) from error
        shown = of_prepared(prepared)
        shown["seconds"] = round(prepared.seconds, 3)
        yield from with_fleet_verdicts(context, [mirror_is_fresh(prepared.plan.plan.left, None, query)], names)
        yield dg.MaterializeResult(metadata=shown)

    return made


def _lag(source: Storage, destination: Storage) -> Lag | None:
    """Measure the lag after a failed run; None if the source or the mirror cannot be read."""
    try:
        return mirrors.measure(source, destination)
    except StatekeeperError:
        return None
