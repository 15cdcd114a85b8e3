"""Matches the operators, value columns and sources of a blueprint with those of the old checkpoint. Pure.

An operator takes the state of the only old operator with its name, its stores and its key columns. A value column takes the
old column of its name, whose type is the same or narrower. What is ambiguous or would be lost is a refusal with a way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.contents.rows import Layout
from statekeeper.statestore.format import names
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.operators import AGGREGATION
from statekeeper.statestore.format.partition_keys import SESSIONS
from statekeeper.statestore.format.plain_values import unique_names
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json
from statekeeper.statestore.format.widening import is_wider
from statekeeper.statestore.maintenance.rewrites.given_values import typed_texts
from statekeeper.statestore.maintenance.rewrites.migration.initial import Undecided, initial
from statekeeper.statestore.maintenance.rewrites.migration.model import (
    NONE,
    SOURCE,
    TICK,
    Matched,
    Migrate,
    MigrationFacts,
    Side,
    SourceMap,
    Taken,
)
from statekeeper.statestore.maintenance.rewrites.migration.rows import (
    EXPIRY,
    MappedColumn,
    fits,
    lost_fields,
    value_columns,
)
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import OperatorFacts
from statekeeper.statestore.root.times import EXPIRES_AT, FIRES_AT, TIMERS, TIMERS_DUE

_CLOCKS = {"EventTime", "ProcessingTime"}
_NEVER, _NULL = "-1", "null"
_SUM = "sum"
_TTL_INDEX = "$ttl_"
_OF_TIMED_LISTS = ("$min_", "$count_")
_DROPS = "add --allow-dropped-state"


@dataclass(kw_only=True)
class Given:
    """The options --map and --default, by what they name. What is left at the end names nothing.

    operators  number in the blueprint -> number in the old checkpoint; None: starts empty
    columns    (operator, column) of the blueprint -> old column
    sources    id in the blueprint -> id in the old checkpoint; None: starts at its beginning
    defaults   (operator, column) of the blueprint -> value
    """

    operators: dict[int, int | None] = field(default_factory=dict)
    columns: dict[tuple[int, str], str] = field(default_factory=dict)
    sources: dict[str, str | None] = field(default_factory=dict)
    defaults: dict[tuple[int, str], str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, goal: Migrate, old_side: Side, new_side: Side) -> Given:
        """Sort the options by what they name. The stores and inputs of a job root have names, which stand for numbers."""
        found = cls()
        for given, value in goal.maps.items():
            # Also an old store may be called `none`.
            new, old = (
                _numbered(given, new_side.numbers),
                value if value == NONE else _numbered(value, old_side.numbers),
            )
            number, dot, column = new.partition(".")
            ours, theirs = given.removeprefix(SOURCE), value.removeprefix(SOURCE)
            if given.startswith(SOURCE) and (new == given or ours in (*new_side.inputs, *new_side.offsets.by_source)):
                is_new = value == NONE
                found.sources[_placed(ours, new_side)] = None if is_new else _placed(theirs, old_side)
            elif _is_number(number) and dot and column:
                found.columns[int(number), column] = value
            elif _is_number(new) and (old == NONE or _is_number(old)):
                found.operators[int(new)] = None if old == NONE else int(old)
            else:
                found.problems.append(
                    f"--map {given}={value} is not understood: write --map 1=0 for an operator, --map 1.total=sum for a "
                    "value column, --map source.1=0 for a source, and none in place of the old side for one that starts "
                    "empty. The stores and inputs of a job have their names instead of numbers"
                )
        for given, value in goal.defaults.items():
            number, _, column = _numbered(given, new_side.numbers).partition(".")
            if _is_number(number) and column:
                found.defaults[int(number), column] = value
            else:
                found.problems.append(f"--default {given}={value} is not understood: write --default 1.total=0")
        return found

    def take(
        self, of: dict[tuple[int, str], str], operator: int, taken: Taken, column: str, *, is_only: bool
    ) -> str | None:
        """Return the option for a column, and mark it as used. Its name may follow that of its store or family."""
        for text in (f"{taken.place}.{column}", *((column,) if is_only else ())):
            if (operator, text) in of:
                return of.pop((operator, text))
        return None

    @property
    def unused(self) -> Iterator[str]:
        """Yield the options that name nothing."""
        for number in self.operators:
            yield f"--map {number}: the blueprint has no stateful operator {number}"
        for number, column in (*self.columns, *self.defaults):
            yield (
                f"--map or --default {number}.{column}: operator {number} of the blueprint has no such value column that "
                "needs it; a column of a store or state variable is written as OPERATOR.STORE.COLUMN"
            )
        for source in self.sources:
            yield f"--map {SOURCE}{source}: the blueprint has no source {source}"


def _numbered(text: str, numbers: Mapping[str, int]) -> str:
    """Return an address with the number of the store that it names first. The longest name counts."""
    for name in sorted(numbers, key=len, reverse=True):
        if text == name or text.startswith(f"{name}."):
            return f"{numbers[name]}{text.removeprefix(name)}"
    return text


def _placed(source: str, side: Side) -> str:
    """Return the id of a source in the offset log, which a job gives by the name of its input."""
    return list(side.offsets.by_source)[side.inputs.index(source)] if source in side.inputs else source


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


@dataclass(frozen=True, kw_only=True)
class Match:
    """What the changed query takes over.

    operators  all operators of the blueprint
    dropped    the old operators that nothing takes
    refusals   why the match is not certain, or loses state
    notes      what a person should know
    """

    operators: tuple[Matched, ...]
    dropped: tuple[OperatorFacts, ...]
    sources: SourceMap
    refusals: tuple[str, ...]
    notes: tuple[str, ...]


def match(facts: MigrationFacts, goal: Migrate) -> Match:
    """Match operators, columns and sources; nothing if one of both checkpoints has none, which the plan refuses."""
    old, new = facts.old, facts.blueprint
    origins = {one.facts.stopped.origin for one in (old, new)}
    if len(origins) > 1 or any(one.facts.stopped.batch is None or not one.facts.offsets for one in (old, new)):
        return Match(operators=(), dropped=(), sources=SourceMap(sources={}), refusals=(), notes=())
    given, notes = Given.of(goal, old, new), list[str]()
    refusals = given.problems
    unreadable = [*_unreadable(old, "the old checkpoint"), *_unreadable(new, "the blueprint")]
    if unreadable:
        return Match(operators=(), dropped=(), sources=SourceMap(sources={}), refusals=tuple(unreadable), notes=())
    pairs = _pairs(old, new, given, refusals)
    refusals += _of_times(old, new, pairs, given)
    operators = [_matched(facts, goal, given, two, refusals, notes) for two in pairs]
    taken = {two[1].operator for two in pairs if two[1] is not None}
    # The index of a store's times is dropped with the times, which the plan names.
    dropped = tuple(one for one in old.facts.operators if one.operator not in taken | old.indexes)
    sources = _sources(old, new, given, refusals)
    notes += _of_jobs(old, new)
    notes += _of_clocks(old, new, pairs, sources)
    notes += _of_other_inputs(sources, old.offsets.by_source, new.offsets.by_source)
    refusals += _of_folders(facts, sources)
    if not goal.drops:
        refusals += [
            f"operator {one.operator} ({one.name or 'unnamed'}) of the old checkpoint is not in the blueprint, and its "
            f"state would be lost: {_DROPS}{_renamed(old, one)}"
            for one in dropped
        ]
    refusals += given.unused
    return Match(
        operators=tuple(operators), dropped=dropped, sources=sources, refusals=tuple(refusals), notes=tuple(notes)
    )


def _of_jobs(old: Side, new: Side) -> Iterator[str]:
    """Yield what the new root of a job has from the old one, and not from the blueprint."""
    if old.binding is None or new.binding is None:
        return
    if old.binding.key_groups != new.binding.key_groups:
        yield f"the new root has the {old.binding.key_groups} key groups of the old one: each key contains its key group"
    if new.binding.initial:
        yield "the initial rows of the changed job are not read: the state is that of the old root"
    if TIMERS in new.numbers.keys() - old.numbers.keys():
        yield "the present keys have no timer until the job sets one, with their next row"


def _of_clocks(old: Side, new: Side, pairs: Sequence[_Pair], sources: SourceMap) -> Iterator[str]:
    """Yield what the times of the old query mean in the changed one. A root does not show its clocks, so they cannot be
    compared. An added source may have rows that are late from the start."""
    watermark = old.watermark_ms
    at = f"{utc(watermark / 1000)} ({watermark:,} ms)"
    if new.binding is not None:
        timed = [new.named(one.operator) for one, before in pairs if before is not None and new.has_times(one.operator)]
        if timed:
            yield (
                f"the rows of {', '.join(timed)} keep their times, which are not converted: keep the clock of the timers "
                "and of the TTL (event time or processing time). The roots do not show it, so the plan does not compare it"
            )
        if watermark > 0:
            yield (
                f"the watermark stays at {at}: keep the column of the event time and late_by, which the roots do not show"
            )
    added = [source for source, before in sources.sources.items() if before is None]
    named = dict(zip(new.offsets.by_source, new.inputs, strict=False))
    if watermark > 0:
        yield from (
            f"source {source} is new, and the watermark is at {at}: rows of it with an event time up to then are late, and "
            "are dropped wherever the query drops late rows"
            for source in added
            if named.get(source) != TICK or new.binding is None or not new.binding.ticks
        )


def _renamed(old: Side, dropped: OperatorFacts) -> str:
    return "" if old.binding is None else f", or name the store that takes it with --map NEW={dropped.name}"


def _unreadable(side: Side, where: str) -> Iterator[str]:
    for operator in side.facts.operators:
        for store in operator.stores:
            layout = operator.layouts.get(store)
            if not isinstance(layout, Layout):
                reason = "its schema is unknown" if layout is None else _in_words(layout)
                yield f"{where}: operator {operator.operator} ({operator.name or 'unnamed'}), store {store}: {reason}"


def _in_words(error: StatekeeperError) -> str:
    return f"{error.what}: {error.hint}" if error.hint else error.what


def families_of(operator: OperatorFacts) -> dict[tuple[str, str | None], Family]:
    """The layouts of an operator by store and family."""
    found = {}
    for store, layout in operator.layouts.items():
        if isinstance(layout, Layout):
            found.update({(store, family): one for family, one in layout.families.items()})
    return found


# -- operators ---------------------------------------------------------------------------------------------------------

_Pair = tuple[OperatorFacts, OperatorFacts | None]


def _pairs(old: Side, new: Side, given: Given, refusals: list[str]) -> list[_Pair]:
    """Match each operator of the blueprint, and explain what is not certain."""
    found: dict[int, OperatorFacts | None] = {}
    is_job = new.binding is not None
    for number in [one.operator for one in new.facts.operators if one.operator in given.operators]:
        wanted = given.operators.pop(number)
        chosen = None if wanted is None else old.operator(wanted)
        found[number] = chosen
        operator = new.operator(number)
        assert operator is not None
        if wanted is not None and chosen is None:
            refusals.append(f"--map {number}={wanted}: the old checkpoint has no stateful operator {wanted}")
        elif number in new.indexes or wanted in old.indexes:
            refusals.append(f"--map {number}={wanted}: an index of times goes with its store: name the store only")
        elif chosen is not None and (reason := _unlike(operator, chosen, is_renamed=is_job)) is not None:
            refusals.append(f"--map {number}={wanted}: {reason}")
    for number, times in Counter(one.operator for one in found.values() if one is not None).items():
        if times > 1:
            refusals.append(f"--map gives the state of operator {number} to {times} operators: only one can take it")
    free = [one for one in old.facts.operators if one not in found.values() and one.operator not in old.indexes]
    asked = [one for one in new.facts.operators if one.operator not in found and one.operator not in new.indexes]
    possible = {one.operator: [other for other in free if _unlike(one, other) is None] for one in asked}
    for one in asked:
        candidates = possible[one.operator]
        rivals = [other for other in asked if any(candidate in candidates for candidate in possible[other.operator])]
        if len(candidates) == 1 and len(rivals) == 1:
            found[one.operator] = candidates[0]
        elif candidates:
            numbers = ", ".join(str(candidate.operator) for candidate in candidates)
            refusals.append(
                f"operator {one.operator} ({one.name or 'unnamed'}) of the blueprint can take the state of more than one "
                f"operator, or its state has more than one taker. The old operators are: {numbers}. Choose with "
                f"--map {one.operator}=N, or --map {one.operator}={NONE} if it starts empty"
            )
            found[one.operator] = None
        else:
            found[one.operator] = None
    for one in asked:
        unlike = [other for other in free if other not in found.values() and other.name and other.name == one.name]
        if not possible[one.operator] and unlike:
            refusals.append(
                f"operator {one.operator} ({one.name}) of the blueprint: {_unlike(one, unlike[0])}. Rows cannot be moved "
                f"to another key. {_OTHER_KEY_OF_JOB if is_job else _OTHER_KEY}. To start this operator empty, add "
                f"--map {new.named(one.operator)}={NONE} --allow-dropped-state"
            )
    for operator in new.facts.operators:
        if (index := new.index_of(operator.operator)) is not None:
            store = found[operator.operator]
            before = None if store is None else old.index_of(store.operator)
            found[index] = None if before is None else old.operator(before)
    return [(one, found[one.operator]) for one in new.facts.operators]


_OTHER_KEY = (
    "To keep the state, make a savepoint with rows (statekeeper savepoint --rows), change its tables with SQL, and load "
    "them (statekeeper load)"
)
_OTHER_KEY_OF_JOB = (
    "To keep the state, start the changed job with a new root and a new checkpoint, and pass the rows of the old state to "
    "it as `initial`"
)


def _unlike(new: OperatorFacts, old: OperatorFacts, *, is_renamed: bool = False) -> str | None:
    """Return why an operator cannot take the state of an old one; None if it can. `is_renamed`: the names can differ."""
    if new.name and old.name and new.name != old.name and not is_renamed:
        return f"the old operator {old.operator} is {old.name}, not {new.name}"
    if not (new.name and old.name) and _shape(new) != _shape(old):
        return f"the rows of the old operator {old.operator} are those of another operator"
    if set(new.stores) != set(old.stores):
        return (
            f"the stores of the old operator {old.operator} are {', '.join(sorted(old.stores))}, and those of the "
            f"blueprint are {', '.join(sorted(new.stores))}: the state formats differ"
        )
    ours, theirs = families_of(new), families_of(old)
    if {place for place in ours if place[1] is None} != {place for place in theirs if place[1] is None}:
        return f"only one of both queries keeps the state of operator {old.operator} in column families: the formats differ"
    both = [place for place in ours if place in theirs]
    if not both:
        return f"it has no state variable of the old operator {old.operator}"
    for place in both:
        mine, before = ours[place], theirs[place]
        if _typed(mine.key) != _typed(before.key):
            return (
                f"the key of the old operator {old.operator} is ({_columns(before.key)}), and that of the blueprint is "
                f"({_columns(mine.key)})"
            )
        if place[1] is not None and (mine.encoder, mine.front) != (before.encoder, before.front):
            return f"the keys of {place[1]} have another encoder in the old operator {old.operator}"
    return None


def _is_aggregation(new: OperatorFacts, old: OperatorFacts) -> bool:
    """Return whether the values are buffers of aggregates. An operator without metadata (Spark 3.5) that may be one counts
    as one: then the plan asks for what it does not know."""
    name = new.name or old.name
    if name:
        return name in (AGGREGATION, SESSIONS)
    stores, fields, keys = _shape(new)
    return stores == (names.DEFAULT_STORE,) and not keys and not set(fields) - {"session_window"}


def _shape(operator: OperatorFacts) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """What tells operators apart that have no metadata, as Spark 3.5 leaves them."""
    values = [one.value for one in families_of(operator).values()]
    names_of = [field.name for value in values for field in value]
    fields = [field for field in ("expiresAtMicros", "groupState", "session_window", "__dummy__") if field in names_of]
    keys = [
        str(field.type) for one in families_of(operator).values() for field in one.key if pa.types.is_null(field.type)
    ]
    return tuple(sorted(operator.stores)), tuple(fields), tuple(keys)


def _typed(columns: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(one.name, one.type) for one in columns]


def _columns(columns: pa.Schema) -> str:
    return ", ".join(f"{one.name} {one.type}" for one in columns) or "no columns"


def _of_times(old: Side, new: Side, pairs: Sequence[_Pair], given: Given) -> Iterator[str]:
    """Yield the times that another clock would read, and the stores of a job whose times would lack their index: a timer
    without an entry there never fires."""
    for one, before in pairs:
        modes = new.time_modes.get(one.operator), None if before is None else old.time_modes.get(before.operator)
        if set(modes) == _CLOCKS:
            yield (
                f"operator {one.operator} ({one.name}) has the time mode {modes[0]} in the blueprint and {modes[1]} in the "
                "old query, and its timers and times to live are not converted: keep the time mode, or start the operator "
                f"empty with --map {one.operator}={NONE} {_DROPS.removeprefix('add ')}"
            )
    if old.binding is None or new.binding is None:
        return
    for options in (given.columns, given.defaults):
        for number, column in [*options]:
            if new.is_timers(number) and column.rpartition(".")[2] == FIRES_AT:
                del options[number, column]
                yield (
                    f"--map or --default names {TIMERS}.{FIRES_AT}, the times of the timers, which need entries in an "
                    "index: leave it out. Only the job sets timers"
                )
    for one, before in pairs:
        if before is None:
            continue
        mine, theirs = new.named(one.operator), old.named(before.operator)
        way_out = (
            f"start {mine} empty with --map {mine}={NONE}, and {_DROPS}, or name another store that takes the old rows "
            f"with --map NEW={theirs}"
        )
        if new.is_timers(one.operator) and not old.is_timers(before.operator):
            yield (
                f"the store {mine} has the timers of the changed job, and {theirs} of the old job has no timers. Its rows "
                f"have no entries in the index of the timers, so they would never fire: {way_out}"
            )
        elif old.is_timers(before.operator) and new.index_of(one.operator) not in (None, new.numbers.get(TIMERS_DUE)):
            yield f"the index of the timers of the old job is no index for the times of {mine}: {way_out}"
        elif old.prefix_of(before.operator) != new.prefix_of(one.operator):
            yield f"only one of {mine} and the old store {theirs} has keys that are ordered by time: {way_out}"
        elif new.index_of(one.operator) is not None and old.index_of(before.operator) is None and not _is_ttl(one):
            yield f"the store {mine} has an index of times, and the old store {theirs} has none: {way_out}"


def _is_ttl(store: OperatorFacts) -> bool:
    """Whether the rows have the expiry of a TTL, which an added TTL sets to null."""
    return any(EXPIRES_AT in layout.value.names for layout in families_of(store).values())


# -- columns -----------------------------------------------------------------------------------------------------------


def _matched(
    facts: MigrationFacts, goal: Migrate, given: Given, two: _Pair, refusals: list[str], notes: list[str]
) -> Matched:
    new, old = two
    ours, theirs = families_of(new), {} if old is None else families_of(old)
    stores = []
    for (store, family), after in ours.items():
        before = theirs.get((store, family))
        bare = Taken(store=store, family=family, before=before, after=after)
        if before is None or old is None:
            stores.append(bare)
            continue
        where = f"operator {new.operator} ({new.name or 'unnamed'})" + ("" if len(ours) == 1 else f", {bare.place}")
        is_job = facts.blueprint.binding is not None
        is_aggregate = not is_job and _is_aggregation(new, old)
        columns = _Columns(
            given=given,
            operator=new.operator,
            name=facts.blueprint.named(new.operator),
            is_job=is_job,
            has_times=tuple(
                side.index_of(one.operator) is not None for side, one in ((facts.old, old), (facts.blueprint, new))
            ),
            pair=bare,
            is_only=len(ours) == 1,
            is_aggregate=is_aggregate,
            where=where,
            refusals=refusals,
        )
        taken = columns.taken()
        if taken.dropped and not goal.drops:
            refusals.append(
                f"{where}: the value columns {', '.join(taken.dropped)} of the old state are not in the blueprint, and "
                f"their values would be lost: {_DROPS}, or name their new columns with --map {columns.name}.NEW=OLD"
            )
        _compare_watermarks(facts, new, old, bare, where, refusals, notes)
        kinds = [
            side.variables.get((one.operator, family or "")) for side, one in ((facts.old, old), (facts.blueprint, new))
        ]
        if kinds[0] != kinds[1]:
            refusals.append(
                f"{where}: the state variable {family} is {kinds[0] or 'of an unknown kind'} in the old query and "
                f"{kinds[1] or 'of an unknown kind'} in the changed one. Their rows differ: give it another name, "
                f"so that it starts empty, and {_DROPS}"
            )
        stores.append(taken)
    lost = [store if family is None else family for store, family in theirs if (store, family) not in ours]
    kept = {taken.place for taken in stores if taken.before is not None}
    # The index of times to live goes with the times: their column is among the dropped value columns of the variable.
    dropped = tuple(name for name in lost if name.removeprefix(_TTL_INDEX) not in kept)
    for name in (taken.place for taken in stores if taken.before is None and old is not None):
        variable = next((name.removeprefix(start) for start in _OF_TIMED_LISTS if name.startswith(start)), None)
        if variable in kept:
            refusals.append(
                f"operator {new.operator} ({new.name}): the list {variable} gets a time to live, which needs indexes that "
                f"migrate does not make: give the list another name, so that it starts empty, and {_DROPS}"
            )
    if dropped and not goal.drops:
        refusals.append(
            f"operator {new.operator} ({new.name}) has no state for {', '.join(dropped)} of the old operator, and its rows "
            f"would be lost: {_DROPS}"
        )
    return Matched(new=new, old=old, stores=tuple(stores), dropped=dropped)


def _compare_watermarks(
    facts: MigrationFacts,
    new: OperatorFacts,
    old: OperatorFacts,
    taken: Taken,
    where: str,
    refusals: list[str],
    notes: list[str],
) -> None:
    """Refuse another column with a watermark: Spark would evict other rows."""
    before = facts.old.watermarks.get((old.operator, taken.store, taken.family), {})
    after = facts.blueprint.watermarks.get((new.operator, taken.store, taken.family), {})
    if before.keys() != after.keys():
        refusals.append(
            f"{where}: the column with the watermark is {', '.join(before) or 'none'} in the old query and "
            f"{', '.join(after) or 'none'} in the changed one, so Spark would evict other rows: keep the watermark, or "
            f"start the operator empty with --map {new.operator}={NONE} --allow-dropped-state"
        )
    notes += [
        f"{where}: the delay of the watermark of {name} changes from {before[name]:,} ms to {after[name]:,} ms. The query "
        "continues with the watermark of the old one, which never falls"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The value columns of one store or family.

    name       the operator as options name it
    has_times  of a job root: whether the old and the new store have the times of a TTL or of timers, with an index
    """

    given: Given
    operator: int
    name: str
    is_job: bool
    has_times: tuple[bool, ...]
    pair: Taken
    is_only: bool
    is_aggregate: bool
    where: str
    refusals: list[str]

    def taken(self) -> Taken:
        """Match the columns."""
        pair = self.pair
        assert pair.before is not None
        before, after = value_columns(pair.before), value_columns(pair.after)
        maps = self._maps(before, after)
        sources = self._sources(before, after, maps)
        if _typed(before) == _typed(after) and sources == list(range(len(before))):
            return pair
        added = {place for place, source in enumerate(sources) if source is None}
        columns = tuple(
            MappedColumn(one, source, None if source is not None else self._default(after, place, added))
            for place, (one, source) in enumerate(zip(after, sources, strict=True))
        )
        kept = {source for source in sources if source is not None}
        dropped = [_name_of(before, place) for place in range(len(before)) if place not in kept]
        for column in columns:
            if column.source is not None:
                one = before.field(column.source)
                dropped += [f"{one.name}.{name}" for name in lost_fields(one.type, column.field.type)]
        return Taken(
            store=pair.store,
            family=pair.family,
            before=pair.before,
            after=pair.after,
            columns=columns,
            added=tuple(columns[place] for place in sorted(added)),
            dropped=tuple(dropped),
        )

    def _maps(self, before: pa.Schema, after: pa.Schema) -> dict[int, int | None]:
        """The places that --map names: new -> old."""
        found: dict[int, int | None] = {}
        for place in range(len(after)):
            text = self._taken_of(self.given.columns, after, place)
            if text is None:
                continue
            if self._is_expiry(after, place):
                self.refusals.append(
                    f"{self.where}: --map names {EXPIRES_AT}, whose times belong to the TTL and its index: leave it out"
                )
                continue
            if text == NONE:
                found[place] = None
                continue
            places = [old for old in range(len(before)) if text == _name_of(before, old)]
            if len(places) != 1:
                known = ", ".join(_name_of(before, old) for old in range(len(before)))
                self.refusals.append(
                    f"{self.where}: --map names the old value column {text}; the old columns are: {known or 'none'}"
                )
                continue
            found[place] = places[0]
        taken = [old for old in found.values() if old is not None]
        if len(set(taken)) < len(taken):
            self.refusals.append(f"{self.where}: --map gives one old value column to several new ones")
        return found

    def _sources(self, before: pa.Schema, after: pa.Schema, maps: Mapping[int, int | None]) -> list[int | None]:
        """The old place of each new column; None for an added one."""
        found = dict(maps)
        for place, old in maps.items():
            if old is not None and not self._takes(before.field(old), after.field(place)):
                self.refusals.append(self._narrower(before, old, after, place))
        is_other = self.has_times[0] != self.has_times[1]
        # Only one of both columns of this name, if there are two, has the times of a TTL.
        free = [
            old
            for old in range(len(before))
            if old not in found.values() and not (is_other and before.field(old).name == EXPIRES_AT)
        ]
        asked = [place for place in range(len(after)) if place not in found]
        for is_exact in (True, False):
            for place in asked:
                if place in found:
                    continue
                field_ = after.field(place)
                same = [
                    old
                    for old in free
                    if before.field(old).name == field_.name
                    and self._takes(before.field(old), field_, is_exact=is_exact)
                ]
                rivals = [
                    other
                    for other in asked
                    if other not in found
                    and after.field(other).name == field_.name
                    and (not is_exact or after.field(other).type == field_.type)
                ]
                if not same:
                    continue
                if len(same) == 1 and len(rivals) == 1:
                    found[place] = same[0]
                    free.remove(same[0])
                else:
                    self._ambiguous(before, same, after, rivals)
                    for rival in rivals:
                        found[rival] = same[0]  # the plan is refused
        for place in asked:
            if place not in found:
                same = [old for old in free if before.field(old).name == after.field(place).name]
                if same:
                    self.refusals.append(self._narrower(before, same[0], after, place))
        chosen = [found.get(place) for place in range(len(after))]
        self.refusals.extend(self._of_nulls(before, after, chosen))
        return chosen

    def _of_nulls(self, before: pa.Schema, after: pa.Schema, chosen: Sequence[int | None]) -> Iterator[str]:
        """Yield the columns that may contain nulls, and no longer can. Spark's own rows may have nulls in any column."""
        for place, old in enumerate(chosen):
            if self.is_job and old is not None and before.field(old).nullable and not after.field(place).nullable:
                name = _name_of(after, place)
                yield (
                    f"{self.where}: the value column {name} may contain nulls, and the changed job declares it without "
                    f"nulls: declare it as nullable, or start it new with --map {self._address(name)}={NONE} --default "
                    f"{self._address(name)}=VALUE"
                )

    def _is_expiry(self, columns: pa.Schema, place: int) -> bool:
        """Whether a new column has the times of a TTL of a job."""
        return self.has_times[1] and columns.field(place).name == EXPIRES_AT

    def _ambiguous(self, before: pa.Schema, same: Sequence[int], after: pa.Schema, rivals: Sequence[int]) -> None:
        olds = ", ".join(_name_of(before, old) for old in same)
        news = ", ".join(_name_of(after, place) for place in rivals)
        first = self._address(_name_of(after, rivals[0]))
        two = zip(rivals, same, strict=False)
        in_order = " ".join(
            f"--map {self._address(_name_of(after, place))}={_name_of(before, old)}" for place, old in two
        )
        text = (
            f"{self.where}: the old value columns {olds} and the new ones {news} have one name, so the schemas do not "
            f"show which is which. Name the old column of each, for example in their order: {in_order}. For a new one, "
            f"write --map {first}={NONE}"
        )
        if text not in self.refusals:
            self.refusals.append(text)

    def _narrower(self, before: pa.Schema, old: int, after: pa.Schema, place: int) -> str:
        if is_wider(before.field(old).type, after.field(place).type):
            return (
                f"{self.where}: the value column {_name_of(after, place)} has the type {after.field(place).type} in the "
                f"blueprint and {before.field(old).type} in the old state. A sum of this type may be a sum of decimals "
                "without their point, which the schema does not show: cast the column in the changed query so that its "
                f"type stays, or start it new with --map {self._address(_name_of(after, place))}={NONE}"
            )
        return (
            f"{self.where}: the value column {_name_of(after, place)} has the type {after.field(place).type} in the "
            f"blueprint, which does not hold every value of {before.field(old).type} in the old state: keep the type, or "
            f"start the column new with --map {self._address(_name_of(after, place))}={NONE}"
        )

    def _takes(self, old: pa.Field, new: pa.Field, *, is_exact: bool = False) -> bool:
        """Return whether a new column holds every value of an old one. `is_exact`: only with the same type.

        Spark sums decimals of up to eight digits as longs, without their point, and averages them as doubles: such a sum is
        no number of a wider type.
        """
        if old.type == new.type:
            return True
        is_sum = self.is_aggregate and _SUM in (old.name, new.name)
        if is_exact or (is_sum and not pa.types.is_decimal(old.type)):
            return False
        return is_wider(old.type, new.type) or fits(old.type, new.type)

    def _default(self, after: pa.Schema, place: int, added: set[int]) -> pa.Scalar | None:
        """The value of an added column in all present rows."""
        one, address = after.field(place), self._address(_name_of(after, place))
        text = self._taken_of(self.given.defaults, after, place)
        if self._is_expiry(after, place) and text != _NULL:
            self.refusals.append(
                f"{self.where}: the rows get a TTL, and the present rows have no time at which they expire: add --default "
                f"{address}={_NULL}. Then a present row expires only after its next update. Another time is not supported, "
                "because it also needs the index of these times"
            )
            return None
        if one.name == EXPIRY and self.pair.family is not None and text != _NEVER:
            self.refusals.append(
                f"{self.where}: the rows of {self.pair.family} get a time to live, and the present rows have no time at "
                f"which they expire: add --default {address}={_NEVER}. Then a present row expires only after its next "
                "update. Another time is not supported, because it also needs the index of these times"
            )
            return None
        if text is not None:
            return self._parsed(one, text)
        if not self.is_aggregate:
            if not one.nullable:
                self.refusals.append(
                    f"{self.where}: the added value column {one.name} cannot be null: add --default {address}=VALUE"
                )
            return None
        found = initial(after, place, added)
        if isinstance(found, Undecided):
            proposals = "; ".join(f"for {name}: --default {address}={value}" for name, value in found.proposals)
            self.refusals.append(
                f"{self.where}: {found.reason}, so the plan needs what {one.name} holds before the first row. "
                f"{proposals[:1].upper()}{proposals[1:] or f'Add --default {address}=VALUE'}"
            )
            return None
        return found

    def _parsed(self, one: pa.Field, text: str) -> pa.Scalar | None:
        if text == _NULL and self.is_job and not one.nullable:
            self.refusals.append(
                f"{self.where}: the added value column {one.name} cannot be null: give another --default"
            )
        if text == _NULL:
            return pa.scalar(None, one.type)
        try:
            return typed_texts({one.name: text}, pa.schema([one]), self.where).column(0)[0]
        except StatekeeperError as error:
            self.refusals.append(_in_words(error))
            return None

    def _taken_of(self, of: dict[tuple[int, str], str], columns: pa.Schema, place: int) -> str | None:
        name = _name_of(columns, place)
        return self.given.take(of, self.operator, self.pair, name, is_only=self.is_only)

    def _address(self, column: str) -> str:
        return f"{self.name}.{column}" if self.is_only else f"{self.name}.{self.pair.place}.{column}"


