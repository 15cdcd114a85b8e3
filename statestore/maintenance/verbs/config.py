"""Read `statekeeper.toml`, or one file for each team: the checkpoints and their maintenance policies.

    [defaults.snapshot]
    changelogs = 50

    [defaults.retention]
    versions = 100
    grace = "1h"

    [policies."jobs.payments-*"]
    mode = "snapshots"
    team = "payments"
    labels = { tier = "1" }
    schedule = { window = "22:00-06:00", min_interval = "15m" }
    audit = { deep_every = "30d" }

    [roots.flights]
    url = "s3://bucket/flights/state"
    mode = "full"
    storage = { endpoint_url = "http://127.0.0.1:9000" }
    retention = { versions = 200 }
    mirror = { url = "s3://replica/flights", lag = "10m" }
    tables.airborne = { url = "s3://lake/airborne", operator = 0, where = ["open is not null"] }
    sinks.delays = { url = "s3://lake/delays", keep_readers = "7d" }

    [parents.jobs]
    url = "s3://bucket/jobs/*/state"
    forget_after = "1d"

    [roots.sessions]
    url = "s3://bucket/sessions/state"
    limits = { record_mib = 256 }

    [teams.payments]
    slack = "env:PAYMENTS_SLACK"

    [prices]
    per_1000_writes = 0.005
    per_1000_reads = 0.0004
    per_gb_month = 0.023

    [history]
    url = "s3://lake/statekeeper"
    keep = "400d"

    [report]
    url = "s3://lake/statekeeper-reports"

    [roots.clicks]
    url = "s3://bucket/clicks/checkpoint"
    executor = "spark"

    [spark]
    submit = ["spark-submit", "--master", "yarn", "--archives", "s3://bucket/statekeeper.tar.gz#environment"]

A key of a query comes from the first of these tables that has it: the root; its parent; the last table in `[policies]`
whose pattern matches the name of the query; `[defaults]`; the defaults of Statekeeper. All are of the same file. A relative
path is relative to the file's folder. An unknown key is an error, so that a misspelt policy is not ignored.

A parent is a changing set of checkpoints. Each `*` in its URL is a folder, or a part of its name. The checkpoint in
`s3://bucket/jobs/orders/state` is the root `jobs.orders`. Without a `*`, each folder below the URL is a root, and `below`
is the path of the checkpoint in it.

The limits of a root are those of its job, see `SizeLimits`.

The team of a root, `team = "payments"`, gets the notices of its problems through its channels; the team `default`, of
all roots without a team. A channel is a value, or `env:NAME` for the environment variable that has it.

The prices of requests and of storage, in dollars, are only shown. The defaults are those of S3 Standard.

`[history]` is the place of the tables with the history of all roots of the file, and `[report]` the folder of their
reports. Both may have `storage` options of their own.

The command of `[spark]` starts Spark for the roots of its file with `executor = "spark"`.

A mistake in a table of a root or parent stops only that one. A mistake elsewhere stops the queries of its file, and no
other file: see `Broken`. The bytes of the files are untrusted: a file of one team must not stop those of the others.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from statekeeper.statestore.base.durations import duration_text, parse_duration
from statekeeper.statestore.base.errors import BadConfiguration
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import has_secret, redacted
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format.limits import LARGEST_RECORD_BYTES
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy
from statekeeper.statestore.storage import SizeLimits, StorageSpec, canonical
from statekeeper.statestore.storage.query_metrics import Prices

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""Names of roots and parents, which are also partition keys and file names; a dot separates parent and folder."""

MOST_MIB = 2048

MOST_FILES = 1_000
"""Largest number of configuration files."""
MOST_FILE_BYTES = 512 * 1024
"""Largest configuration file. It has room for thousands of roots."""
_MOST_DOTS = 64
"""Largest number of dots in a line: the parser needs memory for each table of a dotted key."""
_LONGEST_TEXT = 200
_HIGHEST_PRICE = 1e9
_MOST_LABELS = 32
_LONGEST_SHOWN = 80
_LONGEST_WORD = 10_000
_FORMER_KEYS = {"aside": "quarantine"}
"""Renamed keys of a policy, by former key, which works for one more release."""

_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-(?:([01][0-9]|2[0-3]):([0-5][0-9])|24:00)")


def bytes_of_mib(mib: object) -> int:
    """Return the bytes of a limit in MiB; 2,048 is the largest limit. Raises `TypeError` for other types than int."""
    if not isinstance(mib, int) or isinstance(mib, bool):
        raise TypeError("it is not a whole number")
    return min(mib * 1024 * 1024, LARGEST_RECORD_BYTES) if mib <= MOST_MIB else mib * 1024 * 1024


class Mode(Enum):
    """The permitted maintenance of a checkpoint."""

    OBSERVE = "observe"
    """Write nothing below its root."""
    SNAPSHOTS = "snapshots"
    """Take snapshots and delete nothing."""
    FULL = "full"


class RunsOn(Enum):
    """Where the work on each store of a checkpoint runs."""

    LOCAL = "local"
    """On the machine of the command, or of the run of Dagster."""
    SPARK = "spark"
    """On a Spark cluster, which the command of `[spark]` starts."""


@dataclass(frozen=True)
class Schedule:
    """When scheduled maintenance may start: see `rounds.due`. It does not limit a verb that a person runs.

    window                start and end of a part of each day, in minutes after 00:00Z; the end may be on the next day.
                          None: the whole day
    min_interval_seconds  least time between two starts
    """

    window: tuple[int, int] | None = None
    min_interval_seconds: float = 0.0


LEAST_DEEP_EVERY_SECONDS = 3600.0
"""The shortest time between two deep audits that a file may have: each one reads the whole checkpoint."""


@dataclass(frozen=True)
class AuditSchedule:
    """When Dagster audits a checkpoint beside its maintenance.

    deep_every_seconds  time between two audits that read every byte, at least an hour; None for no such audit
    """

    deep_every_seconds: float | None = None


@dataclass(frozen=True)
class Policies:
    """The policies of a checkpoint. `mode` None: `full` for a Python job, `observe` for a native checkpoint. `limits` are
    also in the spec of a root. `team` gets its notices; `owner` and `labels` (name -> value) are shown in them. `executor`:
    where the work on each store runs."""

    snapshot: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    mode: Mode | None = None
    limits: SizeLimits = field(default_factory=SizeLimits)
    _: KW_ONLY
    team: str = ""
    owner: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    executor: RunsOn = RunsOn.LOCAL
    audit: AuditSchedule = field(default_factory=AuditSchedule)

    def mode_for(self, origin: Origin) -> Mode:
        """Return the mode of a checkpoint."""
        return self.mode or (Mode.FULL if origin is Origin.OWN else Mode.OBSERVE)


