"""What a person launches: the launchpad's configuration of a verb, its run, and its messages."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field, create_model

from statekeeper.assets import metadata
from statekeeper.assets.names import job_of
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.resources.worker import holder
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.messages import without_root
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES, Executor
from statekeeper.statestore.maintenance.verbs.clone import Clone
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Prepared, Run
from statekeeper.statestore.maintenance.verbs.edit import Edit
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
from statekeeper.statestore.maintenance.verbs.options import Option, options_of
from statekeeper.statestore.maintenance.verbs.rewrite import Convert, Evolve, Load, Rescale
from statekeeper.statestore.maintenance.verbs.switch import Switch


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
    workers: int = WORKERS,
) -> Run:
    """Return the run of a verb on the query of this launch. `workers`: its share of the machine."""
    return run_by(holder(context.run.run_id), fleet, query, workers=workers)


def run_by(
    by: str,
    fleet: Fleet,
    query: OpenedQuery,
    *,
    workers: int = WORKERS,
    cluster: Executor | None = None,
) -> Run:
    """Return the run of a verb by a holder of leases. `cluster`: what runs its tasks; None for this machine."""
    return Run(
        storage=query.storage,
        policies=query.policies,
        by=Maintainer(by, SystemClock(), RandomIds(), fleet.quiet_seconds),
        scratch=fleet.scratch_folder(),
        workers=workers,
        memory_bytes=MEMORY_BYTES * workers // WORKERS,
        kept_bytes=fleet.kept_tables_mib * 1024 * 1024,
        cluster=cluster,
        open_other=lambda url: fleet.open_destination(url, query),
        named=lambda text: for_launchpad(text, query),
    )


def of_prepared(prepared: Prepared[Any, Any, Any]) -> metadata.Metadata:
    """Return the report of a verb as metadata, with what blocks it."""
    return metadata.of_report(prepared.report(), list(map(str, prepared.refusals)))


_OPTIONS = {
    "confirm-stopped": "confirm_stopped: true",
    "for-spark": "for_spark",
    "file-sink": "file_sink",
    "replace-state": "replace_state: true",
    "location": "location",
    "allow-dropped-state": "allow_dropped_state: true",
    "map": "map",
    "default": "default",
    "batch": "batch",
    "abort": "do: ABORT",
}
"""The keys of the launchpad for the options of the command line."""

_ADD_OPTION = re.compile(rf"\b(?P<verb>add|with|use) --(?P<option>{'|'.join(_OPTIONS)})\b")


_LAUNCHED: Mapping[str, tuple[type, str]] = {
    Switch.name: (Switch, "checkpoint_format"),
    Rescale.name: (Rescale, "rescale"),
    Convert.name: (Convert, "convert"),
    Edit.name: (Edit, "edit"),
    Load.name: (Load, "load"),
    Evolve.name: (Evolve, "evolve"),
    Clone.name: (Clone, "clone"),
    Migrate.name: (Migrate, "migrate"),
}
"""The verbs that a person launches as a job, with their assets."""

_ACTIONS: Mapping[str, Mapping[str, Any]] = {
    "--apply": {"do": "APPLY"},
    "--abort": {"do": "ABORT"},
    "--confirm-stopped": {"confirm_stopped": True},
}
"""The keys of the launchpad for the flags that execute a plan."""

_COMMAND = re.compile(r"(?:\brun: )?\bstatekeeper (?P<verb>[a-z]+)(?= )")
_WORD = re.compile(r" (?P<word>'[^']*'|\S+?)(?P<end>[.,;:)]*(?=\s|$))")


def for_launchpad(text: str, query: OpenedQuery) -> str:
    """Return a message of the library for a person at the launchpad: with its keys instead of the options of the command
    line, with launches instead of the commands of a verb that has a job, and with other commands that can be pasted."""
    text = without_root(text, query.storage.url)
    shown, place = "", 0
    for found in _COMMAND.finditer(text):
        launched = _launched(found["verb"], text[found.end() :], query)
        if launched is not None:
            launch, length = launched
            shown, place = f"{shown}{text[place : found.start()]}{launch}", found.end() + length
    text = shown + text[place:]
    verbs = {"add": "set", "with": "with", "use": "set"}
    text = _ADD_OPTION.sub(lambda found: f"{verbs[found['verb']]} {_OPTIONS[found['option']]}", text)
    return query.pasteable(text)


def _launched(verb: str, rest: str, query: OpenedQuery) -> tuple[str, int] | None:
    """Return the launch of a command, and how much of `rest`, the text after its verb, the command is. None for a command
    without a job."""
    of_verb, asset = _LAUNCHED.get(verb, (None, ""))
    if of_verb is None or not (query.has_rewrites or of_verb is Clone):
        return None
    options = {one.flag or f"--{one.name.replace('_', '-')}": one for one in options_of(of_verb) if one.flag != ""}
    unnamed = [one for one in options_of(of_verb) if one.flag == ""]
    config: dict[str, Any] = {}
    length, names_root, asked = 0, False, ""
    for found in _WORD.finditer(rest):
        word = shlex.split(found["word"])[0] if found["word"].startswith("'") else found["word"]
        if found.start() != length:
            break
        if asked:
            name = "undo_run" if asked == "--undo" else options[asked].name
            config[name] = word if asked == "--undo" else _value(options[asked], word, config)
            asked = ""
        elif word in _ACTIONS:
            config.update(_ACTIONS[word])
        elif word == "--undo":
            config["do"], asked = "UNDO", word
        elif word in options and options[word].kind is bool:
            config[options[word].name] = True
        elif word in options:
            asked = word
        elif word == "ROOT":
            # Of a migration, only the old checkpoint is the query of a launch.
            if of_verb is Migrate and "blueprint" in config:
                return None
            names_root = True
        elif unnamed and not word.startswith("--"):
            config[unnamed.pop(0).name] = word
        else:
            break
        length = found.start("end")
        if found["end"]:
            break
    if not names_root or asked or (of_verb is Migrate and unnamed):
        return None
    ops = (
        json.dumps({"ops": {f"{query.job_prefix}{asset}": {"config": config}}})
        if config
        else "the default configuration"
    )
    return f"launch the job {query.job_prefix}{job_of(asset)} for {query.name} with {ops}", length


def _value(one: Option, word: str, config: Mapping[str, Any]) -> Any:
    """Return the value of an option as the launchpad writes it."""
    if one.kind is Spark:
        return ForSpark(word).name
    if one.choices is not None:
        return one.choices[word].name
    if issubclass(one.kind, Mapping):
        key, _, value = word.partition("=")
        return {**config.get(one.name, {}), key: value}
    return int(word) if one.kind is int and word.isdecimal() else word
