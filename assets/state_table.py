"""The asset `state_table`: the state of a query as Delta tables, which other assets can depend on."""

import dagster as dg

from statekeeper.assets.launches import of_prepared, run_of
from statekeeper.assets.metadata import Metadata
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.publish import Publish


def state_table(names: Names, sources: Sources) -> dg.AssetsDefinition:
    """Make the asset `state_table` of a fleet."""

    @names.asset("state_table", deps=[sources.streaming_query], does="adds-files")
    def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """Brings the Delta tables of a query to the newest batch of its state, each in one commit, from the changelogs.

        The query may be running and is not changed. After a rewind or a rewrite, the next run compares all rows and
        corrects the table. The change data feed of a table is the feed of the changes of the state. Tables: `tables` of the
        query in statekeeper.toml. By hand: `statekeeper publish QUERY`.
        """
        fleet = names.fleet_in(context)
        query = fleet.open(context.partition_key)
        if not query.state_tables:
            raise dg.Failure(
                f'{query.name} has no table: add tables.NAME = {{ url = "..." }} to its table in statekeeper.toml'
            )
        shown: Metadata = {}
        failed: dict[str, StatekeeperError] = {}
        for table in query.state_tables:
            try:
                run = run_of(context, fleet, query)
                prepared = perform(prepare(Publish(destination=table.url, **table.options), run))
            except StatekeeperError as error:
                # The other tables do not depend on it.
                context.log.error(printable(f"{table.name}: {error}"))
                failed[table.name] = error
                continue
            of_table = {**of_prepared(prepared), "seconds": round(prepared.seconds, 3)}
            # One table keeps the plain names, so that Dagster plots their history.
            is_only = len(query.state_tables) == 1
            shown |= {name if is_only else f"{table.name}/{name}": value for name, value in of_table.items()}
        if failed:
            [first, *_] = failed.values()
            some = f"{counted(len(failed), 'table')} of {len(query.state_tables)} failed ({', '.join(failed)}): "
            raise dg.Failure(f"{some if len(query.state_tables) > 1 else ''}{first}", metadata=shown)
        return dg.MaterializeResult(metadata=shown)

    return made
