"""Plans and makes tables of state: the state of an operator as a Delta table, kept up to date from the changelogs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.maintenance.copies import state_tables
from statekeeper.statestore.maintenance.copies.state_tables import (
    Progress,
    Published,
    Request,
    TableFacts,
    TablePlan,
    Way,
)
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.verbs.clone import Copy
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Work
from statekeeper.statestore.maintenance.verbs.options import option
from statekeeper.statestore.maintenance.verbs.report import Figure, Report, Table, as_objects, decimal, when
from statekeeper.statestore.storage import Storage

_WAYS: Mapping[Way, str] = {
    Way.LOAD: "load all rows of the state",
    Way.CHANGES: "apply the changelogs",
    Way.COMPARISON: "compare all rows of the state with the table",
    Way.RELOAD: "load all rows again",
    Way.NOTHING: "nothing to do",
}


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """A plan of a table of state, and its facts. `mode`: of the root."""

    mode: Mode
    destination: Storage
    gathered: TableFacts
    plan: TablePlan

    @property
    def oldest(self) -> int:
        """The oldest batch whose files the run reads."""
        batch, published = self.plan.batch or 0, self.plan.published
        return batch if published is None else min(batch, published)

    @property
    def is_complete(self) -> bool:
        return self.plan.way is Way.NOTHING and not self.plan.refusals


@dataclass(frozen=True, kw_only=True)
class Publish(Copy[PlannedTable, Progress, Published]):
    """Bring a Delta table to the state at the newest batch of the root, in one commit.

    The root is only read, also while its query runs. The table has one writer.
    """

    name = "publish"
    destination: str = option("The table to write: a URL or a path.", flag="")
    operator: int | None = option(
        "Number of the operator whose state to publish, as inspect shows it. Default: the only one.",
        default=None,
        least=0,
    )
    store: str | None = option(
        "Store of the operator, for a join of two streams. Default: the only one.", default=None, metavar="NAME"
    )
    family: str | None = option(
        "State variable of transformWithState. Default: the only one.", default=None, metavar="NAME"
    )
    columns: tuple[str, ...] = option(
        "Publish only this column of the state. Repeatable. If the key and the value have a column of this name, write "
        "key.NAME or value.NAME. Default: all columns.",
        default=(),
        flag="--column",
        metavar="NAME",
    )
    rename: Mapping[str, str] = option(
        "Name of a column in the table. Repeatable.", default=dict, metavar="COLUMN=NAME"
    )
    partition_by: tuple[str, ...] = option(
        "Partition the table by this column of it. Repeatable. Choose a column with few values.",
        default=(),
        metavar="COLUMN",
    )
    where: tuple[str, ...] = option(
        'Publish only rows that meet this condition, such as "status = \'open\'" or "total > 100". Operators: =, !=, <, '
        "<=, >, >=, is null, is not null. Repeatable: a row must meet all conditions.",
        default=(),
        metavar="CONDITION",
    )
    before_images: bool = option(
        "Add the former rows of changed and deleted keys to the change data feed. The run then reads them from the data "
        "files, which takes longer for a large table. Default: the feed has inserted rows, the new rows of changed keys, "
        "and the keys of deleted rows.",
        default=False,
    )
    plain_files: bool = option(
        "Write no deletion vectors, for readers that do not support them, such as pandas with deltalake. Each run then "
        "rewrites all data files that have a changed row. Only for a new table.",
        default=False,
    )
    reload: bool = option(
        "Load all rows again in place of those of the table, with the options of this command. Use it to change the "
        "columns of the table.",
        default=False,
    )

    @property
    def _request(self) -> Request:
        return Request(
            operator=self.operator,
            store=self.store,
            family=self.family,
            columns=self.columns,
            renamed=tuple(self.rename.items()),
            partition_by=self.partition_by,
            where=self.where,
            vectors=False if self.plain_files else None,
        )

    def plan(self, run: Run) -> PlannedTable:
        """Raises as `state_tables.gather`, and `RefusedAsUnsafe` if the query is not stopped."""
        if run.stopped:
            run.require_stopped(confirmed=True)
        destination = run.open_other(self.destination)
        gathered, planned = self._planned(run, destination)
        return PlannedTable(
            mode=run.policies.mode_for(gathered.origin), destination=destination, gathered=gathered, plan=planned
        )

    def _planned(self, run: Run, destination: Storage) -> tuple[TableFacts, TablePlan]:
        gathered = state_tables.gather(run.storage, destination, stopped=run.stopped)
        planned = state_tables.plan(gathered, self._request, reload=self.reload)
        if planned.reads_all:
            gathered = state_tables.with_chains(run.storage, gathered)
            planned = state_tables.plan(gathered, self._request, reload=self.reload)
        return gathered, planned

    def has_work(self, plan: PlannedTable) -> bool:
        return not plan.is_complete

    def refusals(self, run: Run, plan: PlannedTable) -> Iterable[StatekeeperError]:
        return plan.plan.refusals

    def begin(self, run: Run, plan: PlannedTable) -> None:
        """Write no record: the commit of the table has it."""

    def execute(self, run: Run, plan: PlannedTable, work: Work[Progress]) -> Published:
        """Plan again with the hold and the lease, as another run may have published the batch meanwhile. Raises as
        `state_tables.execute`."""
        gathered, planned = self._planned(run, work.storage)
        for refusal in planned.refusals:
            raise refusal
        if planned.way is Way.NOTHING:
            return _unchanged(planned)
        return state_tables.execute(
            gathered,
            work.storage,
            planned,
            before_images=self.before_images,
            scratch=run.scratch,
            memory_bytes=run.memory_bytes,
            clock=run.clock,
            ids=run.by.ids,
            told=work.tell,
        )

    def report(self, prepared: Prepared[PlannedTable, Progress, Published]) -> Report:
        """Report the way of a table to a batch, or the rows that changed."""
        plan, made, url = prepared.plan.plan, prepared.made, prepared.plan.destination.url
        chosen = None if plan.record is None else plan.record.chosen
        record: Json = {
            "table": url,
            "batch": plan.batch,
            "version": None if plan.batch is None else plan.batch + 1,
            "newest_batch": plan.newest,
            "published_batch": plan.published,
            "way": plan.way.value,
            "reason": plan.reason,
            "changelogs": plan.changelog_count,
            "changelog_bytes": plan.changelog_bytes,
            "operator": None if chosen is None else chosen.operator,
            "store": None if chosen is None else chosen.store,
            "family": None if chosen is None else chosen.family,
            "columns": {} if chosen is None else dict(chosen.columns),
            "partition_by": [] if chosen is None else list(chosen.partition_by),
            "where": [] if chosen is None else list(chosen.where),
            "refusals": as_objects(prepared.refusals),
        }
        figures: dict[str, Figure] = {
            "newest_batch": plan.newest,
            "changelogs": plan.changelog_count,
            "changelog_bytes": plan.changelog_bytes,
        }
        if plan.batch is not None:
            figures["batch"] = plan.batch
        tables: tuple[Table, ...] = ()
        lines: tuple[str, ...] = ()
        if plan.columns is not None and chosen is not None:
            kinds = {one.name: str(one.type) for one in plan.columns.schema}
            rows = [(shown, name, kinds[shown]) for name, shown in chosen.columns.items()]
            newest = "" if plan.batch == plan.newest else f" (newest batch of the root: {plan.newest:,})"
            title = f"{when(plan.batch)}{newest}: {_WAYS[plan.way]}, because {plan.reason}"
            tables = (Table("columns", title, ("column", "in the state", "type"), rows),)
        elif plan.reason:
            lines = (f"nothing to do: {plan.reason}",)
        if plan.way is Way.CHANGES:
            lines = (f"reads {counted(plan.changelog_count, 'changelog')}, {decimal(plan.changelog_bytes)}",)
        done: tuple[str, ...] = ()
        if plan.way is Way.NOTHING and not prepared.refusals:
            done = (f"nothing to do: {plan.reason}",)
        if made is not None:
            record |= {
                "way": made.way.value,
                "inserted": made.inserted,
                "updated": made.updated,
                "deleted": made.deleted,
                "rows": made.rows,
                "table_version": made.version,
                "files": made.files,
                "records": made.records,
                "compacted_files": made.compacted,
                "seconds": round(prepared.seconds, 3),
            }
            figures |= {
                "batch": made.batch,
                "inserted": made.inserted,
                "updated": made.updated,
                "deleted": made.deleted,
                "rows": made.rows,
                "table_version": made.version,
                "files": made.files,
                "compacted_files": made.compacted,
            }
            done = (
                f"published {when(made.batch)} to {url}: {made.inserted:,} inserted, {made.updated:,} updated, "
                f"{made.deleted:,} deleted; {counted(made.rows, 'row')} in version {made.version} of the table, in "
                f"{prepared.seconds:,.1f} s",
            )
        return Report(
            record=record,
            phase=prepared.phase("published"),
            facts={"table": url, "way": plan.way.value, "reason": plan.reason},
            figures=figures,
            tables=tables,
            lines=lines,
            done=done,
        )


def _unchanged(planned: TablePlan) -> Published:
    """The outcome if another run has published the batch meanwhile."""
    assert planned.table is not None
    return Published(
        batch=planned.published or 0,
        way=Way.NOTHING,
        inserted=0,
        updated=0,
        deleted=0,
        rows=planned.table.live_rows,
        version=planned.table.version,
        files=len(planned.table.files),
    )
