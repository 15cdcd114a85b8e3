"""The progress of a run over many queries, in a tag of the run: it reaches the sensors on any machine.

    statekeeper/unfinished    the places in the run's list of the queries whose visit has not ended, or has failed

A run that is killed leaves the tag behind. So the sensor requests only the unfinished queries again. Places, and not names:
Postgres indexes the values of tags, and rejects one of 2,700 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from statekeeper.resources.worker import tag_run

UNFINISHED_TAG = "statekeeper/unfinished"


class Progress:
    """Keeps the tag of a run up to date while it visits queries."""

    def __init__(self, instance: dg.DagsterInstance, run_id: str, queries: Sequence[str]) -> None:
        self._instance, self._run_id = instance, run_id
        self._places = {query: place for place, query in enumerate(queries)}
        self._unfinished = set(self._places.values())
        self._write()

    def ended(self, query: str, *, has_failed: bool) -> None:
        """Record that the visit of a query has ended, and that its events are stored."""
        if not has_failed:
            self._unfinished.remove(self._places[query])
            self._write()

    def _write(self) -> None:
        places = ",".join(map(str, sorted(self._unfinished))) or "none"
        tag_run(self._instance, self._run_id, {UNFINISHED_TAG: places})


def unfinished(tags: Mapping[str, str], queries: Sequence[str]) -> set[str]:
    """The queries of an ended run whose visit has not ended, or has failed; all of them if the run died before it began."""
    places = tags.get(UNFINISHED_TAG)
    if places is None:
        return set(queries)
    return {queries[int(place)] for place in places.split(",") if place.isdigit() and int(place) < len(queries)}
