"""A code location with an asset that reads the state of the flights job by SQL: the aircraft that fly now.

The table `aircraft` has a row for each aircraft, with its last departure. Statekeeper publishes it each five minutes. The
asset depends on it and is materialized after it.
"""

import os
from pathlib import Path

import dagster as dg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from statekeeper.dagster import build_definitions

CONFIG = Path(os.environ.get("STATEKEEPER_CONFIG", "var/flights/statekeeper.toml"))
TABLE = os.environ.get("AIRCRAFT_TABLE", "var/flights/aircraft")

IN_THE_AIR = """
    SELECT tailnum, legs, last_departed_at, batch
    FROM aircraft
    WHERE last_departed_at > (SELECT max(last_departed_at) FROM aircraft) - INTERVAL '3 hours'
    ORDER BY last_departed_at DESC, tailnum
"""
"""A flight in the data takes less than three hours as a rule. The newest departure is the time of the stream."""


def in_the_air(table: str) -> pa.Table:
    """Return the aircraft that left in the last three hours of the stream."""
    found = QueryBuilder().register("aircraft", DeltaTable(table)).execute(IN_THE_AIR).read_all()
    return pa.table(found)


@dg.asset(deps=[dg.AssetKey(["flights", "state_table"])], automation_condition=dg.AutomationCondition.eager())
def aircraft_in_the_air() -> dg.MaterializeResult:
    """The aircraft that fly now, from the state of the flights job."""
    rows = in_the_air(TABLE)
    shown = rows.slice(0, 10).to_pylist()
    return dg.MaterializeResult(
        metadata={
            "aircraft": rows.num_rows,
            "batch": max(rows["batch"].to_pylist(), default=-1),
            "newest": dg.MetadataValue.md("\n".join(f"* {row['tailnum']}: {row['last_departed_at']}" for row in shown)),
        }
    )


defs = dg.Definitions.merge(
    build_definitions(CONFIG, name="flights"),
    dg.Definitions(assets=[aircraft_in_the_air]),
)
