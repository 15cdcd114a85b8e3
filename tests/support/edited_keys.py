"""A key of a checkpoint to delete, and the rows that must be left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statekeeper.statestore.contents.rows import contents_at
from statekeeper.statestore.format.partition_keys import partition_columns
from statekeeper.statestore.storage import open_storage
from tests.support.dumped import dumped
from tests.support.placed_rows import rules_of


def grouping_key(key: dict[str, Any], names_of_key: set[str]) -> dict[str, Any]:
    """Find the columns of the grouping key at any depth of a key, as dump shows it."""
    found = {name: value for name, value in key.items() if name in names_of_key}
    for value in key.values():
        if isinstance(value, dict):
            found.update(grouping_key(value, names_of_key))
    return found


def a_key_of(checkpoint: Path) -> tuple[int, dict[str, Any]] | None:
    """Return an operator with a grouping key, and one of its keys; None if all operators have one row."""
    found = contents_at(open_storage(str(checkpoint)))
    assert found is not None
    by_operator: dict[int, set[str]] = {}
    for store in sorted(found.stores):
        if store.operator not in by_operator:
            rule = next(iter(rules_of(found, store).values()))
            by_operator[store.operator] = set(partition_columns(rule.layout.key.empty_table(), rule).schema.names)
    for row in dumped(checkpoint):
        operator = int(row["store"].split("/")[1])
        wanted = grouping_key(row["key"], by_operator[operator])
        if wanted and None not in wanted.values():
            return operator, wanted
    return None


def leaves(key: dict[str, Any], beginning: str = "") -> dict[str, str]:
    found = {}
    for name, value in key.items():
        if isinstance(value, dict):
            found.update(leaves(value, f"{beginning}{name}."))
        else:
            found[beginning + name] = str(value)
    return found


def without_key(rows: Sequence[Mapping[str, Any]], operator: int, key: dict[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows without those of the key of the operator."""
    return [
        row for row in rows if int(row["store"].split("/")[1]) != operator or grouping_key(row["key"], set(key)) != key
    ]
