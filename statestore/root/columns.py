"""Comparison of the value columns that a job declares with those of its root, and the change that makes them equal. Pure.

A job can add nullable columns at any position. Its `ColumnMapping` names the columns that it has renamed or widened. The
first batch after the start rewrites all rows. Other changes need `statekeeper evolve`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.format import json_records, names, prefix_columns
from statekeeper.statestore.format.json_records import About, Count, Record
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json
from statekeeper.statestore.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from statekeeper.statestore.root.new_columns import NewColumns


_EVOLVE = "stop the job and run: statekeeper evolve ROOT --schema FILE"
_ABOUT = About("list of schemas", then="the root cannot be opened")
_UNCHANGED = "the job cannot start with this root; the state is unchanged"


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """The value columns of one store that a job renames or widens.

    renamed   current name in the root -> new name
    widened   new names of the columns with a wider type, and of those that become nullable

    An entry is ignored if the root already has its change. So the same code can start with roots that have the change and
    with roots that do not. Remove an entry of `widened` when all roots have the change: it would allow the next one, too.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    widened: Sequence[str] = ()


NO_MAPPING = ColumnMapping()


@dataclass(frozen=True, kw_only=True)
class ColumnChange:
    """The change of the value columns of one store that the first batch after a start makes. `str` describes it.

    before, after   the schemas in Spark's JSON
    sources         for each column of `after` its position in `before`; None for an added column, whose values are null
    """

    store: str
    before: str
    after: str
    sources: tuple[int | None, ...]

    @property
    def columns(self) -> NewColumns:
        """The columns, with which rows can be converted."""
        # Imported on demand, as all of Arrow: most commands only read the schemas.
        from statekeeper.statestore.format.types import arrow_schema
        from statekeeper.statestore.root.new_columns import NewColumns

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
    from statekeeper.statestore.format.types import arrow_schema

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
    former = list(_former_names(new["name"], mapping))
    known = f"the value columns of the root are: {', '.join(names) or 'none'}"
    for name in former:
        if name in names:
            return names.index(name)
    if former:
        raise _mismatch(
            store,
            f"the job renames {former[0]} to {new['name']}, but the root has neither column",
            f"correct `column_mapping`; {known}",
            url,
        )
    if not new["nullable"]:
        raise _mismatch(
            store,
            f"the job declares {column_text(new)}, which the root does not have",
            f"if the column was renamed, add its former name to `column_mapping`; {known}. If it is new, declare it as "
            f"nullable. To add it with a default, {_EVOLVE}",
            url,
        )
    return None


def _former_names(name: str, mapping: ColumnMapping) -> Iterator[str]:
    """Yield the names that a column had before, the newest first: one rename can follow another."""
    former = {new: old for old, new in mapping.renamed.items()}
    seen = {name}
    while (name := former.get(name, name)) not in seen:
        seen.add(name)
        yield name


def _require_all_kept(store: str, before: list[dict[str, Any]], sources: list[int | None], url: str) -> None:
    for place, old in enumerate(before):
        if place not in sources:
            raise _mismatch(
                store,
                f"the root has the value column {column_text(old)}, which the job does not declare",
                f"add {old['name']} to `state`. If the column was renamed, add its new name to `column_mapping`. To drop "
                f"the column, {_EVOLVE}",
                url,
            )