@dataclass(frozen=True)
class Layer:
    """The policies of one table of a file. `changes`: the values by key, such as `retention.grace`. `pattern`: of the names
    of queries, for a table of `[policies]`."""

    file: str
    table: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    pattern: str = ""


def resolved(layers: Iterable[Layer]) -> Policies:
    """Return the policies that layers give together; a later layer overrides an earlier one key by key. Pure."""
    found = Policies()
    for layer in layers:
        for key, value in layer.changes.items():
            table, _, name = key.partition(".")
            if not name:
                found = replace(found, **{key: value})
            elif table == "labels":
                found = replace(found, labels=tuple(sorted((dict(found.labels) | {name: value}).items())))
            else:
                changed: Any = replace(getattr(found, table), **{_FIELDS[table][name]: value})
                found = replace(found, **{table: changed})
    return found


_FIELDS: Mapping[str, Mapping[str, str]] = {
    "snapshot": {one.name.removesuffix("_seconds"): one.name for one in fields(SnapshotPolicy)},
    "retention": {one.name.removesuffix("_seconds"): one.name for one in fields(RetentionPolicy)},
    "limits": {f"{one.name.removesuffix('_bytes')}_mib": one.name for one in fields(SizeLimits)},
    "schedule": {one.name.removesuffix("_seconds"): one.name for one in fields(Schedule)},
    "audit": {one.name.removesuffix("_seconds"): one.name for one in fields(AuditSchedule)},
}
"""The fields of the policies by table and key: `x_seconds` is the key `x` with a duration, and `x_bytes` is `x_mib`."""

_TEXTS = {"team": 'write team = "payments"', "owner": 'write owner = "payments@example.com"'}
_CHOICES: Mapping[str, type[Enum]] = {"mode": Mode, "executor": RunsOn}
_POLICY_KEYS = ("snapshot", "retention", *_CHOICES, "limits", "team", "owner", "labels", "schedule", "audit")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value of the policies of a query, as the file has it, and its source. `table` and `file` are "" for a default of
    Statekeeper."""

    key: str
    value: str
    file: str = ""
    table: str = ""


def settings(policies: Policies, layers: Sequence[Layer]) -> list[Setting]:
    """Return each value of the policies of a query with its source. Pure."""
    values = {
        "mode": policies.mode.value if policies.mode else "full for a state root, observe for a native checkpoint"
    }
    values |= {"executor": policies.executor.value, "team": policies.team, "owner": policies.owner}
    for table, known in _FIELDS.items():
        values |= {
            f"{table}.{key}": _as_written(getattr(getattr(policies, table), name), name) for key, name in known.items()
        }
    values |= {f"labels.{name}": value for name, value in policies.labels}
    sources = {key: layer for layer in layers for key in layer.changes}
    return [
        Setting(key=key, value=value, file=source.file, table=source.table)
        if (source := sources.get(key))
        else Setting(key=key, value=value)
        for key, value in values.items()
    ]


def _as_written(value: Any, name: str) -> str:
    if value is None or (name == "min_interval_seconds" and not value):
        return "none"
    if name == "window":
        return window_text(value)
    if name.endswith("_seconds"):
        return duration_text(value)
    return str(math.ceil(value / 1024 / 1024)) if name.endswith("_bytes") else str(value)


def window_text(window: tuple[int, int]) -> str:
    """Return a window as the file has it: `22:00-06:00`."""
    return "-".join(f"{minutes // 60:02}:{minutes % 60:02}" for minutes in window)


@dataclass(frozen=True)
class Channels:
    """Where a team gets its notices. Each is a value or `env:NAME`; "" for none.

    slack          URL of an incoming webhook of Slack or Mattermost
    webhook        URL that gets all fields of a notice as JSON
    pagerduty      routing key of an integration with PagerDuty's Events API v2
    pagerduty_url  URL of that API; accounts in the EU have another one
    """

    slack: str = ""
    webhook: str = ""
    pagerduty: str = ""
    pagerduty_url: str = "https://events.pagerduty.com/v2/enqueue"

    def unset(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the channels whose environment variable is not set or empty, with its name."""
        given = {key: value for key, value in vars(self).items() if value and not of_channel(value, environment)}
        return {key: value.removeprefix(_VARIABLE) for key, value in given.items()}


_VARIABLE = "env:"


def of_channel(given: str, environment: Mapping[str, str]) -> str:
    """Return the value of a channel, or that of the environment variable that `env:NAME` names; "" if it is not set."""
    return environment.get(given.removeprefix(_VARIABLE), "") if given.startswith(_VARIABLE) else given


DEFAULT_TEAM = "default"
"""The team of all roots without a team."""


@dataclass(frozen=True)
class MirrorPolicy:
    """The destination of the mirror of a checkpoint, and the largest lag of a fresh mirror. `location`: the URL that Spark
    uses for the destination; None if it can be derived from the URLs in the source."""

    url: str
    lag_seconds: float = 600.0
    location: str | None = None

    def inside(self, folder: str) -> MirrorPolicy:
        """Return the policy of the mirror in a folder of this destination."""
        location = self.location and f"{self.location.rstrip('/')}/{folder}"
        return replace(self, url=f"{self.url.rstrip('/')}/{folder}", location=location)


@dataclass(frozen=True, kw_only=True)
class StateTable:
    """A Delta table with the state of an operator, which `publish` keeps up to date. The options are those of `Publish`."""

    name: str
    url: str
    operator: int | None = None
    store: str | None = None
    family: str | None = None
    columns: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    before_images: bool = False
    plain_files: bool = False

    def inside(self, folder: str) -> StateTable:
        """Return the table in a folder of this location."""
        return replace(self, url=f"{self.url.rstrip('/')}/{folder}")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the verb."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("name", "url")}


@dataclass(frozen=True, kw_only=True)
class SinkTable:
    """A Delta table that the query writes, which `optimize` maintains. The options are those of `Optimize`."""

    name: str
    url: str
    keep_readers_seconds: float = 7 * 86_400.0
    file_mib: int = 128
    no_compact: bool = False
    no_vacuum: bool = False
    retired_queries: tuple[str, ...] = ()

    def inside(self, folder: str) -> SinkTable:
        """Return the table in a folder of this location."""
        return replace(self, url=f"{self.url.rstrip('/')}/{folder}")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the verb."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("name", "url")}


_KEYS_OF_SINK = ("url", "keep_readers", "file_mib", "compact", "vacuum", "retired_queries")
_LISTS_OF_TABLE = ("columns", "partition_by", "where")
_TEXTS_OF_TABLE = ("store", "family")
_FLAGS_OF_TABLE = ("before_images", "plain_files")


HISTORY_KEEP_SECONDS = 400 * 86_400.0
"""The default retention of the tables of history: a year, and a month to look at it."""


