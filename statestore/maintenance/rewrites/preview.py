"""The rows that a schema evolution rewrites, before and after: a plan shows the first ones, and their numbers by store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.clock import Clock, Ids
from statekeeper.statestore.contents import Contents, layout, opened
from statekeeper.statestore.differences import Change, Difference
from statekeeper.statestore.errors import StatekeeperError
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.plain_values import plain_rows
from statekeeper.statestore.maintenance.evolution import EvolvedRows
from statekeeper.statestore.maintenance.pool import WORKERS, in_pool
from statekeeper.statestore.maintenance.rewrites.plans import RewritePlan
from statekeeper.statestore.origin import Origin
from statekeeper.statestore.storage import Storage

SHOWN_ROWS = 20
"""The rows that a plan shows."""


@dataclass(frozen=True, kw_only=True)
class EvolutionPreview:
    """The number of rows by store, and the first rows, each with its store."""

    rows: dict[StorePath, int]
    first: tuple[tuple[StorePath, Difference], ...]

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(self.rows.values())


def preview(
    storage: Storage, planned: RewritePlan, *, scratch: Path, clock: Clock, ids: Ids, workers: int = WORKERS
) -> EvolutionPreview | None:
    """Restore each store of the plan below `scratch`, and convert all its rows in memory. None for a blocked plan, and for
    one that completes an interrupted run.

    Raises as `contents.opened` and `EvolvedRows.table`.
    """
    if planned.refusals or planned.half_done is not None or planned.batch is None:
        return None
    stores = dict(planned.heads)
    contents = Contents(storage=storage, batch=planned.batch, stores=stores, origin=Origin.OWN, conf=planned.conf)
    evolved = {store: group.conversion for group in planned.groups for store in group.targets}
    found: dict[StorePath, tuple[int, list[Difference]]] = {}
    failed: list[StatekeeperError] = []

    def work(store: StorePath) -> tuple[int, list[Difference]]:
        evolution = evolved[store]
        assert isinstance(evolution, EvolvedRows)
        return _of_store(contents, store, evolution, scratch=scratch, clock=clock, ids=ids)

    def ended(store: StorePath, outcome: tuple[int, list[Difference]] | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
        else:
            found[store] = outcome

    in_pool(work, list(evolved), ended, workers=workers)
    if failed:
        raise failed[0]
    shown = [(store, row) for store in evolved for row in found[store][1]]
    return EvolutionPreview(rows={store: found[store][0] for store in evolved}, first=tuple(shown[:SHOWN_ROWS]))


def _of_store(
    contents: Contents, store: StorePath, evolution: EvolvedRows, *, scratch: Path, clock: Clock, ids: Ids
) -> tuple[int, list[Difference]]:
    count, first = 0, list[Difference]()
    with opened(contents, store, layout(contents, store), scratch=scratch, clock=clock, ids=ids) as rows:
        for decoded in map(rows.decoded, rows.pairs()):
            after = evolution.table(decoded.values)
            count += after.num_rows
            most = SHOWN_ROWS - len(first)
            sides = (plain_rows(table.slice(0, most)) for table in (decoded.keys, decoded.values, after))
            first += [
                Difference(family=None, change=Change.CHANGED, key=key, before=before, after=new)
                for key, before, new in zip(*sides, strict=True)
            ]
    return count, first
