"""The columns of a table of state, and its rows: typed, renamed and filtered, each with the identity of its key.

    <columns of the key> <columns of the value> [element] [expires_at] batch committed_at

`element`: the place in a list of transformWithState; `expires_at`: the end of the time to live. The data files have two
more columns, which are not in the schema of the table, so that readers do not see them:

    _statekeeper_key     128-bit hash of the columns of the key; it finds the row of a key without an index
    _statekeeper_value   64-bit hash of the published columns, or of all elements of a list; it tells whether they changed

Both depend only on values: not on the encoding of the state, nor on its number of partitions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format.family_rows import DecodedRows
from statekeeper.statestore.format.ragged import Ragged
from statekeeper.statestore.format.state_rows import KEY_GROUP
from statekeeper.statestore.format.unsafe_row import encode_rows
from statekeeper.statestore.maintenance.copies.savepoints.write import Table, clean_names, typed_keys, typed_rows
from statekeeper.statestore.maintenance.copies.state_tables.model import Chosen, Request

KEY, VALUE = "_statekeeper_key", "_statekeeper_value"
BATCH, COMMITTED_AT = "batch", "committed_at"
_ELEMENT, _EXPIRES_AT = "element", "expires_at"
_OWN_KEY_GROUP = f"key.{KEY_GROUP.name}"
_KEY_BYTES = 16
_PARTITION_TYPES = (pa.types.is_string, pa.types.is_integer, pa.types.is_date, pa.types.is_boolean)

Hashes = npt.NDArray[np.uint64]
"""Hashes of keys, of shape (rows, 2), or of values, of shape (rows,)."""


@dataclass(frozen=True)
class Unusable:
    """A wrong choice of columns: the problem and the way out."""

    problem: str
    hint: str


def chosen_columns(table: Table, request: Request, *, is_own: bool, with_elements: bool) -> dict[str, str] | Unusable:
    """Choose the columns of a table and their names, by their names in the state.

    `is_own`: of a job root, whose key has a column that only places it; `with_elements`: the state has lists.
    """
    of_state = [name for name in table.columns.values() if not (is_own and name == _OWN_KEY_GROUP)]
    by_name: dict[str, list[str]] = {}
    for name in of_state:
        by_name.setdefault(name, []).append(name)
        by_name.setdefault(name.partition(".")[2], []).append(name)
    wanted = {*request.columns, *(name for name, _ in request.renamed)}
    for name in sorted(wanted):
        if len(by_name.get(name, ())) != 1:
            known = ", ".join(of_state)
            problem = "is in the key and in the value" if name in by_name else "does not exist"
            return Unusable(f"the column {name} {problem}", f"choose one of these columns: {known}")
    taken = {by_name[name][0] for name in request.columns} or set(of_state)
    renamed = {by_name[old][0]: new for old, new in request.renamed}
    given = {name: renamed.get(name, name.partition(".")[2]) for name in of_state if name in taken}
    technical = [
        *([_ELEMENT] if with_elements else []),
        *([_EXPIRES_AT] if table.has_expiry else []),
        BATCH,
        COMMITTED_AT,
    ]
    # A name that the key and the value share is that of the key; that of the value gets its prefix.
    shown: list[str] = []
    for name, one in given.items():
        is_taken = one.lower() in {other.lower() for other in shown}
        shown.append(f"value_{one}" if is_taken and name.startswith("value.") else one)
    cleaned = clean_names([*shown, *technical])
    return dict(zip([*given, *technical], cleaned, strict=True))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of one table of state, and the conversion of the rows of its stores.

    table    the typed rows of the state
    chosen   names, partition columns and conditions
    """

    table: Table
    chosen: Chosen

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the table. Every column may be null: a deletion in the feed has no values."""
        by_state = {name: self.table.schema.field(typed) for typed, name in self.table.columns.items()}
        by_state |= {name: self.table.schema.field(name) for name in (_ELEMENT, _EXPIRES_AT)}
        by_state[BATCH] = pa.field(BATCH, pa.int64())
        by_state[COMMITTED_AT] = pa.field(COMMITTED_AT, pa.timestamp("us", tz="UTC"))
        fields = [by_state[name].with_name(shown).with_nullable(True) for name, shown in self.chosen.columns.items()]
        return pa.schema(fields)

    @cached_property
    def key_names(self) -> frozenset[str]:
        """The columns of the table that are columns of the key."""
        return frozenset(shown for name, shown in self.chosen.columns.items() if name.startswith("key."))

    @property
    def batch(self) -> str:
        """The name of the column with the batch."""
        return self.chosen.columns[BATCH]

    @property
    def committed_at(self) -> str:
        """The name of the column with the time of the commit of the batch."""
        return self.chosen.columns[COMMITTED_AT]

    @cached_property
    def state_schema(self) -> pa.Schema:
        """The columns that the state gives: without batch and time."""
        return pa.schema([field for field in self.schema if field.name not in (self.batch, self.committed_at)])

    def shaped(self, partition: int, decoded: DecodedRows) -> Iterator[Shaped]:
        """Convert decoded rows."""
        if decoded.are_lists:
            yield from self._of_lists(partition, decoded)
            return
        for rows in typed_rows(self.table, partition, decoded):
            yield self._filtered(self._selected(rows), self._hashes_of_keys(rows))

    def deleted(self, partition: int, keys: pa.Table) -> Shaped:
        """Convert deleted keys to rows without values."""
        rows = typed_keys(self.table, partition, keys)
        return Shaped(
            rows=self._selected(rows),
            keys=self._hashes_of_keys(rows),
            values=np.zeros(rows.num_rows, np.uint64),
            deleted=np.ones(rows.num_rows, bool),
        )

    def without_values(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of deleted keys: null in the columns of the value. Batch and time tell when they were deleted."""
        kept = {*self.key_names, self.batch, self.committed_at}
        columns = [
            column if field.name in kept else pa.nulls(rows.num_rows, field.type)
            for column, field in zip(rows.columns, rows.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def _of_lists(self, partition: int, decoded: DecodedRows) -> Iterator[Shaped]:
        """All rows of a key have one hash of the value, that of all elements that meet the conditions."""
        pieces = list(typed_rows(self.table, partition, decoded))
        rows = pa.Table.from_batches(pieces).combine_chunks().to_batches()
        if rows:
            shaped = self._filtered(self._selected(rows[0]), self._hashes_of_keys(rows[0]))
            of_key = np.repeat(np.arange(len(decoded.counts)), decoded.counts)
            live = np.where(shaped.deleted, np.uint64(0), shaped.values)
            sums = np.zeros(len(decoded.counts), np.uint64)
            np.add.at(sums, of_key, live)
            yield Shaped(rows=shaped.rows, keys=shaped.keys, values=sums[of_key], deleted=shaped.deleted)

    def _filtered(self, rows: pa.RecordBatch, keys: Hashes) -> Shaped:
        deleted = np.zeros(rows.num_rows, bool)
        for condition in conditions(self.chosen.where, rows.schema):
            deleted |= ~condition.holds(rows)
        return Shaped(rows=rows, keys=keys, values=_hashes(rows), deleted=deleted)

    def _selected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        of_state = {name: typed for typed, name in self.table.columns.items()}
        names = [of_state.get(name, name) for name in self.chosen.columns if name not in (BATCH, COMMITTED_AT)]
        return pa.RecordBatch.from_arrays([rows.column(name) for name in names], schema=self.state_schema)

    def _hashes_of_keys(self, rows: pa.RecordBatch) -> Hashes:
        names = [typed for typed, name in self.table.columns.items() if name.startswith("key.")]
        hashed = xxhash.xxh3_128_digest
        data = b"".join([hashed(row) for row in _encoded(rows.select(names))])
        return np.frombuffer(data, "<u8").reshape(-1, 2)


@dataclass(frozen=True, kw_only=True)
class Shaped:
    """Rows in the columns of a table, without batch and time.

    keys     the hashes of their keys
    values   the hashes of their values
    deleted  the rows that do not belong to the table: their keys are deleted, or do not meet the conditions
    """

    rows: pa.RecordBatch
    keys: Hashes
    values: Hashes
    deleted: npt.NDArray[np.bool_]

    def take(self, wanted: npt.NDArray[np.bool_]) -> Shaped:
        """Select rows."""
        return Shaped(
            rows=self.rows.filter(pa.array(wanted)),
            keys=self.keys[wanted],
            values=self.values[wanted],
            deleted=self.deleted[wanted],
        )


def _hashes(rows: pa.RecordBatch) -> Hashes:
    hashed = xxhash.xxh3_64_intdigest
    if not rows.num_columns:
        return np.zeros(rows.num_rows, np.uint64)
    return np.fromiter((hashed(row) for row in _encoded(rows)), np.uint64, rows.num_rows)


def _encoded(rows: pa.RecordBatch) -> Iterator[memoryview]:
    if not rows.num_columns:
        yield from [memoryview(b"")] * rows.num_rows
        return
    encoded = Ragged.from_arrow(encode_rows(rows))
    data, edges = memoryview(encoded.data.data), encoded.offsets.tolist()
    for begin, end in itertools.pairwise(edges):
        yield data[begin:end]


# -- conditions --------------------------------------------------------------------------------------------------------

_CONDITION = re.compile(
    r"(?P<name>.+?)\s*(?P<sign><=|>=|!=|<>|=|<|>|\bis\s+not\s+null$|\bis\s+null$)\s*(?P<value>.*)", re.I
)
_SIGNS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class Condition:
    """A condition on one column; None as value asks whether the column is null."""

    column: str
    sign: str
    value: pa.Scalar | None

    def holds(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for which rows it holds. As in SQL, a comparison with null does not hold."""
        column = rows.column(self.column)
        if self.value is None:
            found = pc.is_valid(column) if "not" in self.sign else pc.is_null(column)
        else:
            found = pc.fill_null(_SIGNS[self.sign](column, self.value), False)
        held: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
        return held


def conditions(texts: Sequence[str], schema: pa.Schema) -> list[Condition]:
    """Parse conditions on columns of the table, such as "state = open". Raises `RefusedAsUnsafe`."""
    return [_condition(text, schema) for text in texts]


def _condition(text: str, schema: pa.Schema) -> Condition:
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise RefusedAsUnsafe(
            f"{text!r} is not a condition; nothing was written",
            hint="write it as COLUMN = VALUE, with =, !=, <, <=, > or >=; or COLUMN is null; or COLUMN is not null",
        )
    name, sign = match["name"], " ".join(match["sign"].lower().split())
    if name not in schema.names:
        raise RefusedAsUnsafe(
            f"the condition {text!r} names the column {name}, which the table does not have; nothing was written",
            hint=f"choose one of these columns: {', '.join(schema.names)}",
        )
    if sign.startswith("is"):
        return Condition(name, sign, None)
    kind, value = schema.field(name).type, match["value"].strip().strip("'")
    try:
        return Condition(name, sign, pa.scalar(value, pa.string()).cast(kind))
    except pa.ArrowException as error:
        raise RefusedAsUnsafe(
            f"{value!r} is not a value of the column {name}, which has the type {kind}; nothing was written",
            hint="write times as 2026-11-28T03:00:00Z. Compare only numbers, texts, times and booleans",
        ) from error


def partition_problem(names: Collection[str], schema: pa.Schema) -> Unusable | None:
    """Return why a table cannot have these partition columns."""
    for name in names:
        if name not in schema.names:
            return Unusable(f"the partition column {name} does not exist", f"choose one of: {', '.join(schema.names)}")
        if not any(test(schema.field(name).type) for test in _PARTITION_TYPES):
            return Unusable(
                f"the column {name} of the type {schema.field(name).type} cannot be a partition column",
                "partition by texts, integers, dates or booleans",
            )
    return None


def partition_text(value: object) -> str | None:
    """Return the value of a partition column as the log has it."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
