"""The asset `history_table`: the tables with the history of all queries, which the loss of Dagster's database leaves."""

from dataclasses import replace

import dagster as dg

from statekeeper.assets.metadata import Metadata, bullets, of_report
from statekeeper.assets.names import Names
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.verbs import history
from statekeeper.statestore.maintenance.verbs.history import Destination, Source
from statekeeper.statestore.storage import open_storage

_MOST_DAMAGED = 20
"""Damaged records in the metadata."""


def history_table(names: Names, health: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Make the asset `history_table` of a fleet."""

    @names.asset("history_table", deps=[health], does="adds-files", of_each_query=False)
    def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """Adds the runs of all queries to the Delta tables of `[history]` in statekeeper.toml, each run once.

        The tables are `runs`, `steps` and `health`. They outlive the records below the roots, which retention deletes, and
        Dagster's own database. SQL answers which files were deleted on a day, which queries have no drill, and what a team
        pays. A run reads only the records that the tables lack, and examines each query once a day. By hand:
        `statekeeper history --all`.
        """
        fleet = names.fleet_in(context)
        found = fleet.discover()
        places, without = history.destinations(one.root for one in found.queries.values())
        if not places:
            raise dg.Failure(
                f'{fleet.config_file} has no place for the tables: add [history] and url = "s3://bucket/statekeeper-history"'
            )
        shown: Metadata = {"queries": len(found.queries), "queries_without_history": len(without)}
        problems, damaged = dict(found.problems), list[str]()
        for place in places:
            try:
                recorded = recorded_at(context, fleet, place)
            except StatekeeperError as error:
                # The other tables do not depend on it.
                problems[place.spec.url] = str(error)
                continue
            problems |= recorded.problems
            damaged += recorded.damaged
            of_place = of_report(history.report(recorded.plan, recorded), ())
            # One place keeps the plain names, as in a fleet with one file.
            prefix = "" if len(places) == 1 else f"{printable(place.spec.url)}/"
            shown |= {f"{prefix}{name}": value for name, value in of_place.items()}
        shown["damaged_records"] = len(damaged)
        if damaged:
            # Their runs are in the tables as damaged, so that the run is no failure.
            context.log.warning(printable(f"{counted(len(damaged), 'damaged record')}: {damaged[0]}"))
            shown["damaged"] = bullets(damaged[:_MOST_DAMAGED])
        if problems:
            first = next(f"{name}: {problem}" for name, problem in problems.items())
            raise dg.Failure(printable(f"{counted(len(problems), 'problem')}: {first}"), metadata=shown)
        return dg.MaterializeResult(metadata=shown)

    return made


def recorded_at(context: dg.AssetExecutionContext, fleet: Fleet, place: Destination) -> history.RecordedHistory:
    """Bring the tables of one place to the newest runs. A query that cannot be opened is a problem of its own."""
    clock = SystemClock()
    sources, problems = list[Source](), dict[str, str]()
    for root in place.roots:
        try:
            sources.append(history.source_of(root, open_storage(root.spec, is_hurried=False)))
        except StatekeeperError as error:
            # The other queries do not depend on it.
            problems[root.name] = str(error)
    facts = history.gather(
        place.spec.url, sources, lambda url: open_storage(place.table(url), is_hurried=False), clock=clock
    )
    planned = history.plan(facts, keep_seconds=place.keep_seconds)
    context.log.info(
        printable(f"{place.spec.url}: {counted(planned.count, 'run')} of {counted(len(facts.sources), 'query')} to add")
    )
    recorded = history.execute(planned, scratch=fleet.scratch_folder(), clock=clock, ids=RandomIds())
    return replace(recorded, problems={**problems, **recorded.problems})
