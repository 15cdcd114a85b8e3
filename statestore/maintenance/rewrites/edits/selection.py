"""The rows of one operator that an edit changes: which keys it deletes, and which rows it writes into which store.

    operator with one plain store       columns of the key, any of them; a field of a struct is window.start
    join, transformWithState            the columns by which Spark partitions; all rows of the key in all families

So the stores and families of one operator stay consistent: an edit removes a key from all of them or from none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from statekeeper.statestore.base.errors import RefusedAsUnsafe, SchemaMismatch
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.rows import Contents, Layout, layout
from statekeeper.statestore.format import prefix_columns
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.family_encode import with_longs_for_nulls
from statekeeper.statestore.format.family_rows import FAMILY_BYTES, decode_keys
from statekeeper.statestore.format.murmur3 import partitions_of
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.partition_keys import PartitionRule, key_hashes, partition_columns, partition_rules
from statekeeper.statestore.format.plain_values import unique_names
from statekeeper.statestore.format.row_encodings import RowEncoding
from statekeeper.statestore.format.unsafe_row import encode_rows, normalise_keys
from statekeeper.statestore.maintenance.rewrites.edits import own_rows
from statekeeper.statestore.maintenance.rewrites.edits.goal import Edit
from statekeeper.statestore.maintenance.rewrites.given_values import typed_columns, typed_texts
from statekeeper.statestore.root.binding import stores_at
from statekeeper.statestore.root.times import index_of

Rules = Mapping[tuple[str, str | None], PartitionRule]
"""How the rows of an operator are partitioned, by store and family."""

_PLAIN = (None,)


@dataclass(frozen=True)
class Wanted:
    """Keys to delete: the places of some columns, and the encoded values of these columns."""

    places: tuple[int, ...]
    rows: frozenset[bytes]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows of one operator that an edit changes.

    layouts   by store name
    rules     by store and family, for an operator with several of them; None for one plain store
    hidden    the first columns of a key that a person does not name: the key group of an own root
    upserts   by store, the new value of each key
    """

    operator: int
    layouts: Mapping[str, Layout]
    rules: Rules | None = None
    wanted: tuple[Wanted, ...] = ()
    hidden: int = 0
    upserts: Mapping[StorePath, Mapping[bytes, bytes]] = field(default_factory=dict)

    def without_upserts(self) -> Selection:
        """Return what the stores have in common."""
        return replace(self, upserts={})

    def with_upserts(self, store: StorePath, rows: Mapping[bytes, bytes]) -> Selection:
        """Return the selection for this store alone. `rows`: the new value of each key."""
        return replace(self, upserts={store: rows})

    def deleted(self, store: StorePath, family: str | None, keys: Sequence[bytes]) -> list[bool]:
        """Return for each key whether it is deleted. Raises `CorruptFile` for a key that does not fit the schema."""
        found = [False] * len(keys)
        if not self.wanted:
            return found
        columns = self._columns(store, family, keys)
        for one in self.wanted:
            encoded = _encoded(columns.select(list(one.places)))
            found = [was or row in one.rows for was, row in zip(found, encoded, strict=True)]
        return found

    def _columns(self, store: StorePath, family: str | None, keys: Sequence[bytes]) -> pa.Table:
        of_family = self.layouts[store.store].families[family]
        decoded = decode_keys(keys, of_family, skip=0 if family is None else FAMILY_BYTES)
        if self.rules is None:
            return _leaves(decoded.select(range(self.hidden, decoded.num_columns)))
        return _leaves(partition_columns(decoded, self.rules[store.store, family]))


