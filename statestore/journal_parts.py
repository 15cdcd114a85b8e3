"""The parts of a journal that name files and schemas, parsed as untrusted: anybody who writes to the checkpoint can change
them, and a run overwrites the files that they name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_sink import parse_entry
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.types import arrow_schema


@dataclass(frozen=True)
class SinkEntry:
    """The entry that a rewrite adds to the log of Spark's file sink. `url`: the output folder; `path`: relative to it."""

    url: str
    path: str


@dataclass(frozen=True)
class SchemaChange:
    """The value schema of one store in Spark's JSON, before and after a schema evolution."""

    before: str
    after: str

    @property
    def after_columns(self) -> str:
        """The new columns for display."""
        columns = json.loads(self.after)["fields"]
        return ", ".join(
            f"{one['name']}: {one['type'] if isinstance(one['type'], str) else json.dumps(one['type'])}"
            f"{'' if one['nullable'] else ' not null'}"
            for one in columns
        )


Schemas = Mapping[str, SchemaChange]
"""The changed value schemas. The keys are the names of the stores."""


def invalid(path: str) -> CorruptFile:
    """Return the error for a journal with missing or invalid fields."""
    return CorruptFile(
        "has missing or invalid fields; the rewrite cannot be finished or reversed",
        path=path,
        hint="restore the file from a backup",
    )


def parse_sink(body: object, path: str) -> SinkEntry | None:
    """Parse the entry of a file sink. Raises `CorruptFile`."""
    if body is None:
        return None
    if not isinstance(body, dict) or parse_entry(entry := str(body["path"])) is None:
        raise invalid(path)
    return SinkEntry(str(body["url"]), entry)


def files_to_replace(batch: int, stores: Iterable[StorePath]) -> list[str]:
    """The files that a rescale of an own root replaces besides the newest commit, in this order. `stores`: the new ones."""
    operators = sorted({store.operator for store in stores})
    return [names.offsets(batch), *map(names.operator_metadata, operators), names.BINDING]


def files_of_schemas(batch: int) -> list[str]:
    """The files that a schema evolution replaces besides the newest commit and the schemas for Spark, in this order. The
    second one exists if the job added a column with this batch, or after an earlier evolution at this batch."""
    return [names.BINDING, names.later_schema(batch)]


def parse_replaced(
    body: object, batch: int, stores: Iterable[StorePath], path: str, *, is_evolution: bool
) -> Mapping[str, str] | None:
    """Parse the former contents of the replaced files. Raises `CorruptFile` if other files are named."""
    if body is None:
        return None
    of_schemas = files_of_schemas(batch)
    allowed = [of_schemas, of_schemas[:1]] if is_evolution else [files_to_replace(batch, stores)]
    if not isinstance(body, dict) or list(body) not in allowed:
        raise invalid(path)
    return {name: str(content) for name, content in body.items()}


def parse_schemas(body: object, path: str) -> Schemas:
    """Parse the changed schemas. Raises `CorruptFile`, also for texts that are no schemas; `UnsupportedType`."""
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise invalid(path)
    found = {str(name): SchemaChange(str(one["before"]), str(one["after"])) for name, one in body.items()}
    for one in found.values():
        arrow_schema(one.before)
        arrow_schema(one.after)
    return found
