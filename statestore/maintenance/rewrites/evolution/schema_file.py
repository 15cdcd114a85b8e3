"""The file of `statekeeper evolve --schema`: TOML, or JSON of the same form.

[stores.default]                      the name of the store; the only store of an operator is default
drop = ["note"]
rename = { total = "amount" }         present name = new name
widen = { count = "long" }            present name = new type, or { type = ..., nullable = true }

[stores.default.add.currency]         columns in this order at the end of the value
type = "string"                       Spark's name of the type, or its JSON
nullable = false                      true if omitted
default = "EUR"                       null if omitted
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.maintenance.rewrites.evolution.columns import AddedColumn, ColumnChanges, Evolve, Widened

_NOTHING = "nothing was changed"
_ACTIONS = ("add", "drop", "widen", "rename")


def read_schema_file(path: str) -> Evolve:
    """Read the changes of columns from a file.

    Raises `SchemaMismatch` for a file that is missing, is no TOML or JSON, or has an unknown or an invalid entry.
    """
    try:
        text = Path(path).read_text()
        body = json.loads(text) if Path(path).suffix.lower() == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise SchemaMismatch(
            f"cannot be read as a schema file: {error}; {_NOTHING}",
            path=path,
            hint="give a TOML file, or a JSON file with the ending .json",
        ) from error
    return parse_changes(body, path, ("--schema", path))


def parse_changes(body: Any, path: str, options: tuple[str, ...] = ()) -> Evolve:
    """Parse the content of a schema file. `path`: its name in errors. Raises `SchemaMismatch`."""
    tables = _table(_table(body, "the file", path, {"stores"}).get("stores", {}), "stores", path)
    stores = {name: _changes(one, f"stores.{name}", path) for name, one in tables.items()}
    empty = [name for name, one in stores.items() if one.is_empty]
    if empty or not stores:
        where = f"stores.{empty[0]}" if empty else "the file"
        raise _invalid(f"{where} has no change of a column", path, f"add one of: {', '.join(_ACTIONS)}")
    return Evolve(stores=stores, options=options)


def _changes(body: Any, where: str, path: str) -> ColumnChanges:
    table = _table(body, where, path, _ACTIONS)
    drop = table.get("drop", [])
    if not isinstance(drop, list) or not all(isinstance(name, str) for name in drop):
        raise _invalid(f"{where}.drop is not a list of column names", path, 'for example: drop = ["note"]')
    if len(set(drop)) != len(drop):
        raise _invalid(f"{where}.drop names a column twice", path, "name each column once")
    rename = _table(table.get("rename", {}), f"{where}.rename", path)
    if not all(isinstance(name, str) and name for name in rename.values()):
        raise _invalid(f"{where}.rename has a new name that is not a text", path, 'for example: total = "amount"')
    widen = _table(table.get("widen", {}), f"{where}.widen", path)
    add = _table(table.get("add", {}), f"{where}.add", path)
    return ColumnChanges(
        add={name: _added(one, f"{where}.add.{name}", path) for name, one in add.items()},
        drop=tuple(drop),
        widen={name: _widened(one, f"{where}.widen.{name}", path) for name, one in widen.items()},
        rename=rename,
    )


def _added(body: Any, where: str, path: str) -> AddedColumn:
    table = _table(body, where, path, {"type", "nullable", "default"})
    if "type" not in table:
        raise _invalid(f"{where} has no type", path, 'for example: type = "string"')
    return AddedColumn(
        type=table["type"], nullable=_flag(table, where, path) is not False, default=table.get("default")
    )


def _widened(body: Any, where: str, path: str) -> Widened:
    if isinstance(body, str):
        return Widened(type=body)
    table = _table(body, where, path, {"type", "nullable"})
    if not table:
        raise _invalid(f"{where} has neither type nor nullable", path, 'for example: count = "long"')
    return Widened(type=table.get("type"), nullable=_flag(table, where, path))


def _flag(table: Mapping[str, Any], where: str, path: str) -> bool | None:
    flag = table.get("nullable")
    if flag is not None and not isinstance(flag, bool):
        raise _invalid(f"{where}.nullable is not true or false", path, "for example: nullable = false")
    return flag


def _table(body: Any, where: str, path: str, known: Collection[str] | None = None) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise _invalid(f"{where} is not a table", path, "to see the form of the file, run: statekeeper evolve --help")
    for name in body:
        if known is not None and name not in known:
            raise _invalid(f"{where} has the unknown entry {name}", path, f"use only: {', '.join(sorted(known))}")
    return body


def _invalid(what: str, path: str, hint: str) -> SchemaMismatch:
    return SchemaMismatch(f"{what}; {_NOTHING}", path=path, hint=hint)
