"""The output of `statekeeper dump`, in the form of Spark's own reader."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from click.testing import CliRunner

from statekeeper.statestore.cli import main

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}")
Row = dict[str, Any]


def dumped(root: object, *options: object) -> list[Row]:
    """The rows that the verb writes; it must end well."""
    arguments = ["dump", root, "--output", "jsonl", *options]
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def shown(rows: Iterable[Row], view: Mapping[str, str]) -> Counter[str]:
    """The rows that Spark's reader shows with these options, as comparable texts."""
    is_in_view, reshaped = _view(view)
    found: Counter[str] = Counter()
    for row in rows:
        _, operator, partition, *store = row["store"].split("/")
        part = store[0] if store else row["family"]
        if operator == view.get("operatorId", "0") and is_in_view(part):
            found[_comparable({**reshaped(row["key"], row["value"]), "partition_id": int(partition)})] += 1
    return found


def expected(rows: Iterable[str], view: Mapping[str, str]) -> Counter[str]:
    """The rows that Spark's reader gives as JSON with these options, as comparable texts."""
    found: Counter[str] = Counter()
    for text in rows:
        row = json.loads(text)
        if "joinSide" in view:
            # Of a join of format 4 Spark 4.2 shows bytes of the key instead.
            row["key"].pop("__event_time", None)
        found[_comparable(row)] += 1
    return found


def _comparable(row: Row) -> str:
    """A row as a text that is the same for Spark's JSON and ours: Spark's leaves nulls out and shows milliseconds."""
    return json.dumps(_without_nulls(row), sort_keys=True)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    instant = _INSTANT.match(value) if isinstance(value, str) else None
    return instant[0] if instant else value


def _view(view: Mapping[str, str]) -> tuple[Callable[[str | None], bool], Callable[[Row, Row], Row]]:
    """Return the stores or families of a view, and the function that converts a key and a value to its row."""
    if "joinSide" in view:
        side = view["joinSide"]
        values = (f"{side}-keyWithIndexToValue", f"{side}-keyWithTsToValues")
        return lambda part: part in values, _of_side
    if "readRegisteredTimers" in view:
        return lambda part: part == "$procTimers_keyToTimestamp", _timer
    if "stateVarName" in view:
        variable = view["stateVarName"]
        is_list = "flattenCollectionTypes" in view
        return lambda part: part == variable, _element if is_list else _variable
    if "storeName" in view:
        return lambda part: part == view["storeName"], _plain
    return lambda part: part is None, _plain


def _plain(key: Row, value: Row) -> Row:
    return {"key": key, "value": value}


def _of_side(key: Row, value: Row) -> Row:
    inner = ("index", "__event_time", "matched")
    return {
        "key": {name: one for name, one in key.items() if name not in inner},
        "value": {name: one for name, one in value.items() if name not in inner},
    }


def _timer(key: Row, _: Row) -> Row:
    return {"key": key["key"], "expiration_timestamp_ms": key["expiryTimestampMs"]}


def _element(key: Row, value: Row) -> Row:
    return {"key": key, "list_element": value}


def _variable(key: Row, value: Row) -> Row:
    if "userKey" in key:
        return {"key": key["key"], "user_map_key": key["userKey"], "user_map_value": value}
    return _plain(key, value)
