"""Compares the final files of the flights job with pandas and with each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from deltalake import DeltaTable

from statekeeper.pipelines.flights.job import FACTS, GROUNDED, Places
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.format import batch_log, logs, names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.copies import unpack
from statekeeper.statestore.storage import StorageSpec, list_members, open_storage
from tests.support import flights_in_pandas
from tests.support.sparks_reader import state_frame


@dataclass(frozen=True)
class Findings:
    """How much was compared, and found equal. `restored_versions`: older ones whose state was read, too."""

    batches: int
    facts: int
    grounded: int
    state_rows: int
    timers: int
    ids: int
    orphan_changelogs: int
    lost_attempts: int
    controls: int
    restored_versions: int = 0


def examine(places: Places, days: int, *, retained: int | None = None) -> Findings:
    """Compare facts, state and logs after this number of days. Raises `AssertionError` with the first difference.

    `retained`: the number of versions that retention had to keep. A few of them are compared, including the oldest.
    """
    expected = first_days(flights_in_pandas.flights(), days)
    facts, grounded = DeltaTable(places.facts).to_pandas(), DeltaTable(places.grounded).to_pandas()
    flights_in_pandas.assert_facts_equal(facts, flights_in_pandas.facts(expected, flights_in_pandas.lives(expected)))
    flights_in_pandas.assert_grounded_equal(grounded, flights_in_pandas.grounded(expected))
    session = spark_session("kill-test", master="local[2]")
    try:
        _unpack(places)
        state = state_frame(session, places.state)
        timers = state_frame(session, places.state, operator=1)
        older = [] if retained is None else _some_of(days - retained, days - 1)
        for batch in older:
            _unpack(places, batch)
            then = flights_in_pandas.remembered(first_days(flights_in_pandas.flights(), batch + 1))
            flights_in_pandas.assert_state_equal(state_frame(session, places.state, batch=batch), then)
    finally:
        session.stop()
    flights_in_pandas.assert_state_equal(state, flights_in_pandas.remembered(expected))
    set_timers = timers.set_index("tailnum")["fires_at"].sort_index()
    pd.testing.assert_series_equal(set_timers, flights_in_pandas.timers(expected), check_dtype=False)
    oldest = _compare_logs(places, days, retained)
    ids, orphans = _compare_ids(places, oldest, days, complete=retained is None)
    lost = _compare_sinks(places, oldest, days)
    controls = [
        _turns_red(flights_in_pandas.assert_facts_equal, facts.drop(index=len(facts) // 2), facts),
        _turns_red(flights_in_pandas.assert_facts_equal, pd.concat([facts, facts.iloc[:1]]), facts),
        _turns_red(flights_in_pandas.assert_grounded_equal, grounded.drop(index=len(grounded) // 2), grounded),
        _turns_red(flights_in_pandas.assert_grounded_equal, pd.concat([grounded, grounded.iloc[:1]]), grounded),
        _turns_red(flights_in_pandas.assert_state_equal, state.drop(index=len(state) // 2), state),
        _turns_red(flights_in_pandas.assert_state_equal, state.assign(legs=state["legs"] + (state.index == 0)), state),
    ]
    assert all(controls), f"a control that should have turned red did not: {controls}"
    return Findings(
        batches=days,
        facts=len(facts),
        grounded=len(grounded),
        state_rows=len(state),
        timers=len(timers),
        ids=ids,
        orphan_changelogs=orphans,
        lost_attempts=lost,
        controls=len(controls),
        restored_versions=len(older),
    )


def _unpack(places: Places, batch: int | None = None) -> None:
    """Unpack the batch logs that Spark needs to read a batch, if there are any."""
    root = open_storage(StorageSpec(places.state))
    list(unpack.execute(root, unpack.plan(unpack.gather(root, batch=batch))))


def first_days(flights: pd.DataFrame, days: int) -> pd.DataFrame:
    """The flights that departed on the first days, by UTC date."""
    dates = flights["departed_at"].dt.date
    return flights[dates.isin(sorted(dates.unique())[:days])]


def _some_of(first: int, last: int) -> list[int]:
    return sorted({first, first + 1, (first + last) // 2, last})


def _compare_logs(places: Places, days: int, retained: int | None) -> int:
    """Each batch that has to be is in the commit log, without gaps; the oldest one."""
    root = open_storage(StorageSpec(places.state))
    found = {names.parse_batch(entry.path) for entry in root.list(names.COMMITS)}
    committed = sorted(batch for batch in found if batch is not None)
    oldest = committed[0] if retained is not None else 0
    assert committed == list(range(oldest, days)), f"commits: {committed}"
    assert retained is None or oldest <= days - retained, f"{days - oldest} batches are left in the commit log"
    # Spark keeps its newest hundred logs.
    own = sorted(int(path.name) for path in (Path(places.checkpoint) / "commits").iterdir() if path.name.isdigit())
    assert own == list(range(own[0], days)), f"the query's own commit log has gaps: {own}"
    return oldest


def _compare_ids(places: Places, oldest: int, days: int, *, complete: bool) -> tuple[int, int]:
    """Each id has its changelog, when none was deleted; how many have, and files that no commit names."""
    root = open_storage(StorageSpec(places.state))
    files = {entry.path for entry in root.list(names.STATE) if entry.path.endswith(".changelog")}
    files |= {entry.path for entry in list_members(root).entries}
    named = set()
    for batch in range(oldest, days):
        path = names.commits(batch)
        for operator, partitions in (logs.parse_commit(root.read(path), path).ids or {}).items():
            for partition, (checkpoint_id, *_) in enumerate(partitions):
                named.add(StorePath(operator, partition).changelog(VersionId(batch + 1, checkpoint_id)))
    assert not complete or named <= files, f"named by a commit and not there: {sorted(named - files)}"
    return len(named & files), len(files - named)


def _compare_sinks(places: Places, oldest: int, days: int) -> int:
    """Check that both sinks have each batch once, from one attempt that is recorded in the root. Return the number of
    attempts that lost."""
    root = open_storage(StorageSpec(places.state))
    held = {name: _attempts(table) for name, table in ((FACTS, places.facts), (GROUNDED, places.grounded))}
    for name, attempts in held.items():
        assert sorted(batch for batch, _ in attempts) == list(range(days)), f"{name} has a batch twice, or lacks one"
    assert sorted(held[FACTS]) == sorted(held[GROUNDED]), "the sinks have different attempts of a batch"
    records = {entry.path for folder in (names.PENDING, names.BATCH_LOGS) for entry in root.list(folder)}
    won = {_record(records, batch, attempt) for batch, attempt in held[FACTS] if batch >= oldest}
    assert won <= records, f"in the sink, and without a record: {sorted(won - records)}"
    return len(records - won)


def _attempts(table: str) -> list[tuple[int, str]]:
    """Return batch and attempt of each commit of a table."""
    told = [json.loads(one["userMetadata"]) for one in DeltaTable(table).history() if "userMetadata" in one]
    return [(one["statekeeper"]["batch"], one["statekeeper"]["attempt"]) for one in told]


def _record(records: set[str], batch: int, attempt: str) -> str:
    """Return the path of the record of an attempt: a batch log or its own file."""
    in_log = names.batch_log(batch + 1, batch_log.tag_of(attempt))
    return in_log if in_log in records else names.pending(batch, attempt)


def _turns_red(compare: Callable[[pd.DataFrame, pd.DataFrame], None], wrong: pd.DataFrame, right: pd.DataFrame) -> bool:
    compare(right, right)
    try:
        compare(wrong, right)
    except AssertionError:
        return True
    return False