def _name_of(columns: pa.Schema, place: int) -> str:
    """The name by which --map and --default call a column, as `statekeeper dump` shows it: `sum_2` for the second `sum`."""
    return unique_names(columns.names)[place]


# -- sources -----------------------------------------------------------------------------------------------------------


def _sources(old: Side, new: Side, given: Given, refusals: list[str]) -> SourceMap:
    """Match the sources: by `--map`, by the names in the query, or by their order."""
    before, after = old.offsets, new.offsets
    theirs, ours = before.by_source, after.by_source
    # A source has a folder of its name.
    refusals += [
        f"the blueprint has the impossible source {source[:80]!r}: make the blueprint again"
        for source in ours
        if not names.is_source_name(source)
    ]
    found: dict[str, str | None] = {}
    for source in [source for source in ours if source in given.sources]:
        wanted = given.sources.pop(source)
        if wanted is not None and wanted not in theirs:
            refusals.append(
                f"--map {SOURCE}{source}={wanted}: the old checkpoint has no source {wanted}; its sources are: "
                f"{', '.join(theirs) or 'none'}"
            )
        found[source] = wanted
    asked = [source for source in ours if source not in found]
    free = [source for source in theirs if source not in found.values()]
    have_ids = [one.source_metadata is not None for one in (before, after)]
    by_name = _by_name(old, new) if old.binding is not None else (list(theirs), list(ours)) if all(have_ids) else None
    if by_name is not None:
        old_names, new_names = dict(zip(theirs, by_name[0], strict=True)), dict(zip(ours, by_name[1], strict=True))
        known = {old_names[source]: source for source in free}
        found |= {source: known.get(new_names[source]) for source in asked}
        unknown = [new_names[one] for one in asked if found[one] is None]
        gone = [old_names[one] for one in free if one not in found.values()]
        if unknown and gone:
            refusals.append(
                f"the blueprint has the sources {', '.join(unknown)}, which the old query does not have, and the old query "
                f"has {', '.join(gone)}, which the blueprint does not have. A source with another name would read "
                f"its input again. Name the old source of each with --map {SOURCE}{unknown[0]}=OLD, or {NONE} if it is new"
            )
    elif asked and (old.binding, new.binding) != (None, None) and _inputs(old) != _inputs(new):
        refusals.append(
            f"the inputs of both jobs differ, and their names do not show which source is which: name the old source of "
            f"each new one with --map {SOURCE}NEW=OLD, and with --map {SOURCE}NEW={NONE} one that is new. The new sources "
            f"are: {', '.join(ours)}; the old ones are: {', '.join(theirs)}"
        )
        found |= dict.fromkeys(asked)
    elif any(have_ids) and asked:
        refusals.append(
            "only one of both queries has an offset log of v2, which names the sources: name the old source of each new "
            f"one with --map {SOURCE}NEW=OLD. The new sources are: {', '.join(ours)}; the old ones are: {', '.join(theirs)}"
        )
        found |= dict.fromkeys(asked)
    elif len(asked) == len(free):
        found |= dict(zip(asked, free, strict=True))
    elif asked:
        refusals.append(
            f"the old query has {len(theirs)} sources without names, and the changed query has {len(ours)}: name the old "
            f"one of each with --map {SOURCE}NEW=OLD, and with --map {SOURCE}NEW={NONE} one that is new. Sources are "
            "counted from 0 in the order of the query"
        )
        found |= dict.fromkeys(asked)
    for source, wanted in found.items():
        if wanted in theirs and not _is_alike(theirs[wanted], ours[source]):
            refusals.append(
                f"source {source} of the blueprint has the position {ours[source][:80]}, and source {wanted} of the old "
                f"query has {theirs[wanted][:80]}: they are not one source. Name the right one with --map "
                f"{SOURCE}{source}=OLD, or {NONE}"
            )
    refusals += _of_inputs(found, theirs, ours, asked)
    for source, times in Counter(source for source in found.values() if source is not None).items():
        if times > 1:
            refusals.append(f"--map gives the position of source {source} to {times} sources: only one can take it")
    taken = {source for source in found.values() if source is not None}
    return SourceMap(
        sources={source: found[source] for source in ours},
        dropped=tuple(source for source in theirs if source not in taken),
    )


