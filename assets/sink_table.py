"""The asset `sink_table`: the Delta tables that a query writes, with few small files and without unneeded ones."""

from collections.abc import Iterator

import dagster as dg

from statekeeper.assets.checks import SINK_TABLES_ARE_HEALTHY, sink_tables_are_healthy
from statekeeper.assets.launches import of_prepared, run_of
from statekeeper.assets.metadata import Metadata
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.verbs.contract import prepare, unattended
from statekeeper.statestore.maintenance.verbs.optimize import Optimize, PreparedSink


def sink_table(names: Names, sources: Sources) -> dg.AssetsDefinition:
    """Make the asset `sink_table` of a fleet."""

    @names.asset("sink_table", deps=[sources.streaming_query], does="deletes-files", checks=[SINK_TABLES_ARE_HEALTHY])
    def made(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        """Merges the small files of the Delta tables that a query writes, and deletes the files that no version needs.

        *Danger*: it deletes files. Each version of a table stays readable that a rewind to a retained batch restores, or
        that a reader may still read. The query may be running: a merge is a commit that changes no row. In mode "observe"
        or "snapshots" it only plans. Tables: `sinks` of the query in statekeeper.toml. By hand: `statekeeper optimize
        QUERY`.
        """
        fleet = names.fleet_in(context)
        query = fleet.open(context.partition_key)
        if not query.sinks:
            raise dg.Failure(
                f'{query.name} has no sink: add sinks.NAME = {{ url = "..." }} to its table in statekeeper.toml'
            )
        shown: Metadata = {}
        done: dict[str, PreparedSink] = {}
        failed: dict[str, StatekeeperError] = {}
        for sink in query.sinks:
            try:
                prepared = prepare(Optimize(destination=sink.url, **sink.options), run_of(context, fleet, query))
                prepared = done[sink.name] = unattended(prepared)
            except StatekeeperError as error:
                # The other tables do not depend on it.
                context.log.error(printable(f"{sink.name}: {error}"))
                failed[sink.name] = error
                continue
            of_sink = {**of_prepared(prepared), "seconds": round(prepared.seconds, 3)}
            # One table keeps the plain names, so that Dagster plots their history.
            is_only = len(query.sinks) == 1
            shown |= {name if is_only else f"{sink.name}/{name}": value for name, value in of_sink.items()}
        yield from with_fleet_verdicts(context, [sink_tables_are_healthy(done, failed, query)], names)
        if failed:
            [first, *_] = failed.values()
            some = f"{counted(len(failed), 'table')} of {len(query.sinks)} failed ({', '.join(failed)}): "
            raise dg.Failure(f"{some if len(query.sinks) > 1 else ''}{first}", metadata=shown)
        yield dg.MaterializeResult(metadata=shown)

    return made