def _require_order(store: str, before: list[dict[str, Any]], sources: list[int | None], url: str) -> None:
    kept = [source for source in sources if source is not None]
    if kept != sorted(kept):
        raise _mismatch(
            store,
            "the job declares the value columns of the root in another order",
            f"keep the order of the root: {', '.join(one['name'] for one in before)}. New columns can be anywhere between",
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
    from statekeeper.statestore.format.widening import is_wider, wider_types

    old, new = fields
    if old["type"] == new["type"] and old["nullable"] == new["nullable"]:
        return
    has_fewer_values = old["nullable"] and not new["nullable"]
    is_other = old["type"] != new["type"] and not is_wider(types[0].type, types[1].type)
    differs = f"the root has the value column {column_text(old)}, but the job declares {column_text(new)}"
    widened = f"ColumnMapping(widened=[{new['name']!r}])"
    if is_other:
        wider = wider_types(types[0].type)
        hint = f"declare the type of the root. It can be widened to: {wider}; then also declare {widened}"
        raise _mismatch(store, differs, hint, url)
    if has_fewer_values:
        raise _mismatch(store, differs, f"declare {new['name']} as nullable, as in the root", url)
    if new["name"] not in mapping.widened:
        raise _mismatch(
            store,
            differs,
            f"declare the column as in the root. To widen it or to make it nullable, declare {widened}",
            url,
        )


def column_text(column: Mapping[str, Any]) -> str:
    """Return name and type of a column in Spark's JSON, for messages."""
    return f"{column['name']}: {_type_text(column)}{'' if column['nullable'] else ' not null'}"


def columns_text(schema_json: str) -> str:
    """Return all columns of a schema in Spark's JSON, for messages. Raises `ValueError`, `KeyError`, `TypeError`."""
    return ", ".join(map(column_text, _fields(schema_json)))


def _type_text(column: Mapping[str, Any]) -> str:
    return column["type"] if isinstance(column["type"], str) else json.dumps(column["type"])


def _fields(schema_json: str) -> list[dict[str, Any]]:
    """The columns. Their metadata is no difference."""
    fields = json.loads(schema_json)["fields"]
    return [{"name": one["name"], "type": one["type"], "nullable": one["nullable"]} for one in fields]


def _mismatch(store: str, problem: str, hint: str, url: str) -> SchemaMismatch:
    return SchemaMismatch(f"store {store!r}: {problem}; {_UNCHANGED}", path=url, hint=hint)


Sources = tuple[int | None, ...]


@dataclass(frozen=True)
class LaterSchema:
    """The value schema of one store from a batch on. `sources`: as in the file; None if columns were added at the end."""

    value_json: str
    sources: Sources | None = None

    def change_from(self, store: str, before: str) -> ColumnChange:
        """Return the change from the schema before, for a batch that rewrites the rows. Raises `ValueError` if `sources`
        names a column that it does not have."""
        kept, columns = _width(before), _width(self.value_json)
        sources = self.sources or tuple(place if place < kept else None for place in range(columns))
        if any(source is not None and source >= kept for source in sources):
            raise ValueError("places of columns that the schema before does not have")
        return ColumnChange(store=store, before=before, after=self.value_json, sources=sources)


OlderSchemas = Mapping[int, Mapping[str, str]]
"""The value schemas (store name -> Spark's JSON) before a change, by the batch that changed them."""

LaterSchemas = Mapping[int, Mapping[str, LaterSchema]]
"""Batch -> store name -> its schema from that batch on, in the order of the batches."""


def encode(values: Mapping[str, str], changes: Iterable[ColumnChange]) -> bytes:
    """Encode the file of a batch that changes columns. `values`: the schemas of all stores, after the changes."""
    body: dict[str, object] = dict(values)
    for change in changes:
        if LaterSchema(change.after).change_from(change.store, change.before) != change:
            body[change.store] = {"value": change.after, "sources": list(change.sources)}
    return json_records.encoded(body, sort_keys=True)


def read(storage: Storage) -> LaterSchemas:
    """Read the files of all batches. Raises `CorruptFile`."""
    found = {}
    for entry in storage.list(names.SCHEMAS):
        batch = names.parse_batch(entry.path.removesuffix(".json"))
        if batch is not None:
            found[batch] = parse(storage.read(entry.path), entry.path)
    return dict(sorted(found.items()))


def parse(data: bytes, path: str) -> Mapping[str, LaterSchema]:
    """Parse the file of one batch. Raises `CorruptFile`."""
    body = json_records.decoded(dict[str, str | _Moved], data, path, _ABOUT)
    try:
        return {name: LaterSchema(one) if isinstance(one, str) else _parsed(one) for name, one in body.items()}
    except BAD_VALUES as error:
        raise _ABOUT.invalid(error, path) from error


class _Moved(Record):
    """A `LaterSchema` with sources in the file."""

    value: str
    sources: tuple[Count | None, ...]


def _parsed(moved: _Moved) -> LaterSchema:
    kept = [one for one in moved.sources if one is not None]
    if kept != sorted(set(kept)) or len(moved.sources) != _width(moved.value):
        raise ValueError("other places of columns than the schema has")
    return LaterSchema(moved.value, moved.sources)


def _width(schema_json: str) -> int:
    return len(parsed_json(schema_json)["fields"])


@dataclass(frozen=True)
class StoreSchema:
    """One named store: Spark's JSON of its value schema and of its key schema, which starts with the key group.

    prefix_columns  the first key columns, which are encoded on their own: the key group, and the time in an index of times

    The operator id is its index in the binding: Spark resolves V2 ids only for the store `default` of an operator.
    """

    name: str
    key_json: str
    value_json: str
    prefix_columns: int = prefix_columns.OF_STATE


def schema_digest(stores: tuple[StoreSchema, ...]) -> str:
    """Compute a digest of the schemas."""
    body = json.dumps([[store.name, store.key_json, store.value_json] for store in stores])
    return hashlib.sha256(body.encode()).hexdigest()