@dataclass(frozen=True)
class Outputs:
    """Where the roots of a file leave what is about all of them; None for no place.

    history       the tables of history, and how long they keep a row
    report        the folder of the reports
    """

    history: StorageSpec | None = None
    keep_seconds: float = HISTORY_KEEP_SECONDS
    report: StorageSpec | None = None


@dataclass(frozen=True)
class Root:
    """A configured checkpoint. `mirror`: None if it has none. `file`, `layers`: the file and the tables that give its
    policies. `prices`: of its requests. `state_tables`: with its state. `sinks`: the tables that it writes.
    `outputs`: of its file. `submit`: the command that starts Spark; empty if the file has none."""

    name: str
    spec: StorageSpec
    policies: Policies
    mirror: MirrorPolicy | None = None
    _: KW_ONLY
    file: str = ""
    layers: tuple[Layer, ...] = ()
    prices: Prices = field(default_factory=Prices)
    state_tables: tuple[StateTable, ...] = ()
    outputs: Outputs = field(default_factory=Outputs)
    sinks: tuple[SinkTable, ...] = ()
    submit: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyTables:
    """The tables `[defaults]` and `[policies]` of a file."""

    defaults: Layer
    patterns: tuple[Layer, ...] = ()

    def layers(self, query: str, *own: Layer) -> tuple[Layer, ...]:
        """Return the layers of a query, in the order in which they override each other."""
        return (self.defaults, *(one for one in self.patterns if matching(one.pattern).fullmatch(query)), *own)


@dataclass(frozen=True, kw_only=True)
class Parent:
    """A configured set of checkpoints, each in a folder below the URL of `spec`.

    pattern         path of a folder below the URL; each `*` is a part of the name of its checkpoint
    below           path of the checkpoint in each folder; "" for the folder itself
    forget_seconds  how long a missing checkpoint is remembered
    mirror, state_tables, sinks  with a folder of the same name for each
    tables, own     the policies of its file, and its own ones; without them, each checkpoint has `policies`
    """

    name: str
    spec: StorageSpec
    policies: Policies
    pattern: str = "*"
    below: str = ""
    forget_seconds: float = 86_400.0
    mirror: MirrorPolicy | None = None
    file: str = ""
    tables: PolicyTables | None = None
    own: Layer | None = None
    prices: Prices = field(default_factory=Prices)
    state_tables: tuple[StateTable, ...] = ()
    outputs: Outputs = field(default_factory=Outputs)
    sinks: tuple[SinkTable, ...] = ()
    submit: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The URL of its checkpoints with a `*` for each part that varies."""
        return self._place(self.pattern)

    def child(self, folder: str) -> Root:
        """Return the root of a folder. For several `*`, a dot separates the names of the folders. Raises `ValueError` for
        an invalid name."""
        parts = folder.split(".")
        varying = [segment for segment in self.pattern.split("/") if "*" in segment]
        is_valid = len(parts) == len(varying) and all(map(_NAME.fullmatch, parts))
        if not is_valid or not all(matching(one).fullmatch(part) for one, part in zip(varying, parts, strict=True)):
            raise ValueError(f"{folder!r} is not a valid root name: use letters, digits, '_' and '-'")
        names = iter(parts)
        path = "/".join(next(names) if "*" in segment else segment for segment in self.pattern.split("/"))
        mirror = self.mirror and self.mirror.inside("/".join(parts))
        of_state = tuple(one.inside("/".join(parts)) for one in self.state_tables)
        sinks = tuple(one.inside("/".join(parts)) for one in self.sinks)
        name = f"{self.name}.{folder}"
        spec = replace(self.spec, url=self._place(path))
        if self.tables is None:
            return Root(
                name,
                spec,
                self.policies,
                mirror,
                prices=self.prices,
                state_tables=of_state,
                outputs=self.outputs,
                sinks=sinks,
                submit=self.submit,
            )
        layers = self.tables.layers(name, *([self.own] if self.own else []))
        policies = resolved(layers)
        spec = replace(spec, limits=policies.limits)
        return Root(
            name,
            spec,
            policies,
            mirror,
            file=self.file,
            layers=layers,
            prices=self.prices,
            state_tables=of_state,
            outputs=self.outputs,
            sinks=sinks,
            submit=self.submit,
        )

    def child_at(self, url: str) -> Root | None:
        """Return the root with this URL; None if it is not in this parent."""
        base = f"{self.spec.url.rstrip('/')}/"
        segments, found = self.pattern.split("/"), url.removeprefix(base).split("/")
        names = [name for segment, name in zip(segments, found, strict=False) if "*" in segment]
        try:
            child = self.child(".".join(names))
        except ValueError:
            return None
        return child if child.spec.url == url else None

    def _place(self, path: str) -> str:
        return "/".join(part.rstrip("/") for part in (self.spec.url, path, self.below) if part)


class Part(Enum):
    """A part of the configuration that can be broken. The value is the name of its tables."""

    FILE = "file"
    ROOT = "roots"
    PARENT = "parents"
    TEAM = "teams"


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A part of the configuration that is not used because of an error.

    name          of the root, parent or team; "" for a whole file
    owned         the policies of the file, as far as they are known: they name the people to tell
    teams         the channels of a whole file, as far as they can be read
    is_ambiguous  another table defines the same
    """

    part: Part
    file: str
    error: BadConfiguration
    name: str = ""
    owned: Policies = field(default_factory=Policies)
    teams: Mapping[str, Channels] = field(default_factory=dict)
    is_ambiguous: bool = False

    @property
    def subject(self) -> str:
        """What is broken, for people. It is never the name of a query, because it has a space."""
        return f"{self.part.value}.{self.name} in {self.file}" if self.name else f"file {self.file}"

    @property
    def problem(self) -> str:
        """The error without the file, which `subject` names."""
        return f"{self.error.what} -> {self.error.hint}" if self.error.hint else self.error.what

    def may_name(self, query: str) -> bool:
        """Return whether this part may name a query."""
        if self.part is Part.FILE:
            return True
        return self.part is not Part.TEAM and self.name in (query, query.partition(".")[0])


def is_part(subject: str) -> bool:
    """Return whether a subject is that of a part of the configuration, and no query."""
    return subject.startswith("file ") or " in " in subject


