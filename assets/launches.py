"""What a person launches: the launchpad's configuration of a verb, its run, and its messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field, create_model

from statekeeper.assets import metadata
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.resources.worker import holder
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.upkeep.snapshot import MEMORY_BYTES
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Prepared, Run, Verb, perform, prepare
from statekeeper.statestore.maintenance.verbs.options import Option, options_of


class Do(Enum):
    """The action of a launch."""

    PLAN = "plan"
    APPLY = "apply"
    ABORT = "abort"


class DoOrUndo(Enum):
    """The action of a launch of a rewrite that can be reversed after it is complete."""

    PLAN = "plan"
    APPLY = "apply"
    ABORT = "abort"
    UNDO = "undo"


class DoCopy(Enum):
    """The action of a launch of a copy."""

    PLAN = "plan"
    APPLY = "apply"


class ForSpark(Enum):
    """The Spark release that will run the query, if the checkpoint does not show it."""

    BY_THE_CHECKPOINT = "by the checkpoint"
    V4_0 = "4.0"
    V4_1 = "4.1"
    V4_2 = "4.2"
    V4_3 = "4.3"

    @property
    def spark(self) -> Spark | None:
        return None if self is ForSpark.BY_THE_CHECKPOINT else Spark(self.value)


class StoppedLaunch(dg.Config):
    """The part of a launchpad's configuration that each rewrite of a stopped query has."""

    confirm_stopped: bool = Field(
        default=False, description="The query is stopped: its application has ended, and no scheduler will start it."
    )


class Copy(dg.Config):
    """The part of a launchpad's configuration that each copy has. The default only plans."""

    do: DoCopy = Field(
        default=DoCopy.PLAN, description="PLAN shows the plan. APPLY executes it, or completes an interrupted copy."
    )
    confirm_stopped: bool = Field(
        default=False, description="The query is stopped. Needed for the newest two batches of a query in structure V1."
    )


def config_of(verb: type, base: type[dg.Config], **fields: tuple[Any, Any]) -> Any:
    """Render the options of a verb as the configuration of a launchpad. `fields`: further ones, as for `create_model`."""
    rendered: dict[str, Any] = {one.name: _rendered(one) for one in options_of(verb)}
    return create_model(f"{verb.__name__}Options", __base__=base, **{**rendered, **fields})


def _rendered(one: Option) -> tuple[Any, Any]:
    shown: dict[str, Any] = {"description": one.help}
    if one.kind is Spark:
        return ForSpark, Field(default=ForSpark.BY_THE_CHECKPOINT, **shown)
    if issubclass(one.kind, Mapping):
        return dict[str, str], Field(default={}, **shown)
    default = one.launch if one.is_required else one.default
    if default is not None or not one.is_required:
        shown["default"] = default
    limits = {"ge": one.least, "le": one.most}
    if one.is_required and one.least is not None:
        limits["ge"] = min(one.least, default)
    shown |= {name: limit for name, limit in limits.items() if limit is not None}
    return one.kind if one.is_required or default is not None else one.kind | None, Field(**shown)


def options_in(config: dg.Config, verb: type) -> dict[str, Any]:
    """Return the options of a verb in a configuration that `config_of` rendered."""
    found = {one.name: getattr(config, one.name) for one in options_of(verb)}
    return {name: value.spark if isinstance(value, ForSpark) else value for name, value in found.items()}


def run_of(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    fleet: Fleet,
    query: OpenedQuery,
    *,
    stopped: bool = False,
    workers: int = WORKERS,
) -> Run:
    """Return the run of a verb on the query of this launch. `workers`: its share of the machine."""
    return Run(
        storage=query.storage,
        policies=query.policies,
        by=Maintainer(holder(context.run.run_id), SystemClock(), RandomIds(), fleet.quiet_seconds),
        scratch=fleet.scratch_folder(),
        stopped=stopped,
        workers=workers,
        memory_bytes=MEMORY_BYTES * workers // WORKERS,
        kept_bytes=fleet.kept_tables_mib * 1024 * 1024,
        open_other=lambda url: fleet.open_destination(url, query),
        named=lambda text: for_launchpad(text, query),
    )


def copied(
    context: dg.AssetExecutionContext, fleet: Fleet, config: Any, verb: Verb[Any, Any, Any]
) -> dg.MaterializeResult:
    """Plan a copy of the query of this launch, or make it."""
    query = fleet.open(context.partition_key)
    try:
        prepared = prepare(verb, run_of(context, fleet, query, stopped=config.confirm_stopped))
        if config.do is DoCopy.APPLY:
            prepared = perform(prepared)
    except StatekeeperError as error:
        raise dg.Failure(str(error)) from error
    shown = of_prepared(prepared)
    if config.do is DoCopy.APPLY:
        shown["seconds"] = round(prepared.seconds, 3)
    return dg.MaterializeResult(metadata=shown)


def of_prepared(prepared: Prepared[Any, Any, Any]) -> metadata.Metadata:
    """Return the report of a verb as metadata, with what blocks it."""
    return metadata.of_report(prepared.report(), list(map(str, prepared.refusals)))


_OPTIONS = {
    "confirm-stopped": "confirm_stopped: true",
    "for-spark": "for_spark",
    "file-sink": "file_sink",
    "replace-state": "replace_state: true",
    "location": "location",
    "batch": "batch",
    "abort": "do: ABORT",
}
"""The keys of the launchpad for the options of the command line."""

_ADD_OPTION = re.compile(rf"\b(?P<verb>add|with|use) --(?P<option>{'|'.join(_OPTIONS)})\b")


def for_launchpad(text: str, query: OpenedQuery) -> str:
    """Return a message of the library for a person at the launchpad: with its keys instead of the options of the command
    line, and with commands that can be pasted."""
    verbs = {"add": "set", "with": "with", "use": "set"}
    text = _ADD_OPTION.sub(lambda found: f"{verbs[found['verb']]} {_OPTIONS[found['option']]}", text)
    return query.pasteable(text)
