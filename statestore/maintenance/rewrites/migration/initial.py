"""What the buffer of an added aggregate holds before its first row. Pure.

    column                            aggregate                                          before its first row
    count                             count, and the second column of avg                0
    sum (long), min, max              sum of integers, min, max                          null
    sum (decimal), isEmpty            sum of decimals                                    0, true
    sum (decimal), count              avg of decimals                                    0, 0
    sum (double)                      sum of floats: null. Of avg: 0                     see below
    MS[0], MS[1], ...                 approx_count_distinct                              0
    n, avg, m2, m3, m4                variance, standard deviation, skewness, kurtosis   0
    first, last; valueSet             first, last                                        null; false
    buf                               collect_list, collect_set and others               see below

An added `sum` of type double that is followed by an added `count` is either one average, or a sum and a count. The schema
is the same, and a wrong value would give a wrong result without an error. So the plan asks. The same applies to `buf`, the
serialized buffer of many aggregates. Source: the `initialValues` of Spark's aggregate functions; a test compares this table
with the buffers that Spark 4.2 writes for a group whose rows have only nulls.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

_NULL = ("min", "max", "first", "last")
_ZERO = ("n", "avg", "m2", "m3", "m4")
_SKETCH = re.compile(r"MS\[\d+\]")

EMPTY_LIST = "AAAAAAAAAAAIAAAAEAAAAAAAAAAAAAAA"
"""The buffer of collect_list and collect_set without elements, as base64."""


@dataclass(frozen=True)
class Undecided:
    """The schema does not show the initial value. `proposals`: aggregates, and the initial value of each for --default."""

    reason: str
    proposals: tuple[tuple[str, str], ...] = ()


_BUFFERS = (
    frozenset({"sum", "count"}),
    frozenset({"sum", "isEmpty"}),
    frozenset({"first", "valueSet"}),
    frozenset({"last", "valueSet"}),
    frozenset(_ZERO),
)


def mates(columns: pa.Schema, place: int) -> list[int]:
    """Return the neighbors of a column that can be in the buffer of the same aggregate.

    Spark averages only doubles and decimals: a `sum` of another type is no part of an average.
    """

    def is_one_buffer(first: int, second: int) -> bool:
        one, other = columns.field(first), columns.field(second)
        if _SKETCH.fullmatch(one.name) and _SKETCH.fullmatch(other.name):
            return True
        if (one.name, other.name) == ("sum", "count"):
            return bool(pa.types.is_floating(one.type) or pa.types.is_decimal(one.type))
        is_reversed = (one.name, other.name) == ("count", "sum")
        return not is_reversed and one.name != other.name and any({one.name, other.name} <= of for of in _BUFFERS)

    found = [place - 1] if place > 0 and is_one_buffer(place - 1, place) else []
    return [*found, place + 1] if place + 1 < len(columns) and is_one_buffer(place, place + 1) else found


def initial(columns: pa.Schema, place: int, added: Collection[int]) -> pa.Scalar | Undecided:
    """Return the initial value of an added column of an aggregation's buffer. `added`: the places of all added columns.

    An aggregate whose buffer would be half old and half new gives a wrong result without an error: that is never decided.
    """
    if kept := [columns.field(mate).name for mate in mates(columns, place) if mate not in added]:
        return Undecided(
            f"the column {columns.field(place).name} is new, and its neighbor {' or '.join(kept)} keeps its old values. "
            "Both can be the buffer of one aggregate",
            (("an aggregate of its own", {"count": "0", "sum": "null"}.get(columns.field(place).name, "VALUE")),),
        )
    field = columns.field(place)
    name, kind = field.name, field.type
    follower = columns.field(place + 1).name if place + 1 in added else None
    if name == "sum" and pa.types.is_floating(kind) and follower == "count":
        return Undecided(
            "the columns sum and count are the buffer of one avg, or of a sum and a count",
            (("avg", "0.0"), ("sum", "null")),
        )
    if name == "sum" and pa.types.is_decimal(kind):
        return pa.scalar(Decimal(0), kind) if follower in ("isEmpty", "count") else _unknown(name)
    if name == "sum" and (kind == pa.int64() or pa.types.is_floating(kind)):
        return pa.scalar(None, kind)
    if name in _NULL:
        return pa.scalar(None, kind)
    if name == "buf" and pa.types.is_binary(kind):
        return Undecided(
            "the column buf is the buffer of collect_list, collect_set or of another aggregate",
            (("collect_list or collect_set", EMPTY_LIST),),
        )
    known = _typed(name, kind)
    return _unknown(name) if known is None else pa.scalar(known, kind)


def _typed(name: str, kind: pa.DataType) -> Any:
    """Return the value of a column whose name and type determine it."""
    if kind == pa.int64() and (name == "count" or _SKETCH.fullmatch(name)):
        return 0
    if pa.types.is_boolean(kind) and name in ("isEmpty", "valueSet"):
        return name == "isEmpty"
    return 0.0 if kind == pa.float64() and name in _ZERO else None


def _unknown(name: str) -> Undecided:
    return Undecided(f"the initial value of the buffer column {name} is not known")