@dataclass(frozen=True)
class Configuration:
    """The parsed files; without a file, no roots and the default policies.

    defaults  of a root that is not configured
    prices    of the requests of such a root; `outputs`: its places
    submit    the command that starts Spark for such a root
    files     the policies for all queries of a file, by file
    broken    what is not used, by subject
    """

    roots: Mapping[str, Root] = field(default_factory=dict)
    defaults: Policies = field(default_factory=Policies)
    parents: Mapping[str, Parent] = field(default_factory=dict)
    prices: Prices = field(default_factory=Prices)
    _: KW_ONLY
    teams: Mapping[str, Channels] = field(default_factory=dict)
    files: Mapping[str, PolicyTables] = field(default_factory=dict)
    broken: Mapping[str, Broken] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=Outputs)
    submit: tuple[str, ...] = ()

    def channels_of(self, team: str) -> Channels:
        """Return the channels of a team; those of the team `default` without a team of this name."""
        return self.teams.get(team) or self.teams.get(DEFAULT_TEAM) or Channels()

    def names(self, query: str) -> bool:
        """Return whether this configuration names a query: as a root, or as a folder of a parent, which need not exist."""
        parent, dot, _ = query.partition(".")
        return query in self.roots or bool(dot and parent in self.parents)

    def may_name(self, query: str) -> bool:
        """Return whether a broken part may name a query that this configuration does not name."""
        return not self.names(query) and any(one.may_name(query) for one in self.broken.values())

    def root(self, name: str) -> Root | None:
        """Return the root with this name, or the folder of a parent, which need not exist; None for another name."""
        if name in self.roots:
            return self.roots[name]
        parent, _, folder = name.partition(".")
        if parent in self.parents:
            with suppress(ValueError):
                return self.parents[parent].child(folder)
        return None

    def find(self, name_or_url: str) -> Root:
        """Return the root of a name or URL, in any spelling; an unconfigured root gets the defaults.

        Raises `BadConfiguration` for a root that a broken part names, or may name: its policies are unknown.
        """
        if (named := self.root(name_or_url)) is not None:
            return named
        for broken in self.broken.values():
            if broken.part is not Part.FILE and broken.may_name(name_or_url):
                raise broken.error
        url = canonical(name_or_url)
        for root in self.roots.values():
            if root.spec.url == url:
                return root
        for one in self.parents.values():
            if child := one.child_at(url):
                return child
        for broken in self.broken.values():
            if broken.part is not Part.TEAM:
                raise broken.error
        spec = StorageSpec(url, limits=self.defaults.limits)
        return Root(name_or_url, spec, self.defaults, prices=self.prices, outputs=self.outputs, submit=self.submit)

    def policies_of(self, subject: str) -> Policies:
        """Return the policies of a root, of a parent, of a folder of a parent, or of a part that is or was broken; else the
        defaults."""
        if subject in self.broken:
            return self.broken[subject].owned
        if is_part(subject):
            # It is valid again: the people who were told of the error are also told of its end.
            table, _, file = subject.partition(" " if subject.startswith("file ") else " in ")
            name = table.partition(".")[2]
            own = self.roots.get(name) or self.parents.get(name)
            if own is not None and own.file == file:
                return own.policies
            return resolved([self.files[file].defaults]) if file in self.files else self.defaults
        if subject in self.roots:
            return self.roots[subject].policies
        parent, _, folder = subject.partition(".")
        if parent not in self.parents:
            return self.defaults
        with suppress(ValueError):
            return self.parents[parent].child(folder).policies
        return self.parents[parent].policies

    def policies_if_named(self, subject: str) -> Policies | None:
        """Return the policies of a subject as `policies_of`; None for a query that this configuration does not name."""
        is_known = is_part(subject) or subject in self.roots or subject.partition(".")[0] in self.parents
        return self.policies_of(subject) if is_known else None

    def keeping(self, former: Configuration) -> Configuration:
        """Return this configuration with what an earlier one had in the place of broken files, roots and parents. What two
        files define is not kept: it is unknown which one is meant."""
        files = {one.file for one in self.broken.values() if one.part is Part.FILE}
        tables_kept = {(one.file, one.name) for one in self.broken.values() if not one.is_ambiguous}

        def is_kept(name: str, file: str) -> bool:
            return file in files or (file, name) in tables_kept

        roots = {name: one for name, one in former.roots.items() if is_kept(name, one.file)}
        parents = {name: one for name, one in former.parents.items() if is_kept(name, one.file)}
        tables = {file: one for file, one in former.files.items() if file in files}
        broken = {
            subject: replace(one, owned=resolved([tables[one.file].defaults])) if one.file in tables else one
            for subject, one in self.broken.items()
        }
        teams = {**(former.teams if files else {}), **self.teams}
        return replace(
            self,
            roots={**roots, **self.roots},
            parents={**parents, **self.parents},
            files={**tables, **self.files},
            teams=teams,
            broken=broken,
        )

    def require_valid(self) -> Configuration:
        """Return this configuration. Raises the error of its first broken part."""
        for one in self.broken.values():
            raise one.error
        return self


def with_options_of(source: StorageSpec, spec: StorageSpec) -> StorageSpec:
    """Return the spec of a destination. Without options of its own, it has those of the source if both URLs have one
    scheme. Without limits of its own, it has those of the source."""
    if spec.limits == SizeLimits():
        spec = replace(spec, limits=source.limits)
    scheme, separator, _ = spec.url.partition("://")
    is_alike = separator and source.url.startswith(f"{scheme}://")
    return replace(spec, options=source.options) if is_alike and not spec.options else spec


# -- files --------------------------------------------------------------------------------------------------------------


def fleet_name(path: Path) -> str:
    """Return the name of the fleet of a file, of a folder, or of a pattern of files: its last part without `*`."""
    if path.suffix == ".toml" and "*" not in path.name:
        return path.stem
    return next((one.name for one in (path, *path.parents) if "*" not in str(one) and one.name), "fleet")


def files_of(path: Path) -> list[Path]:
    """Return the configuration files of a path: of a file, of a folder with files `*.toml`, or of a pattern.

    Raises `BadConfiguration` without a file, and for too many.
    """
    if path.is_dir():
        found = sorted(one for one in path.glob("*.toml") if not one.name.startswith("."))
        missing = "is a folder without a file *.toml"
    elif path.exists() or not glob.has_magic(str(path)):
        return [path]
    else:
        found = sorted(one for one in map(Path, glob.glob(str(path))) if not one.is_dir())  # noqa: PTH207 - it may be absolute
        missing = "matches no file"
    if not found:
        hint = "set --config or STATEKEEPER_CONFIG to a file, a folder or a pattern such as 'teams/*.toml'"
        raise BadConfiguration(missing, path=str(path), hint=hint)
    if len(found) > MOST_FILES:
        hint = f"the limit is {MOST_FILES:,}; use a narrower pattern"
        raise BadConfiguration(f"matches {len(found):,} files", path=str(path), hint=hint)
    return found


def load(path: Path) -> Configuration:
    """Read a configuration file, the files `*.toml` of a folder, or those that match a pattern.

    What is broken stops only itself: see `Configuration.broken`. Raises `BadConfiguration` with the file, the key and a
    valid value if no file can be used.
    """
    found = load_all(path)
    if not found.files:
        found.require_valid()
    return found