def select(contents: Contents, edit: Edit) -> Selection:
    """Compare an edit with the schema of the state. Requests: the metadata and the schemas of the operator.

    Raises `RefusedAsUnsafe` for an edit that would leave the operator inconsistent; `SchemaMismatch` for an unknown
    operator or column, and for a value that is not of the column's type; `UnknownPartitioning`; `UnknownFormatVersion` and
    `CorruptFile` as `contents.rows.layout`.
    """
    stores = [store for store in contents.stores if store.operator == edit.operator]
    if not stores:
        known = ", ".join(str(number) for number in sorted({store.operator for store in contents.stores}))
        raise SchemaMismatch(
            f"the checkpoint has no stateful operator {edit.operator}; it has: {known or 'none'}; nothing was changed",
            path=contents.storage.url,
            hint="to see the operators, run: statekeeper inspect ROOT",
        )
    layouts = {one: layout(contents, _first(stores, one)) for one in dict.fromkeys(store.store for store in stores)}
    found = Selection(operator=edit.operator, layouts=layouts)
    if len(layouts) == 1 and tuple(next(iter(layouts.values())).families) == _PLAIN:
        return _of_plain_store(contents, edit, found, stores)
    if edit.upserts is not None:
        raise RefusedAsUnsafe(
            f"operator {edit.operator} keeps a key in several stores or column families, which depend on each other: an "
            f"upsert of one of them would leave the operator inconsistent; nothing was changed",
            path=f"state/{edit.operator}",
            hint="only --delete and --delete-keys work on this operator; they remove a key from all its stores",
        )
    return _of_whole_keys(contents, edit, found)


def _first(stores: Sequence[StorePath], name: str) -> StorePath:
    return min(store for store in stores if store.store == name)


def _of_plain_store(contents: Contents, edit: Edit, found: Selection, stores: Sequence[StorePath]) -> Selection:
    [name] = found.layouts
    family = found.layouts[name].families[None]
    hidden = prefix_columns.OF_STATE if contents.origin is Origin.OWN else 0
    schema = _leaves(_visible(family.key, hidden).empty_table()).schema
    upserts = _upserts(contents, edit, family, stores, hidden)
    return replace(found, wanted=_wanted(edit, schema), upserts=upserts, hidden=hidden)


def _visible(key: pa.Schema, hidden: int) -> pa.Schema:
    return pa.schema(list(key)[hidden:])


def _of_whole_keys(contents: Contents, edit: Edit, found: Selection) -> Selection:
    metadata = catalog.operator_at(contents.storage, edit.operator, contents.batch)
    operator = metadata.name if metadata else ""
    rules: dict[tuple[str, str | None], PartitionRule] = {}
    for name, of_store in found.layouts.items():
        store = StorePath(edit.operator, 0, name)
        for family, rule in partition_rules(operator, store, of_store.families, contents.conf).items():
            rules[name, family] = rule
    schemas = {place: _grouping_key(rule) for place, rule in rules.items()}
    schema = next(iter(schemas.values()))
    for (name, family), other in schemas.items():
        if other.types != schema.types:
            raise RefusedAsUnsafe(
                f"store {name}, family {family}: the grouping key has the types {other.types}, in other stores "
                f"{schema.types}; its rows cannot be compared, and nothing was changed",
                path=f"state/{edit.operator}",
            )
    for given in (list(edit.texts), [] if edit.keys is None else _leaves(edit.keys).schema.names):
        if given and set(given) != set(schema.names):
            raise RefusedAsUnsafe(
                f"operator {edit.operator} ({operator or 'without metadata'}) keeps a key in several stores or column "
                f"families: only whole keys can be deleted from all of them; nothing was changed",
                path=f"state/{edit.operator}",
                hint=f"give all columns of the key, and no other column: {', '.join(schema.names)}",
            )
    return replace(found, rules=rules, wanted=_wanted(edit, schema))


def _grouping_key(rule: PartitionRule) -> pa.Schema:
    return _leaves(partition_columns(rule.layout.key.empty_table(), rule)).schema


def _wanted(edit: Edit, schema: pa.Schema) -> tuple[Wanted, ...]:
    tables = []
    if edit.texts:
        tables.append(typed_texts(edit.texts, schema, "the key"))
    if edit.keys is not None:
        tables.append(typed_columns(_leaves(edit.keys), schema, "the key"))
    return tuple(
        Wanted(tuple(schema.names.index(name) for name in table.schema.names), frozenset(_encoded(table)))
        for table in tables
    )