def _by_name(old: Side, new: Side) -> tuple[Sequence[str], Sequence[str]] | None:
    """The names of the sources of two jobs, in their order; None if one of both roots does not show them."""
    return (old.inputs, new.inputs) if old.inputs and new.inputs else None


def _inputs(side: Side) -> tuple[tuple[str, ...], bool]:
    assert side.binding is not None
    return side.binding.inputs, side.binding.ticks


def _of_folders(facts: MigrationFacts, sources: SourceMap) -> Iterator[str]:
    """Yield why the logs of the sources cannot be told apart: sources with names, in offset logs that lack the names."""
    old, new = (side.offsets.source_metadata is None for side in (facts.old, facts.blueprint))
    folders = [{folder for folder in of if not folder.isdecimal()} for of in (facts.folders, facts.new_folders)]
    is_named = (old and bool(folders[0])) or (new and bool(folders[1]))
    if is_named and not (sources.is_same and old and new and folders[0] == folders[1]):
        yield (
            "the sources of both queries have names that their offset logs do not contain, so their positions cannot be "
            "told apart after a change of the sources: keep the sources with their names and their order, or use "
            "spark.sql.streaming.offsetLog.formatVersion=2 in a new query"
        )


_NO_POSITION = "-"
"""What Spark writes for a source without a position."""
_OF_DELTA = ("reservoirId", "logOffset", "sourceVersion")
_TABLE = "reservoirId"


