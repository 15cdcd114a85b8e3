"""Comparison of the value columns that a job declares with those of its root, and the change that makes them equal. Pure.

A job can add nullable columns anywhere. Its `ColumnMapping` names the columns that it has renamed or widened. The first
batch that the job computes rewrites all rows. Other changes need `statekeeper evolve`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from statestore.errors import SchemaMismatch
from statestore.format.types import arrow_schema
from statestore.format.widening import is_wider, wider_types
from statestore.new_columns import NewColumns

_EVOLVE = "stop the job and run: statekeeper evolve ROOT --schema FILE"


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """The value columns of one store that a job has renamed or widened since its root was created.

    renamed   present name in the root -> name that the job declares
    widened   names that the job declares, of columns whose new type holds all values of the present one, or that may now
              be null

    It may stay in the code: an entry that the root already has is ignored.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    widened: Sequence[str] = ()


NO_MAPPING = ColumnMapping()


@dataclass(frozen=True, kw_only=True)
class ColumnChange:
    """The change of the value columns of one store by the start of a job.

    before, after   the schemas in Spark's JSON
    sources         for each new column the place of the present one; None for an added column, which has nulls
    """

    store: str
    before: str
    after: str
    sources: tuple[int | None, ...]

    @property
    def columns(self) -> NewColumns:
        """The columns, with which rows can be converted."""
        return NewColumns.of(arrow_schema(self.before), arrow_schema(self.after), self.sources)

    @property
    def adds(self) -> bool:
        """Whether a column is added."""
        return None in self.sources

    def __str__(self) -> str:
        return f"store {self.store!r}: {', '.join(self._words())}"

    def _words(self) -> Iterator[str]:
        before, after = _fields(self.before), _fields(self.after)
        for new, source in zip(after, self.sources, strict=True):
            if source is None:
                yield f"adds {column_text(new)}"
                continue
            old = before[source]
            if new["name"] != old["name"]:
                yield f"renames {old['name']} to {new['name']}"
            if new["type"] != old["type"]:
                yield f"widens {new['name']} from {_type_text(old)} to {_type_text(new)}"
            if new["nullable"] != old["nullable"]:
                yield f"allows nulls in {new['name']}"


def change_of(store: str, held: str, declared: str, mapping: ColumnMapping, url: str) -> ColumnChange | None:
    """Compare two value schemas in Spark's JSON. None if they are equal.

    held, declared   the columns of the root and of the job. `held` was parsed before
    url              the root, for errors

    Raises `SchemaMismatch` for a difference that is neither a new nullable column nor in the mapping.
    """
    before, after = _fields(held), _fields(declared)
    if before == after:
        return None
    sources = [_source(store, new, before, mapping, url) for new in after]
    _require_all_kept(store, before, sources, url)
    _require_order(store, before, sources, url)
    types = arrow_schema(held), arrow_schema(declared)
    for place, source in enumerate(sources):
        if source is not None:
            _require_fit(store, (before[source], after[place]), (types[0][source], types[1][place]), mapping, url)
    return ColumnChange(store=store, before=held, after=declared, sources=tuple(sources))


def _source(
    store: str, new: Mapping[str, Any], before: list[dict[str, Any]], mapping: ColumnMapping, url: str
) -> int | None:
    """Return the place of the present column; None for a column to add."""
    names = [one["name"] for one in before]
    if new["name"] in names:
        return names.index(new["name"])
    former = next((old for old, name in mapping.renamed.items() if name == new["name"]), None)
    if former in names:
        return names.index(former)
    if former is not None:
        raise _mismatch(
            store,
            f"the job renames {former} to {new['name']}, but the root has neither column",
            f"its value columns are: {', '.join(names) or 'none'}. Correct `column_mapping`",
            url,
        )
    if not new["nullable"]:
        raise _mismatch(
            store,
            f"the job declares {column_text(new)}, which the root does not have",
            f"a start of the job adds only nullable columns. For a column with a default, {_EVOLVE}",
            url,
        )
    return None


def _require_all_kept(store: str, before: list[dict[str, Any]], sources: list[int | None], url: str) -> None:
    for place, old in enumerate(before):
        if place not in sources:
            raise _mismatch(
                store,
                f"the root has the value column {column_text(old)}, which the job does not declare",
                "declare the column. If it has another name now, declare that in `column_mapping`. To drop it, "
                + _EVOLVE,
                url,
            )


def _require_order(store: str, before: list[dict[str, Any]], sources: list[int | None], url: str) -> None:
    kept = [source for source in sources if source is not None]
    if kept != sorted(kept):
        raise _mismatch(
            store,
            "the job declares the value columns of the root in another order",
            f"declare them in the order of the root: {', '.join(one['name'] for one in before)}",
            url,
        )


def _require_fit(
    store: str,
    fields: tuple[dict[str, Any], dict[str, Any]],
    types: tuple[pa.Field, pa.Field],
    mapping: ColumnMapping,
    url: str,
) -> None:
    """Verify that the type of a column is equal, or wider and declared so."""
    old, new = fields
    if old["type"] == new["type"] and old["nullable"] == new["nullable"]:
        return
    has_fewer_values = old["nullable"] and not new["nullable"]
    is_other = old["type"] != new["type"] and not is_wider(types[0].type, types[1].type)
    differs = f"the root has the value column {column_text(old)}, but the job declares {column_text(new)}"
    if has_fewer_values or is_other:
        wider = f"declare it as in the root. {old['name']} can become: {wider_types(types[0].type)}"
        raise _mismatch(store, differs, "declare that it may be null" if has_fewer_values else wider, url)
    if new["name"] not in mapping.widened:
        raise _mismatch(
            store,
            differs,
            f"declare it as in the root, or name it in `column_mapping`, as ColumnMapping(widened=[{new['name']!r}])",
            url,
        )


def column_text(column: Mapping[str, Any]) -> str:
    """Return name and type of a column in Spark's JSON, for messages."""
    return f"{column['name']}: {_type_text(column)}{'' if column['nullable'] else ' not null'}"


def _type_text(column: Mapping[str, Any]) -> str:
    return column["type"] if isinstance(column["type"], str) else json.dumps(column["type"])


def _fields(schema_json: str) -> list[dict[str, Any]]:
    """The columns. Their metadata is no difference."""
    fields = json.loads(schema_json)["fields"]
    return [{"name": one["name"], "type": one["type"], "nullable": one["nullable"]} for one in fields]


def _mismatch(store: str, problem: str, hint: str, url: str) -> SchemaMismatch:
    return SchemaMismatch(f"store {store!r}: {problem}; the batch was not started", path=url, hint=hint)
