"""Plans how a table gets to the newest batch of its root. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from statekeeper.statestore.base.errors import (
    DestinationNotEmpty,
    RefusedAsUnsafe,
    StatekeeperError,
    UnknownFormatVersion,
    VersionNotLoadable,
)
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents import restart
from statekeeper.statestore.format.delta_log import FEATURES, VECTORS, DeltaTable
from statekeeper.statestore.format.families import KeyEncoder
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.maintenance.copies.savepoints.write import Table, table_of
from statekeeper.statestore.maintenance.copies.state_tables.columns import (
    Columns,
    Unusable,
    chosen_columns,
    conditions,
    partition_problem,
)
from statekeeper.statestore.maintenance.copies.state_tables.gather import Changelog, TableFacts
from statekeeper.statestore.maintenance.copies.state_tables.model import Chosen, Request, TableRecord, Way, stores_of

_INTERNAL_FAMILY = "$"
_LIST_OPERATOR = "transformWithState"


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """The way of a table to a batch, its reason, and the reasons not to.

    newest      the newest committed batch of the root
    columns     of the table; None if it is refused before they are known
    record      what the table will record; None with `columns`
    table       the newest version of the table; None for a new one
    published   the batch that the table shows now, as it records it
    stores      to read
    changelogs  of each store, for `Way.CHANGES`
    """

    way: Way
    reason: str
    newest: int
    columns: Columns | None
    record: TableRecord | None
    table: DeltaTable | None
    published: int | None = None
    stores: tuple[StorePath, ...] = ()
    changelogs: tuple[tuple[StorePath, tuple[Changelog, ...]], ...] = ()
    refusals: tuple[StatekeeperError, ...] = ()

    @property
    def reads_all(self) -> bool:
        """Whether the run restores the stores."""
        return self.way in (Way.LOAD, Way.COMPARISON, Way.RELOAD)

    @property
    def batch(self) -> int | None:
        """The batch that the table will show."""
        return None if self.record is None else self.record.position.batch

    @property
    def changelog_bytes(self) -> int:
        """The size of the changelogs to read."""
        return sum(one.size_bytes or 0 for _, steps in self.changelogs for one in steps)

    @property
    def changelog_count(self) -> int:
        """The number of changelogs to read."""
        return sum(len(steps) for _, steps in self.changelogs)


def plan(facts: TableFacts, request: Request, *, reload: bool = False) -> TablePlan:
    """Plan a run. `reload`: load all rows again, in place of those of the table."""
    recorded = facts.record
    empty = TablePlan(
        way=Way.NOTHING,
        reason="",
        newest=facts.newest,
        columns=None,
        record=None,
        table=facts.table,
        published=None if recorded is None else recorded.position.batch,
    )
    if (refusal := _misplaced(facts)) is not None:
        return replace(empty, refusals=(refusal,))
    if facts.contents is None or facts.position is None:
        reason = (
            f"no batch is final yet: in structure V1, a running query may still replace its {facts.newest + 1} batches"
        )
        return replace(empty, reason=reason)
    if reload and request.vectors is False and facts.table is not None and VECTORS in facts.table.features:
        return replace(empty, refusals=(_stays_with_vectors(facts),))
    if recorded is not None and not reload and (refusal := _other_choice(facts, recorded, request)) is not None:
        return replace(empty, refusals=(refusal,))
    columns = _columns(facts, _completed(request, recorded, reload=reload))
    if isinstance(columns, StatekeeperError):
        return replace(empty, refusals=(columns,))
    try:
        conditions(columns.chosen.where, columns.state_schema)
    except RefusedAsUnsafe as error:
        return replace(empty, refusals=(error,))
    record = TableRecord(
        query=facts.query,
        root=facts.source.url,
        position=facts.position,
        chosen=columns.chosen,
        schema=spark_schema_json(columns.state_schema),
        version=0 if facts.table is None else facts.table.version + 1,
    )
    way, reason = _way(facts, record, reload=reload)
    stores = tuple(stores_of(facts.contents.stores, columns.chosen))
    # A run that only reads changelogs does not need their base.
    lost = _not_loadable(facts, stores) if way not in (Way.CHANGES, Way.NOTHING) else ()
    return replace(
        empty,
        way=way,
        reason=reason,
        columns=columns,
        record=record,
        stores=stores,
        changelogs=tuple((store, facts.changelogs[store]) for store in stores) if way is Way.CHANGES else (),
        refusals=tuple(lost),
    )


def _not_loadable(facts: TableFacts, stores: Collection[StorePath]) -> Iterator[StatekeeperError]:
    """Yield an error for each store that cannot be loaded at the batch."""
    for one in restart.lost_versions({store: chain for store, chain in facts.chains.items() if store in stores}):
        yield VersionNotLoadable(
            f"{one.problem.of_batch}; {one.version.in_words} of {one.store} cannot be loaded, and nothing was written",
            path=one.problem.path,
            hint="to find the damage, run: statekeeper audit ROOT",
        )


def _way(facts: TableFacts, record: TableRecord, *, reload: bool) -> tuple[Way, str]:
    recorded, at = facts.record, record.position
    if recorded is None or facts.table is None:
        return Way.LOAD, "the table is new"
    was = recorded.position
    if reload:
        return Way.RELOAD, "it was asked for"
    if not facts.is_ours:
        return (
            Way.RELOAD,
            "another program, such as OPTIMIZE, has replaced data files, whose rows cannot be found by key",
        )
    if record.schema != recorded.schema:
        return Way.RELOAD, "the columns of the state have changed"
    if facts.table.version != recorded.version:
        later = [
            f"{name or 'a commit'} in version {one}" for one, name in facts.table.operations if one > recorded.version
        ]
        return Way.COMPARISON, f"another program has changed the table: {', '.join(later[:3]) or 'a later commit'}"
    if was == facts.published and at.batch <= was.batch:
        return Way.NOTHING, f"the table shows batch {was.batch}, which is the newest one that is final"
    if facts.published is None:
        gone = "was rolled back" if was.batch > facts.newest else "is no longer in the commit log"
        return Way.COMPARISON, f"batch {was.batch}, which the table shows, {gone}"
    if was != facts.published:
        return Way.COMPARISON, _difference(facts, recorded)
    if facts.moved:
        return Way.COMPARISON, f"the stores have changed since batch {was.batch}: the state was repartitioned"
    for store, steps in facts.changelogs.items():
        lost = next((one for one in steps if one.size_bytes is None), None)
        if lost is not None:
            return Way.COMPARISON, f"the changelog of {lost.version.in_words} of {store} no longer exists"
    after = at.batch - was.batch
    return Way.CHANGES, f"{counted(after, 'batch')} after batch {was.batch}"


def _difference(facts: TableFacts, recorded: TableRecord) -> str:
    was, now = recorded.position, facts.published
    assert now is not None
    if was.rewrites != now.rewrites:
        return f"the state was rewritten or rolled back since batch {was.batch} was published"
    return f"batch {was.batch} was executed again after a rollback: the table shows its former result"


# -- refusals ----------------------------------------------------------------------------------------------------------


def _misplaced(facts: TableFacts) -> StatekeeperError | None:
    source, destination = facts.source, facts.destination
    if source.location.contains(destination.location) or destination.location.contains(source.location):
        return DestinationNotEmpty(
            "overlaps with the root; nothing was written",
            path=destination.url,
            hint="choose a location outside of the root, which does not contain it",
        )
    if facts.occupied is not None:
        return DestinationNotEmpty(
            f"is not a Delta table, but it contains {facts.occupied}; nothing was written",
            path=destination.url,
            hint="choose an empty location",
        )
    if facts.table is not None and facts.record is None:
        return DestinationNotEmpty(
            "is a Delta table of another program; nothing was written",
            path=destination.url,
            hint="choose an empty location",
        )
    if facts.table is not None and (unknown := facts.table.features - FEATURES):
        return RefusedAsUnsafe(
            f"has the features {', '.join(sorted(unknown))}, which publish does not write; nothing was written",
            path=destination.url,
            hint="remove the features from the table, delete the table, or choose another location",
        )
    # A rewind gives the query another id, and a failover to a mirror gives it another location.
    if facts.record is not None and facts.query != facts.record.query and facts.source.url != facts.record.root:
        return DestinationNotEmpty(
            f"is a table of the query {facts.record.query} in {facts.record.root}, but the root belongs to the query "
            f"{facts.query}; nothing was written",
            path=destination.url,
            hint="choose another location, or delete the table",
        )
    if facts.contents is not None and not facts.contents.stores:
        return RefusedAsUnsafe(
            "the query has no state: there is nothing to publish",
            path=source.url,
            hint="choose the checkpoint of a query with a stateful operator",
        )
    return None


def _stays_with_vectors(facts: TableFacts) -> StatekeeperError:
    return RefusedAsUnsafe(
        "has the feature deletionVectors, which a reload does not remove: readers without it cannot read the table even if "
        "its files are plain; nothing was written",
        path=facts.destination.url,
        hint="delete the table and publish it with --plain-files, or choose another location",
    )


def _completed(request: Request, recorded: TableRecord | None, *, reload: bool) -> Request:
    """The request with the choice of the table where it has none."""
    if recorded is None:
        return request
    chosen = recorded.chosen
    placed = replace(request, operator=chosen.operator, store=chosen.store, family=chosen.family)
    # A new choice of columns replaces the former one as a whole.
    if reload and (request.columns or request.renamed or request.partition_by or request.where):
        return request if request.operator is not None else placed
    return replace(
        placed,
        columns=tuple(_of_state(chosen)),
        renamed=tuple((name, shown) for name, shown in chosen.columns.items() if name in _of_state(chosen)),
        partition_by=chosen.partition_by,
        where=chosen.where,
        vectors=chosen.vectors if request.vectors is None else request.vectors,
    )


def _of_state(chosen: Chosen) -> list[str]:
    return [name for name in chosen.columns if name.startswith(("key.", "value."))]


def _other_choice(facts: TableFacts, recorded: TableRecord, request: Request) -> StatekeeperError | None:
    """Require that the options of a run are those of the table."""
    chosen = recorded.chosen
    problems = []
    for name, wanted, held in (
        ("operator", request.operator, chosen.operator),
        ("store", request.store, chosen.store),
        ("column family", request.family, chosen.family),
        ("deletion vectors", request.vectors, chosen.vectors),
        ("partition columns", request.partition_by or None, chosen.partition_by),
        ("conditions", request.where or None, chosen.where),
    ):
        if wanted is not None and wanted != held:
            problems.append(f"other {name} ({_text(held)})")
    if request.columns or request.renamed:
        columns = _columns(
            facts,
            replace(_completed(request, recorded, reload=False), columns=request.columns, renamed=request.renamed),
        )
        if isinstance(columns, StatekeeperError):
            return columns
        if columns.chosen.columns != chosen.columns:
            problems.append(f"other columns ({', '.join(chosen.columns.values())})")
    if not problems:
        return None
    return RefusedAsUnsafe(
        f"the table has {' and '.join(problems)} than this command asks for; nothing was written",
        path=facts.destination.url,
        hint="omit these options to continue the table, add --reload to load it again with them, or choose another "
        "location",
    )


def _text(held: object) -> str:
    return ", ".join(map(str, held)) or "none" if isinstance(held, tuple) else str(held)


# -- columns -----------------------------------------------------------------------------------------------------------


def _columns(facts: TableFacts, request: Request) -> Columns | StatekeeperError:
    table = _table(facts, request)
    if isinstance(table, StatekeeperError):
        return table
    if table.rows is None:
        return UnknownFormatVersion(
            f"the rows cannot be decoded: {table.problem}; nothing was written",
            path=facts.source.url,
            hint="to keep the rows as bytes, run: statekeeper savepoint ROOT DESTINATION --rows",
        )
    found = chosen_columns(table, request, is_own=facts.origin is Origin.OWN, with_elements=_may_have_lists(table))
    if isinstance(found, Unusable):
        return RefusedAsUnsafe(f"{found.problem}; nothing was written", path=facts.source.url, hint=found.hint)
    chosen = Chosen(
        operator=table.operator,
        store=table.store,
        family=table.family,
        columns=found,
        partition_by=request.partition_by,
        where=request.where,
        vectors=request.vectors is not False,
    )
    columns = Columns(table=table, chosen=chosen)
    problem = partition_problem(chosen.partition_by, columns.schema)
    if problem is not None:
        return RefusedAsUnsafe(f"{problem.problem}; nothing was written", path=facts.source.url, hint=problem.hint)
    return columns


def _may_have_lists(table: Table) -> bool:
    """Whether the values may be lists: of a state variable whose encoder is not that of a map, and in joins of format 4."""
    if table.family is None or table.family.startswith(_INTERNAL_FAMILY) or table.rows is None:
        return False
    if table.rows.encoder in (KeyEncoder.TIME_FIRST, KeyEncoder.TIME_LAST):
        return True
    return table.operator_name.startswith(_LIST_OPERATOR) and table.rows.encoder is KeyEncoder.WHOLE


def _table(facts: TableFacts, request: Request) -> Table | StatekeeperError:
    """Find the rows that a request names, or the only ones."""
    found: list[tuple[int, str, str | None]] = []
    for (operator, store), layout in facts.layouts.items():
        if layout.unreadable is not None:
            found.append((operator, store, None))
        found += [(operator, store, family) for family in layout.families]
    given = (request.operator, request.store, request.family)
    matching = [one for one in found if all(want in (None, has) for want, has in zip(given, one, strict=True))]
    if len(matching) > 1:
        # Rows of Spark's and of Statekeeper's own indexes are published only if they are named.
        visible = [
            one
            for one in matching
            if (one[0] not in facts.internal or request.operator is not None)
            and ((one[2] or "").startswith(_INTERNAL_FAMILY) is False or request.family is not None)
        ]
        matching = visible or matching
    if len(matching) == 1:
        operator, store, family = matching[0]
        layout = facts.layouts[operator, store]
        if layout.unreadable is not None:
            return layout.unreadable
        return table_of(operator, facts.operators[operator], store, family, layout)
    if not matching:
        choices = matching = found
        problem = "does not have these rows"
    else:
        choices, problem = matching, f"has {len(matching)} kinds of rows"
    texts = [_options(facts, one) for one in choices]
    return RefusedAsUnsafe(
        f"the state {problem}; a table shows one of them; nothing was written",
        path=facts.source.url,
        hint=f"choose one of them with these options: {'; '.join(texts)}",
    )


def _options(facts: TableFacts, one: tuple[int, str, str | None]) -> str:
    operator, store, family = one
    name = facts.operators.get(operator) or "operator"
    of_store = f" --store {store}" if sum(kind[0] == operator for kind in facts.layouts) > 1 else ""
    of_family = f" --family '{family}'" if family is not None else ""
    return f"--operator {operator}{of_store}{of_family} ({name})"