def people_of(path: Path) -> Configuration:
    """Return what an invalid configuration says of the people to tell: their channels, and their team as the defaults."""
    try:
        found = load_all(path)
    except BadConfiguration:
        return Configuration()
    owned = next((one.owned for one in found.broken.values()), Policies())
    return Configuration(defaults=owned, teams=found.teams)


def load_all(path: Path) -> Configuration:
    """Read configuration files as `load`; if no file can be used, all are in `broken`. Raises `BadConfiguration` without a
    file."""
    files = files_of(path)
    read = [_read(one) for one in files]
    valid = [one for one in read if isinstance(one, _File)]
    broken = [one for one in read if isinstance(one, Broken)]
    broken += [one for file in valid for one in file.broken]
    roots: dict[str, Root] = _once(valid, Part.ROOT, lambda file: file.roots, broken)
    parents: dict[str, Parent] = _once(valid, Part.PARENT, lambda file: file.parents, broken)
    _one_name_for_each_place(roots, valid, broken)
    teams: dict[str, Channels] = {}
    for file in valid:
        for team, channels in file.teams.items():
            if teams.setdefault(team, channels) != channels:
                what = f"teams.{team} has other channels in another file, which are used"
                broken.append(file.ambiguous(Part.TEAM, team, what, "keep one of both tables"))
    for one in broken:
        teams = {**one.teams, **teams}
    only = valid[0] if len(files) == 1 and valid else None
    return Configuration(
        roots,
        only.owned if only else Policies(),
        parents,
        only.prices if only else Prices(),
        teams=teams,
        files={file.path: file.tables for file in valid},
        broken={one.subject: one for one in broken},
        outputs=only.outputs if only else Outputs(),
        submit=only.submit if only else (),
    )


def _once(
    files: Sequence[_File], part: Part, of: Callable[[_File], Mapping[str, Any]], broken: list[Broken]
) -> dict[str, Any]:
    """Return the roots or parents that one file defines; those of several files are broken."""
    places: dict[str, list[_File]] = {}
    for file in files:
        for name in (*of(file), *(one.name for one in file.broken if one.part is part)):
            places.setdefault(name, []).append(file)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    broken[:] = [one for one in broken if one.part is not part or one.name not in twice]
    for name, found in twice.items():
        for file in found:
            others = ", ".join(one.path for one in found if one is not file)
            what = f"{part.value}.{name} is also in {others}; {_NOT_MAINTAINED}"
            broken.append(file.ambiguous(part, name, what, "remove one of them, or give it another name"))
    return {name: of(file)[name] for name, (file, *others) in places.items() if not others and name in of(file)}


def _one_name_for_each_place(roots: dict[str, Root], files: Sequence[_File], broken: list[Broken]) -> None:
    """Remove roots with the URL of another root: two policies would apply to one checkpoint."""
    by_path = {file.path: file for file in files}
    places: dict[tuple[object, ...], list[Root]] = {}
    for root in roots.values():
        places.setdefault(place_of(root.spec), []).append(root)
    for found in places.values():
        for root in found if len(found) > 1 else ():
            others = ", ".join(f"roots.{one.name} in {one.file}" for one in found if one is not root)
            what = f"roots.{root.name} has the URL of {others}; {_NOT_MAINTAINED}"
            broken.append(by_path[root.file].ambiguous(Part.ROOT, root.name, what, "remove one of them"))
            del roots[root.name]


_NOT_MAINTAINED = "neither is maintained, because it is unknown which one is meant"


