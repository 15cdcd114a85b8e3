"""The ids that a query had before. A rewind and a claim give it another one, and its sinks keep those of their batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing
from statekeeper.statestore.format import names
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.storage import Storage, read_lines


def earlier_rewinds(storage: Storage, paths: Iterable[str]) -> list[dict[str, Any]]:
    """Return the heads of the plans of the earlier rewinds whose records retention has kept."""
    found = []
    for path in paths:
        if names.parse_history(path) == ("rewind", "plan"):
            # The plan of an undo, or damaged. A plan has a line for each file, so its size has no limit.
            with suppress(*BAD_VALUES, StopIteration, ObjectMissing, CorruptFile):
                body = parsed_json(next(read_lines(storage, path)))
                if {"former_query_id", "query_id"} <= body.keys():
                    found.append(body)
    return found


def ids(earlier: Iterable[Mapping[str, Any]], binding: Binding | None) -> frozenset[str]:
    """Return the ids before and after earlier rewinds, and the former ids in the binding of a Python job."""
    of_rewinds = {str(body[name]) for body in earlier for name in ("former_query_id", "query_id")}
    return frozenset(of_rewinds | set(() if binding is None else binding.former_ids))
