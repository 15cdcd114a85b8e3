"""The asset `restore_drill`: a sample of stores, restored into scratch folders, timed and compared."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from statekeeper.assets import spark_runs
from statekeeper.assets.checks import NEWEST_SNAPSHOT_RESTORES, newest_snapshot_restores
from statekeeper.assets.launches import of_prepared, run_of
from statekeeper.assets.metadata import Metadata
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.statestore.base.errors import NotACheckpoint, StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.upkeep.drill import Found
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.drill import Drill

_MIRROR = "mirror"


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """The drill of a query and of its mirror. `errors`: by the name of the query or the mirror."""

    metadata: Metadata
    check: dg.AssetCheckResult
    errors: Mapping[str, str]

    def as_sent(self) -> dict[str, Any]:
        """Encode it for the run of Dagster that has asked a Spark application for it."""
        shown, check = spark_runs.metadata_as_sent(self.metadata), spark_runs.check_as_sent(self.check)
        return {"metadata": shown, "check": check, "errors": dict(self.errors)}

    @classmethod
    def of_sent(cls, sent: Mapping[str, Any]) -> "Drilled":
        """Decode it."""
        shown, check = spark_runs.metadata_in(sent["metadata"]), spark_runs.check_in(sent["check"])
        return cls(metadata=shown, check=check, errors=sent["errors"])


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
        if query.is_on_spark:
            done = Drilled.of_sent(spark_runs.drilled(context, names, query))
        else:
            done = drilled(run_of(context, fleet, query, workers=1), fleet, query)
        for name, error in done.errors.items():
            context.log.error(printable(f"{name}: {error}"))
        yield from with_fleet_verdicts(context, [done.check], names)
        if done.errors:
            raise dg.Failure(next(iter(done.errors.values())), metadata=done.metadata)
        yield dg.MaterializeResult(metadata=done.metadata)

    return made


def drilled(
    run: Run, fleet: Fleet, query: OpenedQuery, *, told: Callable[[str], None] = lambda progress: None
) -> Drilled:
    """Drill a query, and its mirror. `told`: called with the progress after each store."""
    runs = {"": run}
    if query.mirror is not None:
        runs[_MIRROR] = replace(run, storage=fleet.open_destination(query.mirror.url, query), id="")
    shown: Metadata = {}
    found: dict[str, Found] = {}
    errors: dict[str, StatekeeperError] = {}
    for name, of_root in runs.items():
        try:
            shown |= _drilled(of_root, name, found, told)
        except NotACheckpoint:
            if name != _MIRROR:
                raise
            shown[f"{_MIRROR}/result"] = "there is no mirror yet"
        except StatekeeperError as error:
            # The mirror does not depend on the source, whose loss it survives.
            errors[name or query.name] = error
    named = {name or query.name: of for name, of in found.items()}
    return Drilled(
        metadata=shown,
        check=newest_snapshot_restores(named, errors, query),
        errors={name: str(error) for name, error in errors.items()},
    )


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