def place_of(spec: StorageSpec) -> tuple[object, ...]:
    """Return the identity of a place: its URL in one spelling, and the endpoint that has it."""
    path = spec.url.removeprefix("file://")
    url = spec.url if "://" in path else os.path.normpath(path)
    return url, dict(spec.options).get("endpoint_url")


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file that can be used. `broken`: its roots and parents that cannot."""

    path: str
    tables: PolicyTables
    roots: Mapping[str, Root]
    parents: Mapping[str, Parent]
    teams: Mapping[str, Channels]
    prices: Prices
    submit: tuple[str, ...]
    broken: tuple[Broken, ...]
    outputs: Outputs

    @property
    def owned(self) -> Policies:
        return resolved([self.tables.defaults])

    def owned_of(self, name: str) -> Policies:
        """The policies of a root or parent; those for all queries of the file if its own are broken."""
        found = self.roots.get(name) or self.parents.get(name)
        return found.policies if found else resolved(self.tables.layers(name))

    def ambiguous(self, part: Part, name: str, what: str, hint: str) -> Broken:
        """A table that another one contradicts."""
        error = BadConfiguration(what, path=self.path, hint=hint)
        owned = self.owned if part is Part.TEAM else self.owned_of(name)
        return Broken(part=part, name=name, file=self.path, error=error, owned=owned, is_ambiguous=True)


def _read(path: Path) -> _File | Broken:
    try:
        data = _data(path)
    except BadConfiguration as error:
        return Broken(part=Part.FILE, file=str(path), error=error)
    reader = _Reader(path)
    try:
        return reader.file(_parsed(path, data))
    except BadConfiguration as error:
        owned, teams = reader.people(_beginning(path, data))
        return Broken(part=Part.FILE, file=str(path), error=error, owned=owned, teams=teams)


def _beginning(path: Path, data: bytes) -> dict[str, Any]:
    """Parse the tables of an invalid file before the one with the error, which usually is the last edited one."""
    try:
        return _parsed(path, data)
    except BadConfiguration as error:
        found = re.search(r"at line ([0-9,]+)", error.what)
    lines = data.splitlines(keepends=True)[: int(found[1].replace(",", "")) if found else None]
    starts = [number for number, line in enumerate(lines) if line.startswith(b"[")]
    with suppress(BadConfiguration):
        return _parsed(path, b"".join(lines[: starts[-1]] if starts else []))
    return {}


def _data(path: Path) -> bytes:
    """Read a file. Raises `BadConfiguration`."""
    try:
        with path.open("rb") as opened:
            data = opened.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        hint = "set --config or STATEKEEPER_CONFIG to a readable file"
        raise BadConfiguration(error.strerror or str(error), path=str(path), hint=hint) from error
    if len(data) > MOST_FILE_BYTES:
        what = f"is larger than the limit of {MOST_FILE_BYTES // 1024:,} KiB"
        raise BadConfiguration(what, path=str(path), hint="divide it into several files")
    return data


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    """Parse the content of a file. Raises `BadConfiguration`."""
    for number, line in enumerate(data.splitlines(), 1):
        if line.count(b".") > _MOST_DOTS and not line.lstrip().startswith(b"#"):
            what = f"line {number:,} has more than {_MOST_DOTS} dots"
            raise BadConfiguration(what, path=str(path), hint="correct the TOML syntax")
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        # `UnicodeDecodeError` and `TOMLDecodeError` are ValueErrors, and so is the error of a number with 5,000 digits.
        what = str(error) if isinstance(error, ValueError) else "has too many nested brackets"
        raise BadConfiguration(what, path=str(path), hint="correct the TOML syntax") from error


@cache
def matching(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern, in which `*` is any text."""
    # Its expressions have no backtracking, which would be endless for a forged pattern with many `*`.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]").replace("?", "[?]")))


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def file(self, body: dict[str, Any]) -> _File:
        """Read a file. Raises `BadConfiguration` for an error outside of the tables of roots and parents."""
        known = ("defaults", "policies", "roots", "parents", "teams", "prices", "history", "report", "spark")
        self.require_known(body, known, "")
        patterns = self.table(body, "policies", "")
        for pattern in patterns:
            if not pattern or len(pattern) > _LONGEST_TEXT:
                what = f"is no pattern of 1 to {_LONGEST_TEXT} characters"
                raise self._bad(
                    f"policies.{_shown(pattern)}", what, "write a pattern of names, for example 'payments-*'"
                )
        tables = PolicyTables(
            self.layer(self.table(body, "defaults", ""), "defaults"),
            tuple(
                self.layer(self.table(patterns, one, "policies."), f'policies."{one}"', pattern=one) for one in patterns
            ),
        )
        teams = {name: self.channels(name, of_team) for name, of_team in self.named_tables(body, "teams")}
        prices = self.prices(self.table(body, "prices", ""))
        outputs = self.outputs(body)
        submit = self.submit(self.table(body, "spark", ""))
        roots: dict[str, Root] = {}
        parents: dict[str, Parent] = {}
        broken: list[Broken] = []

        def attempt(part: Part, read: Callable[[str, dict[str, Any]], None]) -> None:
            for name, of_name in self.table(body, part.value, "").items():
                try:
                    read(name, self.named_table(body, part.value, name))
                except BadConfiguration as error:
                    owned = self._owned(of_name, tables, name)
                    broken.append(Broken(part=part, name=name, file=str(self._path), error=error, owned=owned))

        def root(name: str, of: dict[str, Any]) -> None:
            roots[name] = replace(self.root(name, of, tables, prices), outputs=outputs, submit=submit)

        def parent(name: str, of: dict[str, Any]) -> None:
            parents[name] = replace(self.parent(name, of, tables, prices), outputs=outputs, submit=submit)

        attempt(Part.ROOT, root)
        attempt(Part.PARENT, parent)
        return _File(
            path=str(self._path),
            tables=tables,
            roots=roots,
            parents=parents,
            teams=teams,
            prices=prices,
            submit=submit,
            broken=tuple(broken),
            outputs=outputs,
        )

    def _owned(self, body: object, tables: PolicyTables, name: str) -> Policies:
        """Return the policies of a broken table, with its team and owner if these are valid."""
        texts = {key: body.get(key) for key in _TEXTS} if isinstance(body, dict) else {}
        changes = {key: text[:_LONGEST_TEXT] for key, text in texts.items() if isinstance(text, str)}
        return resolved(tables.layers(name, Layer(str(self._path), name, changes)))

    def named_tables(self, body: dict[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the tables of roots, parents or teams with their names."""
        for name in self.table(body, kind, ""):
            yield name, self.named_table(body, kind, name)

    def named_table(self, body: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
        """Return the table of a root, parent or team."""
        if not _NAME.fullmatch(name) or len(name) > _LONGEST_TEXT:
            raise self._bad(f"{kind}.{_shown(name)}", "is not a valid name", "use letters, digits, '_' and '-'")
        return self.table(self.table(body, kind, ""), name, f"{kind}.")

    def people(self, body: dict[str, Any]) -> tuple[Policies, Mapping[str, Channels]]:
        """Return the team and the owner of an invalid file, and the channels of its teams, as far as they are valid."""
        tables = PolicyTables(Layer(str(self._path), "defaults"))
        teams: dict[str, Channels] = {}
        found = body.get("teams")
        for name in found if isinstance(found, dict) else ():
            with suppress(BadConfiguration):
                teams[name] = self.channels(name, self.named_table(body, "teams", name))
        return self._owned(body.get("defaults"), tables, ""), teams

    def channels(self, name: str, body: dict[str, Any]) -> Channels:
        where = f"teams.{name}."
        self.require_known(body, tuple(one.name for one in fields(Channels)), where)
        return Channels(**{key: self._text(value, f"{where}{key}", 'write "env:NAME"') for key, value in body.items()})

    def _text(self, value: Any, key: str, hint: str, *, longest: int = 2_000) -> str:
        # Do not show the value: it may be a secret.
        if not isinstance(value, str):
            raise self._bad(key, "is not a string", hint)
        if len(value) > longest:
            raise self._bad(key, f"has more than {longest:,} characters", hint)
        return value

    def prices(self, body: dict[str, Any]) -> Prices:
        self.require_known(body, tuple(one.name for one in fields(Prices)), "prices.")
        for key, value in body.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _HIGHEST_PRICE:
                of = (
                    "10^9 bytes and a month, for example 0.023"
                    if key == "per_gb_month"
                    else "1,000 requests, for example 0.005"
                )
                raise self._bad(f"prices.{key}", f"is {_shown(value)}", f"write the dollars of {of}")
        return Prices(**{key: float(value) for key, value in body.items()})

    def outputs(self, body: dict[str, Any]) -> Outputs:
        """Return the places of the tables of history and of the reports."""
        found: dict[str, Any] = {}
        for name, others in (("history", ("keep",)), ("report", ())):
            table = self.table(body, name, "")
            self.require_known(table, ("url", "storage", *others), f"{name}.")
            if table:
                found[name] = self._spec(table, name, SizeLimits())
            if "keep" in table:
                found["keep_seconds"] = self._duration(table["keep"], f"{name}.keep")
        return Outputs(**found)

    def submit(self, body: dict[str, Any]) -> tuple[str, ...]:
        """Return the command that starts Spark; empty without one."""
        self.require_known(body, ("submit",), "spark.")
        words = body.get("submit", [])
        hint = 'write a list of words: submit = ["spark-submit", "--master", "yarn"]'
        if not isinstance(words, list) or not all(isinstance(one, str) and one for one in words):
            raise self._bad("spark.submit", "is not a list of strings", hint)
        if "submit" in body and not words:
            raise self._bad("spark.submit", "is empty", hint)
        for word in words:
            if len(word) > _LONGEST_WORD:
                raise self._bad("spark.submit", f"has a word with more than {_LONGEST_WORD:,} characters", hint)
            if has_secret(word):
                # Do not show the value.
                raise self._bad(
                    "spark.submit",
                    f"has a secret: {_shown(word.partition('=')[0])}; each user of the machine sees the words of a command",
                    "set it in the environment of spark-submit, in its spark-defaults.conf, or use a role of the machine",
                )
        return tuple(words)

    def root(self, name: str, body: dict[str, Any], tables: PolicyTables, prices: Prices) -> Root:
        where = f"roots.{name}"
        layers = tables.layers(name, self._own_layer(body, where))
        policies = resolved(layers)
        if isinstance(url := body.get("url"), str) and "*" in url:
            raise self._bad(
                f"{where}.url", "has a *", f"write the table as [parents.{name}]: it is of several checkpoints"
            )
        spec, mirror = self._spec(body, where, policies.limits), self._mirror(body, where)
        return Root(
            name,
            spec,
            policies,
            mirror,
            file=str(self._path),
            layers=layers,
            prices=prices,
            state_tables=self._state_tables(body, where),
            sinks=self._sinks(body, where),
        )

    def parent(self, name: str, body: dict[str, Any], tables: PolicyTables, prices: Prices) -> Parent:
        where = f"parents.{name}"
        below = body.get("below", "")
        if not isinstance(below, str) or any(
            part in ("", ".", "..") or "*" in part for part in below.split("/") if below
        ):
            raise self._bad(f"{where}.below", f"is {_shown(below)}", 'write a relative folder: below = "state"')
        forget = self._duration(body.get("forget_after", "1d"), f"{where}.forget_after")
        own = self._own_layer(body, where, "below", "forget_after")
        policies = resolved((tables.defaults, own))
        url, pattern = self._divided(body.get("url"), f"{where}.url")
        return Parent(
            name=name,
            spec=self._spec({**body, "url": url}, where, policies.limits),
            policies=policies,
            pattern=pattern,
            below=below,
            forget_seconds=forget,
            mirror=self._mirror(body, where),
            state_tables=self._state_tables(body, where),
            sinks=self._sinks(body, where),
            file=str(self._path),
            tables=tables,
            own=own,
            prices=prices,
        )

    def _divided(self, url: Any, key: str) -> tuple[Any, str]:
        """Divide the URL of a parent into the folder before the first `*`, and the pattern below it."""
        if not isinstance(url, str) or "*" not in url:
            return url, "*"
        segments = url.rstrip("/").split("/")
        first = next(number for number, one in enumerate(segments) if "*" in one)
        if "://" in url and first < 3:
            raise self._bad(key, "has a * in the name of the bucket", "name the bucket")
        if any("**" in one or one in ("", ".", "..") for one in segments[first:]):
            raise self._bad(
                key, f"is {_shown(url)}", 'write one * for each folder, such as "s3://bucket/jobs/*/checkpoint"'
            )
        base = "/".join(segments[:first])
        if not base or base.endswith("//"):
            base += "/" if url.startswith(("/", "file:")) else "."
        return base, "/".join(segments[first:])

    def _spec(self, body: dict[str, Any], where: str, limits: SizeLimits) -> StorageSpec:
        url = body.get("url")
        if not isinstance(url, str):
            raise self._bad(f"{where}.url", "is missing or not a string", 'write url = "s3://bucket/folder" or a path')
        options = self.table(body, "storage", f"{where}.")
        stated = tuple((key, str(value)) for key, value in options.items())
        return StorageSpec(self._absolute(url), stated, limits=limits)

    def _absolute(self, url: str) -> str:
        return canonical(url if _SCHEME.match(url) else str(self._path.parent / url))

    def _mirror(self, body: dict[str, Any], where: str) -> MirrorPolicy | None:
        table = self.table(body, "mirror", f"{where}.")
        self.require_known(table, ("url", "lag", "location"), f"{where}.mirror.")
        if not table:
            return None
        url = table.get("url")
        if not isinstance(url, str):
            raise self._bad(f"{where}.mirror.url", "is missing or not a string", 'write url = "s3://replica/folder"')
        lag = self._duration(table["lag"], f"{where}.mirror.lag") if "lag" in table else MirrorPolicy.lag_seconds
        location = table.get("location")
        if location is not None and not isinstance(location, str):
            raise self._bad(f"{where}.mirror.location", "is not a string", 'write location = "s3a://replica/folder"')
        return MirrorPolicy(self._absolute(url), lag, location)

    def _state_tables(self, body: dict[str, Any], where: str) -> tuple[StateTable, ...]:
        tables = self.table(body, "tables", f"{where}.")
        return tuple(self._state_table(name, tables, f"{where}.tables") for name in sorted(tables))

    def _state_table(self, name: str, tables: dict[str, Any], where: str) -> StateTable:
        known = tuple(one.name for one in fields(StateTable) if one.name != "name")
        body, key, url = self._named_location(name, tables, where, known)
        given: dict[str, Any] = {"name": name, "url": url}
        for one in _TEXTS_OF_TABLE:
            if one in body:
                given[one] = self._text(body[one], f"{key}.{one}", "write a name", longest=_LONGEST_TEXT)
        for one in _LISTS_OF_TABLE:
            given[one] = self._list(body, one, key)
        for one in _FLAGS_OF_TABLE:
            given[one] = self._flag(body, one, key, default=False)
        operator = body.get("operator")
        if operator is not None and (isinstance(operator, bool) or not isinstance(operator, int) or operator < 0):
            raise self._bad(f"{key}.operator", f"is {_shown(operator)}", "write the number of an operator")
        rename = self.table(body, "rename", f"{key}.")
        if not all(isinstance(value, str) and value for value in rename.values()):
            raise self._bad(f"{key}.rename", "has a value that is not a name", 'write rename = { old = "new" }')
        return StateTable(**given, operator=operator, rename=rename)

    def _named_location(
        self, name: str, tables: dict[str, Any], where: str, known: tuple[str, ...]
    ) -> tuple[dict[str, Any], str, str]:
        """Return the table of a Delta table, its key, and its URL."""
        body, key = self.table(tables, name, f"{where}."), f"{where}.{name[:_LONGEST_SHOWN]}"
        if not _NAME.fullmatch(name):
            raise self._bad(key, "is not a valid name", "use letters, digits, '_' and '-'")
        self.require_known(body, known, f"{key}.")
        if not isinstance(url := body.get("url"), str):
            raise self._bad(f"{key}.url", "is missing or not a string", 'write url = "s3://lake/table"')
        return body, key, self._absolute(url)

    def _list(self, body: dict[str, Any], name: str, key: str) -> tuple[str, ...]:
        values = body.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self._bad(f"{key}.{name}", "is not a list of strings", f'write {name} = ["..."]')
        return tuple(values)

    def _flag(self, body: dict[str, Any], name: str, key: str, *, default: bool) -> bool:
        value = body.get(name, default)
        if not isinstance(value, bool):
            raise self._bad(f"{key}.{name}", "is not true or false", f"write {name} = {str(not default).lower()}")
        return value

    def _sinks(self, body: dict[str, Any], where: str) -> tuple[SinkTable, ...]:
        tables = self.table(body, "sinks", f"{where}.")
        return tuple(self._sink(name, tables, f"{where}.sinks") for name in sorted(tables))

    def _sink(self, name: str, tables: dict[str, Any], where: str) -> SinkTable:
        body, key, url = self._named_location(name, tables, where, _KEYS_OF_SINK)
        given: dict[str, Any] = {}
        if "keep_readers" in body:
            given["keep_readers_seconds"] = self._duration(body["keep_readers"], f"{key}.keep_readers")
        mib = body.get("file_mib", SinkTable.file_mib)
        if not isinstance(mib, int) or isinstance(mib, bool) or not 1 <= mib <= MOST_MIB:
            raise self._bad(f"{key}.file_mib", f"is {_shown(mib)}", f"write a number of MiB from 1 to {MOST_MIB:,}")
        return SinkTable(
            name=name,
            url=url,
            file_mib=mib,
            no_compact=not self._flag(body, "compact", key, default=True),
            no_vacuum=not self._flag(body, "vacuum", key, default=True),
            retired_queries=self._list(body, "retired_queries", key),
            **given,
        )

    # -- policies -------------------------------------------------------------------------------------------------------

    def _own_layer(self, body: dict[str, Any], where: str, *others: str) -> Layer:
        """Return the policies of a root or parent, whose table also has `url`, `storage`, `mirror`, `tables`,
        `sinks` and `others`."""
        beside = ("url", "storage", "mirror", "tables", "sinks", *others)
        self.require_known(body, (*_POLICY_KEYS, *beside), f"{where}.")
        return self.layer({key: value for key, value in body.items() if key not in beside}, where)

    def layer(self, body: dict[str, Any], where: str, pattern: str = "") -> Layer:
        """Return the policies of a table."""
        self.require_known(body, _POLICY_KEYS, f"{where}.")
        changes: dict[str, Any] = {}
        for key, choices in _CHOICES.items():
            if key in body:
                try:
                    changes[key] = choices(body[key])
                except ValueError:
                    known = ", ".join(str(one.value) for one in choices)
                    raise self._bad(f"{where}.{key}", f"is {_shown(body[key])}", f"write one of {known}") from None
        for key, hint in _TEXTS.items():
            if key in body:
                changes[key] = self._text(body[key], f"{where}.{key}", hint, longest=_LONGEST_TEXT)
        for table in _FIELDS:
            changes |= self._policy(self.table(body, table, f"{where}."), table, f"{where}.{table}.")
        labels = self.table(body, "labels", f"{where}.")
        if len(labels) > _MOST_LABELS:
            raise self._bad(f"{where}.labels", f"has {len(labels):,} labels", f"write at most {_MOST_LABELS}")
        for name, value in labels.items():
            key = f"{where}.labels.{name[:_LONGEST_SHOWN]}"
            if len(name) > _LONGEST_TEXT:
                raise self._bad(key, "is too long", f"write at most {_LONGEST_TEXT} characters")
            changes[f"labels.{name}"] = self._text(value, key, 'write a text: tier = "1"', longest=_LONGEST_TEXT)
        return Layer(str(self._path), where, changes, pattern)

    def _policy(self, body: dict[str, Any], table: str, where: str) -> dict[str, Any]:
        """Return the values of a table of a policy, by their keys with the name of the table."""
        known = _FIELDS[table]
        for former, key in _FORMER_KEYS.items():
            if key in known and former in body and key not in body:
                body = {**body, key: body[former]}
                del body[former]
        self.require_known(body, tuple(known), where)
        return {f"{table}.{key}": self._value(value, known[key], f"{where}{key}") for key, value in body.items()}

    def _value(self, value: Any, name: str, key: str) -> Any:
        if name.endswith("_seconds"):
            found = self._duration(value, key)
            if name == "deep_every_seconds" and found < LEAST_DEEP_EVERY_SECONDS:
                raise self._bad(key, f"is {_shown(value)}", "write at least 1h, for example 30d")
            return found
        if name == "window":
            return self._window(value, key)
        if name.endswith("_bytes"):
            try:
                size = bytes_of_mib(value)
                SizeLimits(**{name: size})
            except (TypeError, ValueError) as error:
                raise self._bad(key, f"is {_shown(value)}", f"write a number of MiB: {error}") from None
            return size
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
            raise self._bad(key, f"is {_shown(value)}", "write a whole number above zero")
        return value

    def _window(self, value: Any, key: str) -> tuple[int, int]:
        found = _WINDOW.fullmatch(value) if isinstance(value, str) else None
        if found is not None:
            start, end = int(found[1]) * 60 + int(found[2]), 24 * 60
            if found[3] is not None:
                end = int(found[3]) * 60 + int(found[4])
            if start != end:
                return start, end
        raise self._bad(key, f"is {_shown(value)}", 'write start and end in UTC, for example "22:00-06:00"')

    def _duration(self, value: Any, key: str) -> float:
        try:
            found = parse_duration(value)
        except (ValueError, AttributeError):
            found = math.inf
        if not found < math.inf:
            raise self._bad(key, f"is {_shown(value)}", "write a number and a unit, for example 90s, 10m, 1h or 7d")
        return found

    def table(self, body: dict[str, Any], key: str, where: str) -> dict[str, Any]:
        """Return the table at a key; empty if the key is missing."""
        found = body.get(key, {})
        if not isinstance(found, dict):
            # Do not show the value: storage options that are written as a string contain credentials.
            raise self._bad(
                f"{where}{key}", f"has type {type(found).__name__}, but must be a table", f"write it as [{where}{key}]"
            )
        return found

    def require_known(self, body: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        """Raise `BadConfiguration` for unknown keys, with the nearest known ones."""
        unknown = [key for key in body if key not in known]
        if not unknown:
            return
        near = [one for key in unknown[:5] for one in difflib.get_close_matches(key[:_LONGEST_SHOWN], known, 1)]
        meant = f"did you mean {' and '.join(dict.fromkeys(near))}? Use one of " if near else "use one of "
        first = f"{where}{unknown[0][:_LONGEST_SHOWN]}"
        others = f" ({counted(len(unknown) - 1, 'more unknown key')})" if len(unknown) > 1 else ""
        raise self._bad(first, f"is unknown{others}", f"{meant}{', '.join(known)}")

    def _bad(self, key: str, what: str, hint: str) -> BadConfiguration:
        return BadConfiguration(f"{key} {what}", path=str(self._path), hint=hint)


def _shown(value: object) -> str:
    """Return a wrong value for an error, without secrets and of a limited length."""
    text = redacted(repr(value) if not isinstance(value, int) or abs(value) < 2**64 else "a large number")
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
