"""The asset `restore_drill`: a sample of stores, restored into scratch folders, timed and compared."""

from collections.abc import Iterator
from dataclasses import replace

import dagster as dg

from statekeeper.assets.checks import NEWEST_SNAPSHOT_RESTORES, newest_snapshot_restores
from statekeeper.assets.launches import of_prepared, run_of
from statekeeper.assets.metadata import Metadata
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.statestore.base.errors import NotACheckpoint, StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.upkeep.drill import Found
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.drill import Drill

_MIRROR = "mirror"


def restore_drill(names: Names, sources: Sources) -> dg.AssetsDefinition:
    """Make the asset `restore_drill` of a fleet."""

    @names.asset("restore_drill", deps=[sources.streaming_query], does="adds-files", checks=[NEWEST_SNAPSHOT_RESTORES])
    def made(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        """Restores a sample of the stores of a query, and of its mirror, into scratch folders, times it, and compares the
        rows.

        The query may be running and is not changed. Weekly runs restore each store within a quarter. The rows of a load
        from the newest snapshot are compared with those of a load that does not use it, and with those of the last drill.
        The predicted and the measured seconds are metadata, and later predictions use the measured ones. By hand:
        `statekeeper drill QUERY`.
        """
        fleet = names.fleet_in(context)
        query = fleet.open(context.partition_key)
        runs = {"": run_of(context, fleet, query, workers=1)}
        if query.mirror is not None:
            runs[_MIRROR] = replace(runs[""], storage=fleet.open_destination(query.mirror.url, query), id="")
        shown: Metadata = {}
        found: dict[str, Found] = {}
        errors: dict[str, StatekeeperError] = {}
        for name, run in runs.items():
            try:
                shown |= _drilled(run, name, found)
            except NotACheckpoint:
                if name != _MIRROR:
                    raise
                shown[f"{_MIRROR}/result"] = "there is no mirror yet"
            except StatekeeperError as error:
                # The mirror does not depend on the source, whose loss it survives.
                context.log.error(printable(f"{name or query.name}: {error}"))
                errors[name or query.name] = error
        named = {name or query.name: of for name, of in found.items()}
        yield from with_fleet_verdicts(context, [newest_snapshot_restores(named, errors, query)], names)
        if errors:
            raise dg.Failure(str(next(iter(errors.values()))), metadata=shown)
        yield dg.MaterializeResult(metadata=shown)

    return made


def _drilled(run: Run, name: str, found: dict[str, Found]) -> Metadata:
    """Drill a root, and add what was found under its name. Returns the metadata, which have the name as prefix."""
    prepared = perform(prepare(Drill(), run))
    found[name] = prepared.made or Found()
    of_root = {**of_prepared(prepared), "seconds": round(prepared.seconds, 3)}
    return {f"{name}/{key}" if name else key: value for key, value in of_root.items()}
