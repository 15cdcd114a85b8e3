"""The asset `restore_drill`: a sample of stores, restored into scratch folders, timed and compared."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from statekeeper.assets.checks import NEWEST_SNAPSHOT_RESTORES, newest_snapshot_restores
from statekeeper.assets.launches import of_prepared
from statekeeper.assets.memory import tell_run
from statekeeper.assets.metadata import Metadata
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.work import Given, Outcome, of_asset, recorded
from statekeeper.statestore.base.errors import NotACheckpoint, StatekeeperError
from statekeeper.statestore.maintenance.upkeep.drill import Found
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.drill import Drill

_MIRROR = "mirror"


def restore_drill(names: Names, sources: Sources, memory: dg.AssetKey) -> dg.AssetsDefinition:
    """Make the asset `restore_drill` of a fleet. `memory`: the asset that remembers notices."""

    @names.asset("restore_drill", deps=[sources.streaming_query], does="adds-files", checks=[NEWEST_SNAPSHOT_RESTORES])
    def made(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        """Restores a sample of the stores of a query, and of its mirror, into scratch folders, times it, and compares the
        rows.

        The query may be running and is not changed. Weekly runs restore each store within a quarter. The rows of a load
        from the newest snapshot are compared with those of a load that does not use it, and with those of the last drill.
        The predicted and the measured seconds are metadata, and later predictions use the measured ones. By hand:
        `statekeeper drill QUERY`.
        """
        yield from recorded(context, names, DRILL)
        tell_run(context, names, memory, context.run, None)

    return made


def _do(given: Given, how: Mapping[str, Any]) -> Outcome:
    """Drill a query, and its mirror."""
    del how
    query, runs = given.query, {"": given.run}
    if query.mirror is not None:
        runs[_MIRROR] = replace(given.run, storage=given.fleet.open_destination(query.mirror.url, query), id="")
    shown: Metadata = {}
    found: dict[str, Found] = {}
    errors: dict[str, StatekeeperError] = {}
    for name, of_root in runs.items():
        try:
            shown |= _drilled(of_root, name, found, given.told)
        except NotACheckpoint:
            if name != _MIRROR:
                raise
            shown[f"{_MIRROR}/result"] = "there is no mirror yet"
        except StatekeeperError as error:
            # The mirror does not depend on the source, whose loss it survives.
            errors[name or query.name] = error
    named = {name or query.name: of for name, of in found.items()}
    return Outcome(
        metadata=shown,
        checks=[newest_snapshot_restores(named, errors, query)],
        errors={name: str(error) for name, error in errors.items()},
    )


DRILL = of_asset("restore_drill", _do, workers=1)
"""The work of the asset: one store at a time, so that the measured seconds are those of a store. On a cluster, each task
has a slot of its own."""


def _drilled(run: Run, name: str, found: dict[str, Found], told: Callable[[str], None]) -> Metadata:
    """Drill a root, and add what was found under its name. Returns the metadata, which have the name as prefix."""
    prepared = prepare(Drill(), run)
    stores, ended = len(prepared.plan.plan.drill), set[object]()

    def tell(step: tuple[Any, object]) -> None:
        ended.add(step[0].store)  # a comparison tells a store again
        told(f"{name or 'drill'}: {len(ended):,} of {stores:,} stores")

    prepared = perform(prepared, tell)
    found[name] = prepared.made or Found()
    of_root = {**of_prepared(prepared), "seconds": round(prepared.seconds, 3)}
    return {f"{name}/{key}" if name else key: value for key, value in of_root.items()}
