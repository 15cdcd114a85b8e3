"""Generate parts of pages from the code: errors, configuration keys, lists of pages.

A page contains `<!-- generated: NAME -->` at the place of such a part. An unknown name fails the build. The tables in this
module that the code does not contain must be complete; a missing entry also fails the build.

A diagram, `![TEXT](FILE.svg){ .diagram }`, becomes a part of the page, so that it has the colors of the chosen theme. In an
image, it would have those of the operating system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

from statekeeper.statestore.base import errors
from statekeeper.statestore.base.durations import duration_text
from statekeeper.statestore.base.errors import StatekeeperError, action_of, drawn_tree, error_classes
from statekeeper.statestore.cli import main as command
from statekeeper.statestore.maintenance.upkeep.audit.explanations import CHECKS, EXPLANATIONS
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy
from statekeeper.statestore.maintenance.verbs.config import Mode, Parent, Policies, RunsOn

_PLACE = re.compile(r"<!-- generated: (?P<name>[a-z ]+) -->")
_DIAGRAM = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<file>[^)]+\.svg)\)\{ \.diagram \}")
_STYLE = re.compile(r"<style>.*?</style>\s*", re.DOTALL)
_DECISIONS = "decisions"
_BOOSTS = {"how-to": 2, _DECISIONS: 0.3}
"""The rank of a page in the search, by its folder."""
_EXIT_CODE = re.compile(r"(?P<code>\d+) (?P<meaning>[^,.]+)")
_ROOT_KEYS = {
    "url": (
        "text",
        "required",
        "a path, relative to the folder of the file, or a URL (`s3://`, `abfss://`, `gs://`, `webhdfs://`)",
    ),
    "storage": (
        "table of texts",
        "`{}`",
        "options of the storage; [Supported storage](../how-to/where-checkpoints-lie.md) lists them",
    ),
    "mirror": (
        "table of texts",
        "`{}`",
        "destination of the [mirror](../how-to/mirror-a-checkpoint.md#dagster) and the largest lag of a fresh mirror: "
        '`{ url = "s3://replica/orders", lag = "10m" }`. `location`: the URL that Spark uses for it, if that is unknown',
    ),
    "tables": (
        "table of tables",
        "`{}`",
        "[tables with the state](../how-to/state-as-a-table.md#dagster) that `publish` keeps up to date: "
        '`{ open = { url = "s3://lake/open", operator = 0 } }`. The other keys are the options of `publish`',
    ),
    "sinks": (
        "table of tables",
        "`{}`",
        "[Delta tables that the query writes](../how-to/optimize-a-sink.md#dagster) and that `optimize` maintains: "
        '`{ delays = { url = "s3://lake/delays", keep_readers = "7d" } }`. The other keys: `file_mib`, `compact`, '
        "`vacuum`, `retired_queries`",
    ),
    "limits": (
        "table of whole numbers",
        "`{ record_mib = 64, object_mib = 64 }`",
        "largest value of a changelog with its key, and largest object that is read as a whole, in MiB; see "
        "[Limits of sizes](limits.md)",
    ),
    "team": (
        "text",
        '`""`',
        "team that gets the messages about problems; see [Messages](../how-to/maintain-without-dagster.md#messages)",
    ),
    "owner": ("text", '`""`', "person or address that each message about a problem names"),
    "labels": ("table of texts", "`{}`", "labels for your own use, which the channel `webhook` gets with each message"),
    "schedule.window": (
        "part of a day",
        "none",
        'part of each day in UTC in which maintenance may start, for example `"22:00-06:00"`; see '
        "[Times of maintenance](../how-to/configuration-for-teams.md#schedule)",
    ),
    "schedule.min_interval": ("duration", "none", "shortest time between two starts of maintenance"),
    "audit.deep_every": (
        "duration",
        "none",
        "time between two [deep audits](../how-to/audit-finding.md#dagster) in Dagster, at least `1h`",
    ),
    "mode": (
        "one of " + ", ".join(f'`"{mode.value}"`' for mode in Mode),
        '`"full"` for a state root, `"observe"` for a native checkpoint',
        "allowed changes: none, add snapshots, or also delete files",
    ),
    "executor": (
        "one of " + ", ".join(f'`"{one.value}"`' for one in RunsOn),
        f'`"{Policies().executor.value}"`',
        "where the work on each store runs; see [Run a verb on a Spark cluster](../how-to/run-on-a-spark-cluster.md)",
    ),
}
_MEANINGS = {
    "snapshot.changelogs": "take a snapshot after this number of changelogs",
    "snapshot.restore": "take a snapshot if the replay of the tail takes this long, estimated from the newest snapshots",
    "snapshot.restore_target": "take snapshots of the longest tails until the replay of all tails takes at most this long",
    "retention.versions": "number of versions to retain",
    "retention.grace": "minimum age of a file before it is deleted; `versions` must also permit the deletion",
    "retention.history": "retention time of maintenance records",
    "retention.quarantine": "retention time of files that a repair, a rewind or a switchover has quarantined",
    "retention.most_files": "maximum number of files that a run deletes; the next runs delete the rest",
}
_INTEROP = Path("reference", "interop-results.json")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add all decision pages to the navigation."""
    for entry in config.nav or []:
        if entry.get("Decisions") == f"{_DECISIONS}/":
            found = [f"{_DECISIONS}/{path.name}" for path in decisions(Path(config.docs_dir))]
            entry["Decisions"] = [f"{_DECISIONS}/index.md", *found]
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Insert the generated parts and the diagrams. Raises `PluginError` for an unknown name."""
    if page.parent is None:
        # A tab of its own: a list of one page beside it would only take room.
        page.meta["hide"] = ["navigation", "toc"] if page.is_homepage else ["navigation"]
    # A reader of the search wants to do something. The reasons are further down.
    page.meta.setdefault("search", {"boost": _BOOSTS.get(page.file.src_uri.partition("/")[0], 1)})

    def put(place: re.Match[str]) -> str:
        if place["name"] not in _GENERATORS:
            raise PluginError(f"no generator has the name {place['name']!r}")
        return "\n".join(_GENERATORS[place["name"]](Path(config.docs_dir)))

    def draw(found: re.Match[str]) -> str:
        file = Path(config.docs_dir) / Path(page.file.src_uri).parent / found["file"]
        # The style of the file is that of an image, and would apply to all icons of the page.
        drawing = _STYLE.sub("", file.read_text()).strip()
        named = drawing.replace("<svg ", f'<svg role="img" aria-label="{escape(found["text"])}" ', 1)
        return f'<figure class="diagram">\n{named}\n</figure>'

    return _DIAGRAM.sub(draw, _PLACE.sub(put, markdown))


def decisions(docs: Path) -> list[Path]:
    """Return the pages of the decisions, in order of their numbers."""
    return sorted(path for path in (docs / _DECISIONS).glob("*.md") if path.name != "index.md")


def _list_of_decisions(docs: Path) -> Iterator[str]:
    for path in decisions(docs):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        yield f"* [{title}]({path.name})"


def _exit_codes(_: Path) -> Iterator[str]:
    said = re.search(r"Exit codes: (.*?)\.", command.help or "", re.DOTALL)
    if said is None:
        raise PluginError("the help of the command does not list its exit codes")
    yield "| exit code | means | errors |"
    yield "| --: | :-- | :-- |"
    for one in _EXIT_CODE.finditer(" ".join(said[1].split())):
        of_code = [kind for kind in error_classes() if kind.exit_code == int(one["code"])]
        yield f"| {one['code']} | {one['meaning']} | {', '.join(f'[`{kind.code}`][{_anchor(kind)}]' for kind in of_code)} |"


def _errors(_: Path) -> Iterator[str]:
    for kind in error_classes():
        parents = [one for one in kind.__mro__[1:] if issubclass(one, StatekeeperError)][:-1]
        # A heading for each, so that the code of an error in a log is found by the page's own search.
        yield f"### {kind.__name__} {{ #{_anchor(kind)} }}"
        yield ""
        below = f", a [`{parents[0].__name__}`][{_anchor(parents[0])}]" if parents else ""
        yield f"`{kind.code}`, exit code {kind.exit_code}{below}"
        yield "{ .facts }"
        yield ""
        yield " ".join((kind.__doc__ or "").split())
        yield ""
        if kind.__name__ not in drawn_tree():
            raise PluginError(f"{kind.__name__} is missing in the tree in the docstring of statestore/base/errors.py")
        yield f"**What to do**: {action_of(kind)}."
        yield ""


def _findings_of(check: str) -> Callable[[Path], Iterator[str]]:
    """Explain the kinds of findings that turn a check red."""

    def sections(_: Path) -> Iterator[str]:
        for kind, one in EXPLANATIONS.items():
            if one.check != check:
                continue
            # A heading for each, so that the code of a finding is found by the page's own search.
            yield from (f"### `{kind.code}`: {kind.value} {{ #{kind.code} }}", "", one.meaning, "")
            yield f"* **Usual causes**: {' '.join(one.causes)}"
            yield f"* **What still works**: {one.works}"
            yield from (f"* **Next**: {one.action}", "")
            if one.commands:
                yield from ("```", *one.commands, "```", "")

    return sections


def _anchor(kind: type[StatekeeperError]) -> str:
    return f"{errors.__name__}.{kind.__name__}"


def configuration_keys() -> Iterator[tuple[str, str, str, str]]:
    """Yield the keys of a root: key, type, default, meaning. Raises `PluginError` for a key without a meaning."""
    for key, (kind, default, meaning) in _ROOT_KEYS.items():
        yield key, kind, default, meaning
    for table, policy in (("snapshot", SnapshotPolicy), ("retention", RetentionPolicy)):
        for one in fields(policy):
            key = f"{table}.{one.name.removesuffix('_seconds')}"
            if key not in _MEANINGS:
                raise PluginError(f"the key {key} has no meaning in _MEANINGS")
            yield key, _kind(one), f"`{_default(one)}`", _MEANINGS[key]


def _keys(_: Path) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "| :-- | :-- | :-- | :-- |"
    for key, kind, default, meaning in configuration_keys():
        yield f"| `{key}` | {kind} | {default} | {meaning} |"


def _keys_of_parents(_: Path) -> Iterator[str]:
    forget = next(one for one in fields(Parent) if one.name == "forget_seconds")
    below = next(one for one in fields(Parent) if one.name == "below")
    yield "| key | type | default | meaning |"
    yield "| :-- | :-- | :-- | :-- |"
    yield f'| `below` | text | `"{below.default}"` | path of the checkpoint inside each folder |'
    yield f"| `forget_after` | duration | `{_default(forget)}` | how long a missing checkpoint stays listed |"


def _kind(one: Field[Any]) -> str:
    return "duration" if one.name.endswith("_seconds") else "whole number"


def _default(one: Field[Any]) -> str:
    if one.default is MISSING:
        raise PluginError(f"{one.name} has no default")
    if one.default is None:
        return "none"
    return f'"{duration_text(one.default)}"' if one.name.endswith("_seconds") else str(one.default)


def _interop(docs: Path, kind: str) -> list[dict[str, Any]]:
    """Return the results of `make interop-matrix` of one kind."""
    return [result for result in _all_interop(docs) if result["kind"] == kind]


def _all_interop(docs: Path) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads((docs / _INTEROP).read_text())
    return results


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _sparks(docs: Path) -> Iterator[str]:
    results = _all_interop(docs)
    run = [result for result in results if result["passed"] is not None]
    releases = sorted({result["to"] for result in run})
    passed = sum(result["passed"] for result in run)
    yield f"In the last run of each case, {passed:,} of {len(run):,} cases passed, on Spark {', '.join(releases)}."
    if len(run) < len(results):
        yield f"{len(results) - len(run):,} more were not run yet and are missing in the tables."


def _matrix(kind: str, column: Callable[[dict[str, Any]], str]) -> Callable[[Path], Iterator[str]]:
    """Make a table of operators by releases. A cell lists the structures that passed or failed."""

    def table(docs: Path) -> Iterator[str]:
        results = _interop(docs, kind)
        results = [result for result in results if result["passed"] is not None]
        columns = sorted({column(result) for result in results})
        if not columns:
            yield "No case was run yet."
            return
        yield f"| operator | {' | '.join(columns)} |"
        yield f"| :-- |{' :-: |' * len(columns)}"
        for operator in dict.fromkeys(result["operator"] for result in results):
            cells = []
            for name in columns:
                here = [one for one in results if one["operator"] == operator and column(one) == name]
                cells.append(
                    " ".join(one["structure"] if one["passed"] else f"**{one['structure']} fails**" for one in here)
                )
            yield f"| {operator} | {' | '.join(cells)} |"

    return table


_GENERATORS: dict[str, Callable[[Path], Iterator[str] | Sequence[str]]] = {
    "configuration keys": _keys,
    "configuration keys of parents": _keys_of_parents,
    "decisions": _list_of_decisions,
    "errors": _errors,
    "exit codes": _exit_codes,
    **{f"findings of {check.replace('_', ' ')}": _findings_of(check) for check in CHECKS},
    "repartitions": _matrix("repartition", lambda result: _minor(result["to"])),
    "clones": _matrix("clone", lambda result: _minor(result["to"])),
    "edits": _matrix("edit", lambda result: _minor(result["to"])),
    "mirrors": _matrix("mirror", lambda result: _minor(result["to"])),
    "rewinds": _matrix("rewind", lambda result: _minor(result["to"])),
    "repairs": _matrix("repair", lambda result: _minor(result["to"])),
    "rescales": _matrix("rescale", lambda result: _minor(result["to"])),
    "conversions": _matrix("convert", lambda result: _minor(result["to"])),
    "restarts": _matrix("restart", lambda result: _minor(result["to"])),
    "sparks": _sparks,
    "switches": _matrix("switch", lambda result: _minor(result["to"])),
    "upgrades": _matrix("upgrade", lambda result: f"{_minor(result['from'])} → {_minor(result['to'])}"),
}