def _is_alike(old: str, new: str) -> bool:
    """Return whether two positions can be of one kind of source, by their JSON. Topics and shards are names, too, but the
    user's own."""
    if _NO_POSITION in (old, new):
        return True
    before, after = _json_of(old), _json_of(new)
    if before is None or after is None:
        return True
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return type(before) is type(after)
    if any(name in side for side in (before, after) for name in _OF_DELTA):
        return before.keys() == after.keys()
    return True


def _json_of(position: str) -> object:
    """The JSON of a position; None for another text."""
    try:
        return parsed_json(position)
    except BAD_VALUES:
        return None


def _inputs_of(position: str) -> frozenset[str]:
    """What a position shows of its input: the id of a Delta table, or the topics of Kafka. Empty for other sources."""
    body = _json_of(position)
    if not isinstance(body, dict):
        return frozenset()
    if isinstance(body.get(_TABLE), str):
        return frozenset({body[_TABLE]})
    if body and all(isinstance(partitions, dict) for partitions in body.values()):
        return frozenset(body)
    return frozenset()


def _of_inputs(
    found: Mapping[str, str | None], theirs: Mapping[str, str], ours: Mapping[str, str], asked: Collection[str]
) -> Iterator[str]:
    """Yield why sources that were matched by their order read other inputs than the old ones: their positions show it.

    The blueprint may have read other tables and topics, such as those of a test. So an input that the old query does not
    have at all is no contradiction, but one of another source is. Sources that --map names are not compared.
    """
    inputs = {source: _inputs_of(position) for source, position in theirs.items()}
    for source in asked:
        old, mine = found.get(source), _inputs_of(ours[source])
        before = inputs.get(old or "", frozenset())
        if old not in theirs or mine == before:
            continue
        rivals = [other for other in theirs if mine and mine == inputs[other]]
        if not rivals and not mine & before:
            rivals = [other for other in theirs if mine & inputs[other]]
        if rivals:
            yield (
                f"source {source} of the blueprint reads {', '.join(sorted(mine))}, as source {rivals[0]} of the old query "
                f"does, and not {', '.join(sorted(before)) or 'the input'} of source {old}: the sources have another "
                f"order. Name the old source of each, such as --map {SOURCE}{source}={rivals[0]}, or {NONE} for a new one"
            )


def _of_other_inputs(sources: SourceMap, theirs: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[str]:
    """Yield the sources whose blueprint read other inputs: the positions are those of the old inputs."""
    for source, old in sources.sources.items():
        if old is None or old not in theirs:
            continue
        before, after = _inputs_of(theirs[old]), _inputs_of(ours[source])
        if before and after and not before & after:
            yield (
                f"source {source} of the blueprint read {', '.join(sorted(after))}, and the new checkpoint has the "
                f"position of source {old} in {', '.join(sorted(before))}: start the changed query with that input"
            )
        elif before and (added := after - before):
            yield (
                f"source {source} of the blueprint also read {', '.join(sorted(added))}, which has no position in the old "
                f"query: source {old} had only {', '.join(sorted(before))}. The changed query reads it from its start"
            )
