"""The statistics of a data file of a Delta table, by which readers skip files: least and largest values, and nulls."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_COLUMNS = 32
"""Delta's default: the first columns have statistics."""
_LONGEST_TEXT = 32
_MILLISECOND = dt.timedelta(milliseconds=1)


class FileStatistics:
    """Collects the statistics of one file. `columns`: the columns in the file."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = [column for column in list(columns)[:_COLUMNS] if not pa.types.is_nested(column.type)]
        self._rows = 0
        self._nulls = dict.fromkeys((column.name for column in self._columns), 0)
        self._smallest: dict[str, Any] = {}
        self._largest: dict[str, Any] = {}
        self._left_out = {column.name for column in self._columns if not _is_ordered(column.type)}

    def add(self, rows: pa.Table) -> None:
        """Add rows of the file."""
        self._rows += rows.num_rows
        for column in self._columns:
            values, name = rows.column(column.name), column.name
            self._nulls[name] += values.null_count
            if name in self._left_out or values.null_count == len(values):
                continue
            # Spark: NaN is larger than any number; Arrow ignores it.
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(values)).as_py():
                self._left_out.add(name)
                continue
            try:
                found = pc.min_max(values).as_py()
            except (OverflowError, ValueError):
                # Python has no times outside of the years 1 to 9999. Spark writes such rows.
                self._left_out.add(name)
                continue
            self._smallest[name] = min(self._smallest.get(name, found["min"]), found["min"])
            self._largest[name] = max(self._largest.get(name, found["max"]), found["max"])

    def as_json(self) -> dict[str, Any]:
        """Return the statistics as Delta names them."""
        known = [column.name for column in self._columns if column.name not in self._left_out]
        smallest = {name: _floor(self._smallest[name]) for name in known if name in self._smallest}
        largest = {name: _ceiling(self._largest[name]) for name in known if name in self._largest}
        return {
            "numRecords": self._rows,
            "minValues": {name: value for name, value in smallest.items() if value is not None},
            "maxValues": {name: value for name, value in largest.items() if value is not None},
            "nullCount": self._nulls,
        }


def _is_ordered(kind: pa.DataType) -> bool:
    checks = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return any(check(kind) for check in checks)


def _floor(value: Any) -> Any:
    """Return a JSON value that is not larger than `value`; None if there is none."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, dt.datetime):
        try:
            return _moment(value - dt.timedelta(microseconds=value.microsecond % 1000))
        except OverflowError:  # in UTC before the year 1 or after the year 9999
            return None
    return _plain(value)


def _ceiling(value: Any) -> Any:
    """Return a JSON value that is not smaller than `value`; None if there is none."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    if isinstance(value, dt.datetime):
        rest = value.microsecond % 1000
        try:
            more = _MILLISECOND if rest else dt.timedelta()
            return _moment(value - dt.timedelta(microseconds=rest) + more)
        except OverflowError:  # in UTC before the year 1 or after the year 9999
            return None
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None  # JSON has no infinity
    return value


def _moment(value: dt.datetime) -> str:
    # Without a zone: a timestamp without time zone.
    if value.tzinfo is None:
        return value.isoformat(timespec="milliseconds")
    return f"{value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
