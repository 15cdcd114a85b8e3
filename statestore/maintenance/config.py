"""`statekeeper.toml`: which checkpoints there are, and how each is looked after.

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

What a root does not say comes from `[defaults]`, what that does not say from the policies' own defaults. A relative path
is taken from the file's folder. An unknown key is an error: a misspelt policy would be no policy.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from statestore.errors import BadConfiguration
from statestore.maintenance.retention import RetentionPolicy
from statestore.maintenance.snapshot import SnapshotPolicy
from statestore.storage import StorageSpec

FILE_NAME = "statekeeper.toml"

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd])")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

P = TypeVar("P", SnapshotPolicy, RetentionPolicy)


class Mode(Enum):
    """What may be done to a checkpoint."""

    OBSERVE = "observe"
    """Nothing is written below its root."""
    SNAPSHOTS = "snapshots"
    """Snapshots are made, nothing is deleted."""
    FULL = "full"


@dataclass(frozen=True)
class Policies:
    """How a checkpoint is looked after. `mode` None: `full` for a root of our own jobs, `observe` for one of Spark's."""

    snapshot: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    mode: Mode | None = None

    def mode_for(self, *, is_own: bool) -> Mode:
        """What may be done."""
        return self.mode or (Mode.FULL if is_own else Mode.OBSERVE)


@dataclass(frozen=True)
class Root:
    """A configured checkpoint."""

    name: str
    spec: StorageSpec
    policies: Policies


@dataclass(frozen=True)
class Configuration:
    """What the file says; without one there are no roots, and the defaults hold."""

    roots: Mapping[str, Root] = field(default_factory=dict)
    defaults: Policies = field(default_factory=Policies)

    def find(self, name_or_url: str) -> Root:
        """The root of that name or URL; one that is not configured gets the defaults."""
        if name_or_url in self.roots:
            return self.roots[name_or_url]
        for root in self.roots.values():
            if root.spec.url == name_or_url:
                return root
        return Root(name_or_url, StorageSpec(name_or_url), self.defaults)


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `10m`, `1h`, `7d`. Raises `ValueError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 90s, 10m, 1h or 7d")
    return float(match["count"]) * _UNITS[match["unit"]]


def load(path: Path) -> Configuration:
    """The configuration in a file. Raises `BadConfiguration` with the file, the key and what it should be."""
    try:
        body = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfiguration(str(error), path=str(path), hint="write it as TOML") from error
    reader = _Reader(path)
    reader.require_known(body, ("defaults", "roots"), "")
    defaults = reader.policies(reader.table(body, "defaults", ""), Policies(), "defaults")
    roots = {
        name: reader.root(name, reader.table(reader.table(body, "roots", ""), name, "roots."), defaults)
        for name in reader.table(body, "roots", "")
    }
    return Configuration(roots, defaults)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def root(self, name: str, body: dict[str, Any], defaults: Policies) -> Root:
        where = f"roots.{name}"
        policies = self.policies(
            {key: value for key, value in body.items() if key not in ("url", "storage")}, defaults, where
        )
        url = body.get("url")
        if not isinstance(url, str):
            raise self._bad(f"{where}.url", "is missing or no text", 'write url = "s3://bucket/folder" or a path')
        options = self.table(body, "storage", f"{where}.")
        if not _SCHEME.match(url):
            url = str(self._path.parent / url)
        return Root(name, StorageSpec(url, tuple((key, str(value)) for key, value in options.items())), policies)

    def policies(self, body: dict[str, Any], defaults: Policies, where: str) -> Policies:
        self.require_known(body, ("snapshot", "retention", "mode"), f"{where}.")
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
        )

    def _policy(self, body: dict[str, Any], default: P, where: str) -> P:
        """Fields by their names; those that count seconds are written as durations, without `_seconds`."""
        known = {one.name.removesuffix("_seconds"): one.name for one in fields(default)}
        self.require_known(body, tuple(known), where)
        changes: dict[str, Any] = {}
        for key, value in body.items():
            if known[key].endswith("_seconds"):
                try:
                    changes[known[key]] = parse_duration(value)
                except (ValueError, AttributeError):
                    raise self._bad(f"{where}{key}", f"is {value!r}", "write 90s, 10m, 1h or 7d") from None
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._bad(f"{where}{key}", f"is {value!r}", "write a whole number above zero")
            else:
                changes[known[key]] = value
        return replace(default, **changes)

    def table(self, body: dict[str, Any], key: str, where: str) -> dict[str, Any]:
        """A table below a key; empty when it is not there."""
        found = body.get(key, {})
        if not isinstance(found, dict):
            raise self._bad(f"{where}{key}", f"is {found!r}", f"write it as a table: [{where}{key}]")
        return found

    def require_known(self, body: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        """Raises `BadConfiguration` for another key."""
        for key in body:
            if key not in known:
                raise self._bad(f"{where}{key}", "is not known", f"known are {', '.join(known)}")

    def _bad(self, key: str, what: str, hint: str) -> BadConfiguration:
        return BadConfiguration(f"{key} {what}", path=str(self._path), hint=hint)
