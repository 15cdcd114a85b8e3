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
from statekeeper.statestore.maintenance.copies.clones import CopyFile, Way
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan, Lag
from statekeeper.statestore.maintenance.verbs.contract import Prepared, perform, prepare
from statekeeper.statestore.maintenance.verbs.mirror import Mirror, PlannedMirror

MOST_FILES_HERE, MOST_BYTES_HERE = 2_000, 1024**3
"""Most files that the machine of the run copies of a query on Spark, and most bytes of them that pass through it. It takes
about as long as the start of a Spark application."""


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


def _prepared(given: Given) -> Prepared[PlannedMirror, CopyFile, CleanupPlan]:
    assert given.query.mirror is not None
    return prepare(Mirror(destination=given.query.mirror.url, location=given.query.mirror.location), given.run)


def _do(given: Given, how: Mapping[str, Any]) -> Outcome:
    del how
    try:
        return _performed(given, _prepared(given))
    except StatekeeperError as error:
        return _failed(given, error)


def _at_once(given: Given) -> Outcome | None:
    """Mirror if few files are missing, or fail if the plan does: the schedule starts a run each few minutes."""
    try:
        prepared = _prepared(given)
        return None if _has_much_to_copy(prepared) else _performed(given, prepared)
    except StatekeeperError as error:
        return _failed(given, error)


def _has_much_to_copy(prepared: Prepared[PlannedMirror, CopyFile, CleanupPlan]) -> bool:
    missing = [one for one in prepared.plan.plan.files if one.way is not Way.PRESENT]
    through = sum(one.size_bytes for one in missing if one.way is not Way.SERVICE)
    return not prepared.refusals and (len(missing) > MOST_FILES_HERE or through > MOST_BYTES_HERE)


def _performed(given: Given, prepared: Prepared[PlannedMirror, CopyFile, CleanupPlan]) -> Outcome:
    done = perform(prepared, after_each_step(given.told, lambda files: f"mirror: {counted(files, 'file')}"))
    shown = {**of_prepared(done), "seconds": round(done.seconds, 3)}
    return Outcome(metadata=shown, checks=[mirror_is_fresh(done.plan.plan.left, None, given.query)])


def _failed(given: Given, error: StatekeeperError) -> Outcome:
    check = mirror_is_fresh(_lag(given.fleet, given.query), error, given.query)
    return Outcome(checks=[check], errors={given.query.name: str(error)})


def _checks_without_result(fleet: Fleet, query: OpenedQuery) -> Sequence[dg.AssetCheckResult]:
    return [mirror_is_fresh(_lag(fleet, query), None, query)]


def _lag(fleet: Fleet, query: OpenedQuery) -> Lag | None:
    """Measure the lag after a failed run; None if the source or the mirror cannot be read."""
    assert query.mirror is not None
    try:
        return mirrors.measure(query.storage, fleet.open_destination(query.mirror.url, query))
    except StatekeeperError:
        return None


MIRROR = of_asset("mirror", _do, at_once=_at_once, without_result=_checks_without_result)
"""The work of the asset."""
