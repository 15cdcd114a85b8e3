"""Examine a configuration: the policies of each query with their sources, and what is wrong. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from statekeeper.statestore.maintenance.verbs.config import (
    DEFAULT_TEAM,
    Channels,
    Configuration,
    Parent,
    Part,
    Policies,
    Root,
    Setting,
    is_part,
    matching,
    settings,
)
from statekeeper.statestore.maintenance.verbs.fleet import Fleet


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A query with its policies, or a parent if its folders were not listed.

    state  "batch 7", or why there is no batch
    table  of the root or parent in `file`
    """

    name: str
    url: str
    file: str
    table: str
    state: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True, kw_only=True)
class ConfigFinding:
    """What is wrong. `is_unreadable`: a file or a checkpoint could not be read; otherwise the text must be corrected."""

    subject: str
    problem: str
    is_unreadable: bool = False


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result. `teams`: their channels without secrets."""

    explained: tuple[Explained, ...]
    findings: tuple[ConfigFinding, ...]
    teams: Mapping[str, Mapping[str, str]]

    @property
    def is_unreadable(self) -> bool:
        """Whether a file or a checkpoint could not be read."""
        return any(one.is_unreadable for one in self.findings)

    def about(self, names: Collection[str]) -> Checked:
        """Return the part about some of the roots: without the other roots and their findings."""
        others = {one.name for one in self.explained} - set(names)
        return replace(
            self,
            explained=tuple(one for one in self.explained if one.name not in others),
            findings=tuple(one for one in self.findings if one.subject not in others),
        )


def examine(
    configuration: Configuration, found: Fleet | None, *, environment: Mapping[str, str] | None = None
) -> Checked:
    """Examine a configuration. `found`: its checkpoints; None if they were not listed. `environment`: of the process that
    sends the messages; None if it is unknown."""
    named: dict[str, Root | Parent]
    if found is None:
        named = {**configuration.roots, **configuration.parents}
    else:
        named = {name: configuration.find(name) for name in (*configuration.roots, *found.queries, *found.waiting)}
    return Checked(
        explained=tuple(_explained(named[name], found) for name in sorted(named)),
        findings=(
            *_findings(configuration, found, named),
            *(() if environment is None else unset_channels(configuration, environment)),
        ),
        teams={name: without_secrets(channels) for name, channels in sorted(configuration.teams.items())},
    )


def without_secrets(channels: Channels) -> dict[str, str]:
    """Return the channels that a team has: the names of environment variables, and `***` for other values."""
    default = Channels()
    given = {name: value for name, value in vars(channels).items() if value != getattr(default, name)}
    return {name: value if value.startswith("env:") else "***" for name, value in given.items()}


def _explained(one: Root | Parent, found: Fleet | None) -> Explained:
    if isinstance(one, Root):
        table = one.layers[-1].table if one.layers else ""
        explained = settings(one.policies, one.layers)
        return Explained(
            name=one.name,
            url=one.spec.url,
            file=one.file,
            table=table,
            state=_state(one.name, found),
            settings=tuple(explained),
        )
    layers = () if one.tables is None else (one.tables.defaults, *([one.own] if one.own else []))
    return Explained(
        name=f"{one.name}.*",
        url=one.url,
        file=one.file,
        table=f"parents.{one.name}",
        state="not listed",
        settings=tuple(settings(one.policies, layers)),
    )


def _state(name: str, found: Fleet | None) -> str:
    if found is None:
        return "not listed"
    if name in found.queries:
        return f"batch {found.queries[name].batch}"
    if name in found.ambiguous:
        return "ambiguous"
    return "cannot be read" if name in found.problems else "no committed batch"


def _findings(
    configuration: Configuration, found: Fleet | None, named: Mapping[str, Root | Parent]
) -> Iterator[ConfigFinding]:
    """Yield the findings, the most urgent first."""
    for broken in sorted(configuration.broken.values(), key=lambda one: (one.part is not Part.FILE, one.subject)):
        is_unreadable = broken.part is Part.FILE
        yield ConfigFinding(subject=broken.subject, problem=broken.problem, is_unreadable=is_unreadable)
    if found is not None:
        for name, problem in sorted(found.problems.items()):
            if not is_part(name):
                yield ConfigFinding(subject=name, problem=problem, is_unreadable=name not in found.ambiguous)
        for name in found.waiting:
            if name in configuration.roots:
                root = configuration.roots[name]
                problem = f"{root.spec.url} has no committed batch -> start the query, or correct roots.{name}.url"
                yield ConfigFinding(subject=name, problem=problem)
        for name in found.empty:
            url = configuration.parents[name].url
            problem = f"there is no folder at {url} -> start a query there, or correct parents.{name}.url"
            yield ConfigFinding(subject=name, problem=problem)
    if not (configuration.roots or configuration.parents or configuration.broken):
        yield ConfigFinding(subject="all files", problem="they name no query -> add a table [roots.NAME]")
    yield from _unknown_teams(configuration, named)
    yield from _unused_patterns(configuration, found, named)


def _unknown_teams(configuration: Configuration, named: Mapping[str, Root | Parent]) -> Iterator[ConfigFinding]:
    """Yield the teams without channels. Without any channels, they only structure the tables."""
    if not configuration.teams:
        return
    of_team: dict[str, list[str]] = {}
    for name, one in sorted(named.items()):
        policies: Policies = one.policies
        of_team.setdefault(policies.team or DEFAULT_TEAM, []).append(name)
    for team, names in sorted(of_team.items()):
        if team in configuration.teams:
            continue
        near = difflib.get_close_matches(team, configuration.teams, 1)
        others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        who = (
            f"the team {DEFAULT_TEAM} gets the messages"
            if DEFAULT_TEAM in configuration.teams
            else "no channel, so no messages are sent"
        )
        hint = f"did you mean {near[0]}? Or add" if near else "add"
        problem = (
            f"there is no table [teams.{team}]; {who} about {names[0]}{others} -> {hint} the table to one of the files"
        )
        yield ConfigFinding(subject=f"teams.{team}", problem=problem)


def unset_channels(configuration: Configuration, environment: Mapping[str, str]) -> Iterator[ConfigFinding]:
    """Yield the channels that get no message, because their environment variable is not set."""
    for team, channels in sorted(configuration.teams.items()):
        for key, variable in channels.unset(environment).items():
            problem = (
                f"the environment variable {variable!r} is not set or is empty in this process, so this channel "
                "gets no messages -> correct the name, or set the variable for this process and for the one that sends the "
                "messages"
            )
            yield ConfigFinding(subject=f"teams.{team}.{key}", problem=problem)


def _unused_patterns(
    configuration: Configuration, found: Fleet | None, named: Mapping[str, Root | Parent]
) -> Iterator[ConfigFinding]:
    """Yield the patterns that match no query of their file. A pattern may match a query that could not be listed."""
    for file, tables in sorted(configuration.files.items()):
        parents = {name for name, one in configuration.parents.items() if one.file == file}
        is_unknown = any(one.file == file for one in configuration.broken.values())
        if is_unknown or (parents and (found is None or not parents.isdisjoint(found.problems))):
            continue
        names = [name for name, one in named.items() if one.file == file]
        names += [name for name in (found.problems if found else ()) if name.partition(".")[0] in parents]
        for layer in tables.patterns:
            if not any(matching(layer.pattern).fullmatch(name) for name in names):
                near = difflib.get_close_matches(layer.pattern, names, 1, 0.4)
                hint = f"correct it, for example to match {near[0]}, or remove it" if near else "correct or remove it"
                yield ConfigFinding(
                    subject=f"{layer.table} in {file}", problem=f"it matches no query of this file -> {hint}"
                )
