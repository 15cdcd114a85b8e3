"""The options of a verb: fields of its dataclass, each with its help.

An option is declared once. The command line, the launchpad of Dagster and the documentation render these declarations, each
in its own way; `options_of` lists them. The name of a field is also its key in the launchpad and, with dashes, its name on
the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from statekeeper.statestore.format.sparks import Spark

_KEY = "option"


@dataclass(frozen=True, kw_only=True)
class Option:
    """The declaration of an option.

    name, kind   of the field; `kind`: its type without None
    default      of the field; None for a required option and for an empty mapping
    flag         on the command line, if it is not that of the name
    metavar      of the value in the help
    least, most  of a number; a `float` is a number of seconds
    choices      the values of a choice, by their names on the command line
    is_query_id  whether the value is the id of a query, a UUID
    is_location  whether the value is the location of a checkpoint
    launch       the default in the launchpad, whose actions do not all need the option
    """

    help: str
    name: str = ""
    kind: Any = str
    default: Any = None
    flag: str | None = None
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    choices: Mapping[str, Enum] | None = None
    is_query_id: bool = False
    is_location: bool = False
    launch: Any = None
    is_required: bool = False


def option(help: str, *, default: Any = MISSING, **declared: Any) -> Any:  # noqa: A002
    """Declare an option as a field of a dataclass. `declared`: as in `Option`. Without a default, it is required."""
    metadata = {_KEY: Option(help=help, **declared)}
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(verb: type) -> Iterator[Option]:
    """List the options of a verb in the order of its fields."""
    hints = get_type_hints(verb)
    for one in fields(verb):
        declared: Option | None = one.metadata.get(_KEY)
        if declared is None:
            continue
        is_required = one.default is MISSING and one.default_factory is MISSING
        default = None if one.default is MISSING else one.default
        kind = _without_none(hints[one.name])
        yield replace(declared, name=one.name, kind=kind, default=default, is_required=is_required)


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if NoneType in get_args(hint) else get_origin(hint) or hint


BATCH_DEFAULT = (
    "Default: the newest batch. Exception: for a native query in structure V1, the default without "
    "--confirm-stopped is the newest batch minus 2."
)
"""The default of `batch` of the verbs that copy. The exception does not apply to a job on `pipelines`."""

FOR_SPARK: dict[str, Any] = {
    "help": "Spark release that will run the query. In structure V2, Spark 4.0 cannot read the snapshots of later "
    "releases, and later releases cannot read those of Spark 4.0. Default: derived from the checkpoint. If the release is "
    "unknown, the command stops and names this option.",
    "default": None,
    "choices": {spark.value: spark for spark in Spark if spark.knows_v2},
}
"""Of a verb that writes snapshots."""

FILE_SINK: dict[str, Any] = {
    "help": "Output folder of the query, if it writes files with Spark's file sink (parquet, json, csv, orc or text, with "
    "a path). The command adds an entry for the appended batch to _spark_metadata in this folder. Without this entry, the "
    "sink and all readers of the folder fail. Omit the option for other sinks. You can also omit it to finish an "
    "interrupted run, which knows the URL.",
    "default": None,
    "metavar": "URL",
}
"""Of a verb that appends a batch."""

LOCATION: dict[str, Any] = {
    "help": "The URL that Spark will use for DESTINATION, for example s3a://bucket/folder. Used only for "
    "transformWithState and for stream-stream joins in state format 3 or 4: their metadata contains the URL of the "
    "checkpoint. Default: derived from DESTINATION. Required if DESTINATION is on webhdfs:// and ROOT is not.",
    "default": None,
    "metavar": "URL",
}
"""Of a verb that copies a checkpoint."""
