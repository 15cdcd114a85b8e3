"""Read `statekeeper.toml`: the checkpoints and their maintenance policies.

    [defaults.snapshot]
    changelogs = 50

    [defaults.retention]
    versions = 100
    grace = "1h"

    [roots.flights]
    url = "s3://bucket/flights/state"
    mode = "full"
    storage = { endpoint_url = "http://127.0.0.1:9000" }
    retention = { versions = 200 }
    mirror = { url = "s3://replica/flights", lag = "10m" }

    [parents.jobs]
    url = "s3://bucket/jobs"
    below = "state"
    forget_after = "1d"

    [roots.sessions]
    url = "s3://bucket/sessions/state"
    limits = { record_mib = 256 }

    [teams.payments]
    slack = "env:PAYMENTS_SLACK"

    [prices]
    per_1000_writes = 0.005
    per_1000_reads = 0.0004

A root inherits missing keys from `[defaults]`, and `[defaults]` from the defaults of the policies. A relative path is
relative to the file's folder. An unknown key is an error, so that a misspelt policy is not ignored.

A parent is a folder with a changing set of checkpoints. Its folder `orders` is the root `jobs.orders`, here with the
checkpoint in `s3://bucket/jobs/orders/state`. Its keys apply to all of them.

The limits of a root are those of its job, see `SizeLimits`.

The team of a root, `team = "payments"`, gets the notices of its problems through its channels; the team `default`, of
all roots without a team. A channel is a value, or `env:NAME` for the environment variable that has it.

The prices of requests, in dollars, are only shown. The defaults are those of S3 Standard.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from statekeeper.statestore.base.durations import parse_duration
from statekeeper.statestore.base.errors import BadConfiguration
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

P = TypeVar("P", SnapshotPolicy, RetentionPolicy)

_FORMER_KEYS = {"aside": "quarantine"}
"""Renamed keys of a policy, by former key, which works for one more release."""


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


@dataclass(frozen=True)
class Policies:
    """The policies of a checkpoint. `mode` None: `full` for a Python job, `observe` for a native checkpoint. `limits` are
    also in the spec of a root. `team` and `owner`: who gets its notices."""

    snapshot: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    mode: Mode | None = None
    limits: SizeLimits = field(default_factory=SizeLimits)
    _: KW_ONLY
    team: str = ""
    owner: str = ""

    def mode_for(self, origin: Origin) -> Mode:
        """Return the mode of a checkpoint."""
        return self.mode or (Mode.FULL if origin is Origin.OWN else Mode.OBSERVE)


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


@dataclass(frozen=True)
class Root:
    """A configured checkpoint. `mirror`: None if it has none."""

    name: str
    spec: StorageSpec
    policies: Policies
    mirror: MirrorPolicy | None = None


@dataclass(frozen=True, kw_only=True)
class Parent:
    """A configured folder of checkpoints. `below`: the path of the checkpoint in each folder; "" for the folder itself.
    `forget_seconds`: how long a missing checkpoint is remembered. `mirror`: with a folder of the same name for each."""

    name: str
    spec: StorageSpec
    policies: Policies
    below: str = ""
    forget_seconds: float = 86_400.0
    mirror: MirrorPolicy | None = None

    def child(self, folder: str) -> Root:
        """Return the root of a folder. Raises `ValueError` for an invalid name."""
        if not _NAME.fullmatch(folder):
            raise ValueError(f"{folder!r} is not a valid root name: use letters, digits, '_' and '-'")
        url = "/".join(part.rstrip("/") for part in (self.spec.url, folder, self.below) if part)
        mirror = self.mirror and self.mirror.inside(folder)
        return Root(f"{self.name}.{folder}", replace(self.spec, url=url), self.policies, mirror)

    def child_at(self, url: str) -> Root | None:
        """Return the root with this URL; None if it is not in this parent."""
        folder = url.removeprefix(f"{self.spec.url.rstrip('/')}/").partition("/")[0]
        child = self.child(folder) if _NAME.fullmatch(folder) else None
        return child if child is not None and child.spec.url == url else None


@dataclass(frozen=True)
class Configuration:
    """The parsed file; without a file, no roots and the default policies."""

    roots: Mapping[str, Root] = field(default_factory=dict)
    defaults: Policies = field(default_factory=Policies)
    parents: Mapping[str, Parent] = field(default_factory=dict)
    prices: Prices = field(default_factory=Prices)
    _: KW_ONLY
    teams: Mapping[str, Channels] = field(default_factory=dict)

    def channels_of(self, team: str) -> Channels:
        """Return the channels of a team; those of the team `default` without a team of this name."""
        return self.teams.get(team) or self.teams.get(DEFAULT_TEAM) or Channels()

    def names(self, query: str) -> bool:
        """Return whether this configuration names a query: as a root, or as a folder of a parent, which need not exist."""
        parent, dot, _ = query.partition(".")
        return query in self.roots or bool(dot and parent in self.parents)

    def find(self, name_or_url: str) -> Root:
        """Return the root of a name or URL, in any spelling; an unconfigured root gets the defaults."""
        if name_or_url in self.roots:
            return self.roots[name_or_url]
        url = canonical(name_or_url)
        for root in self.roots.values():
            if root.spec.url == url:
                return root
        parent, _, folder = name_or_url.partition(".")
        if parent in self.parents and _NAME.fullmatch(folder):
            return self.parents[parent].child(folder)
        for one in self.parents.values():
            if child := one.child_at(url):
                return child
        return Root(name_or_url, StorageSpec(url, limits=self.defaults.limits), self.defaults)


def with_options_of(source: StorageSpec, spec: StorageSpec) -> StorageSpec:
    """Return the spec of a destination. Without options of its own, it has those of the source if both URLs have one
    scheme. Without limits of its own, it has those of the source."""
    if spec.limits == SizeLimits():
        spec = replace(spec, limits=source.limits)
    scheme, separator, _ = spec.url.partition("://")
    is_alike = separator and source.url.startswith(f"{scheme}://")
    return replace(spec, options=source.options) if is_alike and not spec.options else spec


def load(path: Path) -> Configuration:
    """Read a configuration file. Raises `BadConfiguration` with the file, the key and a valid value."""
    try:
        body = tomllib.loads(path.read_text())
    except OSError as error:
        hint = "set --config or STATEKEEPER_CONFIG to a readable file"
        raise BadConfiguration(error.strerror or str(error), path=str(path), hint=hint) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfiguration(str(error), path=str(path), hint="correct the TOML syntax") from error
    reader = _Reader(path)
    reader.require_known(body, ("defaults", "roots", "parents", "teams", "prices"), "")
    defaults = reader.policies(reader.table(body, "defaults", ""), Policies(), "defaults")
    roots = {name: reader.root(name, of_root, defaults) for name, of_root in reader.named_tables(body, "roots")}
    parents = {
        name: reader.parent(name, of_parent, defaults) for name, of_parent in reader.named_tables(body, "parents")
    }
    teams = {name: reader.channels(name, of_team) for name, of_team in reader.named_tables(body, "teams")}
    return Configuration(roots, defaults, parents, reader.prices(reader.table(body, "prices", "")), teams=teams)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def named_tables(self, body: dict[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the tables of roots or parents with their names."""
        tables = self.table(body, kind, "")
        for name in tables:
            if not _NAME.fullmatch(name):
                raise self._bad(f"{kind}.{name!r}", "is not a valid name", "use letters, digits, '_' and '-'")
            yield name, self.table(tables, name, f"{kind}.")

    def channels(self, name: str, body: dict[str, Any]) -> Channels:
        where = f"teams.{name}."
        self.require_known(body, tuple(one.name for one in fields(Channels)), where)
        return Channels(**{key: self._text(value, f"{where}{key}", 'write "env:NAME"') for key, value in body.items()})

    def _text(self, value: Any, key: str, hint: str) -> str:
        # Do not show the value: it may be a secret.
        if not isinstance(value, str):
            raise self._bad(key, "is not a string", hint)
        return value

    def prices(self, body: dict[str, Any]) -> Prices:
        self.require_known(body, tuple(one.name for one in fields(Prices)), "prices.")
        for key, value in body.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise self._bad(
                    f"prices.{key}", f"is {value!r}", "write the dollars of 1,000 requests, for example 0.005"
                )
        return Prices(**{key: float(value) for key, value in body.items()})

    def root(self, name: str, body: dict[str, Any], defaults: Policies) -> Root:
        where = f"roots.{name}"
        policies = self._own_policies(body, defaults, where)
        return Root(name, self._spec(body, where, policies.limits), policies, self._mirror(body, where))

    def parent(self, name: str, body: dict[str, Any], defaults: Policies) -> Parent:
        where = f"parents.{name}"
        below = body.get("below", "")
        if not isinstance(below, str) or any(part in ("", ".", "..") for part in below.split("/") if below):
            raise self._bad(f"{where}.below", f"is {below!r}", 'write a relative folder: below = "state"')
        forget = self._duration(body.get("forget_after", "1d"), f"{where}.forget_after")
        policies = self._own_policies(body, defaults, where, "below", "forget_after")
        return Parent(
            name=name,
            spec=self._spec(body, where, policies.limits),
            policies=policies,
            below=below,
            forget_seconds=forget,
            mirror=self._mirror(body, where),
        )

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

    def _own_policies(self, body: dict[str, Any], defaults: Policies, where: str, *others: str) -> Policies:
        """Return the policies of a root or parent, whose table also has `url`, `storage`, `mirror` and `others`."""
        beside = ("url", "storage", "mirror", *others)
        return self.policies({key: value for key, value in body.items() if key not in beside}, defaults, where)

    def policies(self, body: dict[str, Any], defaults: Policies, where: str) -> Policies:
        self.require_known(body, ("snapshot", "retention", "mode", "limits", "team", "owner"), f"{where}.")
        mode = defaults.mode
        if "mode" in body:
            try:
                mode = Mode(body["mode"])
            except ValueError:
                modes = ", ".join(one.value for one in Mode)
                raise self._bad(f"{where}.mode", f"is {body['mode']!r}", f"write one of {modes}") from None
        return Policies(
            self._policy(self.table(body, "snapshot", f"{where}."), defaults.snapshot, f"{where}.snapshot."),
            self._policy(self.table(body, "retention", f"{where}."), defaults.retention, f"{where}.retention."),
            mode,
            self._limits(self.table(body, "limits", f"{where}."), defaults.limits, f"{where}.limits."),
            team=self._text(body.get("team", defaults.team), f"{where}.team", 'write team = "payments"'),
            owner=self._text(
                body.get("owner", defaults.owner), f"{where}.owner", 'write owner = "payments@example.com"'
            ),
        )

    def _limits(self, body: dict[str, Any], default: SizeLimits, where: str) -> SizeLimits:
        """Parse the limits: a field `x_bytes` is the key `x_mib`."""
        known = {f"{one.name.removesuffix('_bytes')}_mib": one.name for one in fields(SizeLimits)}
        self.require_known(body, tuple(known), where)
        for key, value in body.items():
            try:
                default = replace(default, **{known[key]: bytes_of_mib(value)})
            except (TypeError, ValueError) as error:
                raise self._bad(f"{where}{key}", f"is {value!r}", f"write a number of MiB: {error}") from None
        return default

    def _policy(self, body: dict[str, Any], default: P, where: str) -> P:
        """Parse a policy. A field `x_seconds` is the key `x` with a duration."""
        known = {one.name.removesuffix("_seconds"): one.name for one in fields(default)}
        for former, key in _FORMER_KEYS.items():
            if key in known and former in body and key not in body:
                body = {**body, key: body[former]}
                del body[former]
        self.require_known(body, tuple(known), where)
        changes: dict[str, Any] = {}
        for key, value in body.items():
            if known[key].endswith("_seconds"):
                changes[known[key]] = self._duration(value, f"{where}{key}")
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._bad(f"{where}{key}", f"is {value!r}", "write a whole number above zero")
            else:
                changes[known[key]] = value
        return replace(default, **changes)

    def _duration(self, value: Any, key: str) -> float:
        try:
            return parse_duration(value)
        except (ValueError, AttributeError):
            raise self._bad(key, f"is {value!r}", "write a number and a unit, for example 90s, 10m, 1h or 7d") from None

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
        """Raise `BadConfiguration` for an unknown key."""
        for key in body:
            if key not in known:
                raise self._bad(f"{where}{key}", "is unknown", f"use one of {', '.join(known)}")

    def _bad(self, key: str, what: str, hint: str) -> BadConfiguration:
        return BadConfiguration(f"{key} {what}", path=str(self._path), hint=hint)