def _require_no_times(contents: Contents, edit: Edit) -> None:
    bound = stores_at(contents.storage, contents.batch)
    name = bound[edit.operator].name
    index = index_of(bound, name)
    if index is not None:
        times = "keys that start with their time" if index == name else f"times, which store {index} must contain, too"
        raise RefusedAsUnsafe(
            f"the rows of store {name} have {times}: an upsert would leave timers or expiries that the job does not find; "
            "nothing was changed",
            path=f"state/{edit.operator}",
            hint="only --delete and --delete-keys work on this store. To change rows, let the job do it",
        )


def _upserts(
    contents: Contents, edit: Edit, family: Family, stores: Sequence[StorePath], hidden: int
) -> Mapping[StorePath, Mapping[bytes, bytes]]:
    if edit.upserts is None:
        return {}
    if contents.origin is Origin.OWN:
        _require_no_times(contents, edit)
    key = _visible(family.key, hidden)
    schema = _row_schema(key, family.value)
    rows = typed_columns(edit.upserts, schema, "the state")
    for field_of_nulls in (one for one in schema if pa.types.is_null(one.type) and one.name not in rows.schema.names):
        rows = rows.append_column(field_of_nulls, pa.nulls(rows.num_rows))
    missing = [name for name in schema.names if name not in rows.schema.names]
    if missing:
        raise SchemaMismatch(
            f"the table of --upsert lacks the column {missing[0]}; it must have all columns: {', '.join(schema.names)}; "
            f"nothing was changed",
            hint="to see the columns, run: statekeeper dump ROOT",
        )
    rows = rows.select(schema.names)
    keys = pa.Table.from_arrays(rows.columns[: len(key)], schema=key)
    values = pa.Table.from_arrays(rows.columns[len(key) :], schema=family.value)
    if contents.origin is Origin.OWN:
        placed = list(own_rows.placed_rows(contents, min(stores), keys, values))
    else:
        placed = list(_placed(contents, family, stores, keys, values))
    _require_unique([key for _, key, _ in placed])
    found: dict[StorePath, dict[bytes, bytes]] = {}
    for store, encoded_key, encoded_value in placed:
        found.setdefault(store, {})[encoded_key] = encoded_value
    return found


def _placed(
    contents: Contents, family: Family, stores: Sequence[StorePath], keys: pa.Table, values: pa.Table
) -> Iterator[tuple[StorePath, bytes, bytes]]:
    """Encode rows of a native query, and find the store of each by the rule of Spark."""
    first = min(stores)
    metadata = catalog.operator_at(contents.storage, first.operator, contents.batch)
    rule = partition_rules(metadata.name if metadata else "", first, {None: family}, contents.conf)[None]
    encoding = RowEncoding(family, contents.conf.row_checksums)
    encoded_keys, encoded_values = encoding.encoded(
        _encoded(keys), encode_rows(with_longs_for_nulls(values)).to_pylist()
    )
    places = partitions_of(key_hashes(encoded_keys, rule), len(stores)).tolist()
    for place, encoded_key, encoded_value in zip(places, encoded_keys, encoded_values, strict=True):
        yield replace(first, partition=place), encoded_key, encoded_value


def _row_schema(key: pa.Schema, value: pa.Schema) -> pa.Schema:
    """Return the columns of key and value. A value's column with the name of a key's column is named value.<name>."""
    keys, values = unique_names(key.names), unique_names(value.names)
    fields = [one.with_name(name) for one, name in zip(key, keys, strict=True)]
    fields += [
        one.with_name(f"value.{name}" if name in keys else name) for one, name in zip(value, values, strict=True)
    ]
    return pa.schema(fields)


def _require_unique(keys: Sequence[bytes]) -> None:
    first: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        if key in first:
            raise SchemaMismatch(
                f"rows {first[key]} and {row} of the table of --upsert have the same key; nothing was changed",
                hint="give each key once",
            )
        first[key] = row


def _encoded(columns: pa.Table) -> list[bytes]:
    return [bytes(row) for row in encode_rows(normalise_keys(columns)).to_pylist()]


def _leaves(columns: pa.Table) -> pa.Table:
    """Return the columns with each field of a struct as a column of its own: window.start."""
    columns = columns.rename_columns(unique_names(columns.schema.names))
    while any(pa.types.is_struct(one.type) for one in columns.schema):
        columns = columns.flatten()
    return columns
