"""Draws the pictures in metadata: SVG in a Markdown image. It uses no plotting library, whose import costs seconds.

Dagster shows Markdown of less than 1,000 characters in place, and a link otherwise. So one path draws all marks of a color,
and only the characters that must be percent-encoded are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from urllib.parse import quote

import dagster as dg

from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.contents.sizes import SnapshotSizes
from statekeeper.statestore.format.names import DEFAULT_STORE
from statekeeper.statestore.maintenance.upkeep.audit import Audit, AuditFacts
from statekeeper.statestore.maintenance.upkeep.audit.facts import StoreAuditFacts
from statekeeper.statestore.maintenance.verbs import lineage
from statekeeper.statestore.maintenance.verbs.health import Health
from statekeeper.statestore.maintenance.verbs.lineage import Fate, PicturedLineage

_STEP = 10
_LEFT = 20
_WIDTH = 640
_HEAD = _WIDTH - _LEFT - 5
"""Where the head is. Older versions are to its left, so the pictures of two audits can be compared."""
_GREEN, _BLUE, _RED, _GREY = "green", "royalblue", "crimson", "#999"
_DOTS = f"stroke-width='7' stroke-linecap='round' stroke-dasharray='0 {_STEP}'"
_SQUARES = f"stroke-width='8' stroke-dasharray='8 {_STEP - 8}'"
_BARS = "stroke-width='16'"
_UNENCODED = " '/:;=,+.!*$&?@~-"
"""Characters that need no encoding in an address between < and > in Markdown."""


def of_lineage(facts: AuditFacts, found: Audit) -> dg.MarkdownMetadataValue:
    """Draw the newest versions of one store: the first broken store, else the store with the longest tail."""
    stores = {one.store: one for one in facts.stores if isinstance(one, StoreAuditFacts)}
    named = [finding.store for finding in found.breaks if finding.store in stores]
    longest = max(found.stores, key=lambda store: store.tail, default=None)
    chosen = named[0] if named else (longest.store if longest else None)
    if chosen is None:
        return dg.MetadataValue.md("no store could be examined")
    return _image(lineage_svg(stores[chosen]), "lineage")


def lineage_svg(store: StoreAuditFacts) -> str:
    """Draw the newest versions up to the head, which is at the right edge. Squares are snapshots and dots are changelogs.
    Files of versions that were never committed are below the line. Blue: snapshots. Green: changelogs that a restart
    replays. Red: files that cannot be loaded."""
    found = lineage.pictured(store.chain)
    at = {mark.version.version: _HEAD - number * _STEP for number, mark in enumerate(reversed(found.marks))}
    dots: defaultdict[str, list[int]] = defaultdict(list)
    squares: defaultdict[str, list[int]] = defaultdict(list)
    for mark in found.marks:
        x = at[mark.version.version]
        if mark.changelog is not None:
            dots[_COLORS[mark.changelog]].append(x)
        if mark.snapshot is not None:
            squares[_BLUE if mark.snapshot else _RED].append(x)
    below = _runs([at[number] for number in found.dead], 100)
    lines = {color: _runs(xs, 60) for color, xs in dots.items()}
    if below:
        lines[_GREY] = lines.get(_GREY, "") + below
    parts = [_text(_LEFT, 18, f"{found.store}: head {found.head.version}, {_base(found)}")]
    parts.append(_paths("", {_GREY: f"M{min(at.values())} 60H{_HEAD}"}))
    parts.append(_paths(_DOTS, lines))
    parts.append(_paths(_SQUARES, {color: _runs(xs, 40, wide=8) for color, xs in squares.items()}))
    ends = {number: at[number] for number in (found.marks[0].version.version, found.head.version)}
    parts += [_text(x, 84, str(number), anchor="middle") for number, x in ends.items()]
    legend = (
        "square: snapshot, dot: changelog; green: replayed by a restart; red: cannot be loaded; below: never committed"
    )
    parts.append(_text(_LEFT, 124, legend))
    return _svg(_WIDTH, 134, parts)


def of_fleet(rows: Mapping[str, Health]) -> dg.MarkdownMetadataValue:
    """Draw the live and reclaimable bytes of the largest queries as bars."""
    return _image(fleet_svg(rows), "bytes")


def fleet_svg(rows: Mapping[str, Health], most: int = 6) -> str:
    """Draw the bars of `of_fleet`."""
    largest = sorted(rows.items(), key=lambda row: -row[1].bytes)[:most]
    scale = 300 / max((health.bytes for _, health in largest if health.bytes), default=1)
    live = reclaimable = ""
    parts = [_text(_LEFT, 18, f"state by query, the largest {len(largest)} of {len(rows)}; grey: reclaimable")]
    for number, (name, health) in enumerate(largest):
        y = 42 + number * 24
        end = round((health.bytes - health.reclaimable_bytes) * scale)
        live += f"M280 {y}h{max(end, 1)}"
        if health.reclaimable_bytes:
            reclaimable += f"M{280 + end} {y}h{max(round(health.reclaimable_bytes * scale), 1)}"
        shown = name if len(name) <= 24 else f"{name[:23]}~"
        parts.append(_text(_LEFT, y + 4, f"{shown} {health.bytes / 1024 / 1024:,.1f} MiB"))
    parts.append(_paths(_BARS, {_BLUE: live, _GREY: reclaimable}))
    return _svg(600, 44 + len(largest) * 24, parts)


def of_partitions(sizes: Sequence[SnapshotSizes]) -> dg.MarkdownMetadataValue | None:
    """Draw the keys of the largest partitions as bars; None if no snapshot states its keys."""
    return _image(partitions_svg(sizes), "partitions") if any(one.keys for one in sizes) else None


def partitions_svg(sizes: Sequence[SnapshotSizes], most: int = 6) -> str:
    """Draw the bars of `of_partitions`, of all operators. Grey: the average of the partitions of a store."""
    rows = [(of, one) for of in sizes for one in of.partitions]
    largest = sorted(rows, key=lambda row: -row[1].rows)[:most]
    scale = 300 / max((one.rows for _, one in largest), default=1)
    keys = averages = ""
    parts = [_text(_LEFT, 18, f"keys by partition, the largest {len(largest)} of {len(rows)}; grey: the average")]
    for number, (of, one) in enumerate(largest):
        y = 42 + number * 24
        keys += f"M280 {y}h{max(round(one.rows * scale), 1)}"
        averages += f"M280 {y + 8}h{max(round(of.keys / len(of.partitions) * scale), 1)}"
        store = f"{of.operator}/{one.partition}" + ("" if of.store == DEFAULT_STORE else f"/{of.store[:16]}")
        parts.append(_text(_LEFT, y + 4, f"{store}: {one.rows:,} keys"))
    parts.append(_paths(_BARS, {_BLUE: keys}))
    parts.append(_paths("stroke-width='3'", {_GREY: averages}))
    return _svg(600, 44 + len(largest) * 24, parts)


_COLORS = {Fate.REPLAYED: _GREEN, Fate.NOT_NEEDED: _GREY, Fate.NOT_LOADABLE: _RED}


def _base(found: PicturedLineage) -> str:
    if found.base is None:
        return "cannot be loaded"
    return f"loads from version {found.base.version} and {found.tail} changelogs"


def _runs(xs: Iterable[int], y: int, *, wide: int = 0) -> str:
    """Draw a line for each run of neighbors. Its dash pattern cuts it into marks of that width around each x."""
    lines = ""
    for _, run in groupby(enumerate(xs), key=lambda pair: pair[1] - pair[0] * _STEP):
        places = [x for _, x in run]
        # A dash of length 0 is only drawn if the line continues after it.
        lines += f"M{places[0] - wide // 2} {y}h{places[-1] - places[0] + max(wide, 1)}"
    return lines


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    # Dagster scales an image down to its cell. Without a size of its own the image would have no width there.
    size = f"viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' height='{height:.0f}'"
    style = "font-family='sans-serif' font-size='12' style='background:white'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} {style}>"
    return f"{head}{''.join(parts)}</svg>"


def _paths(style: str, lines: Mapping[str, str]) -> str:
    """Draw lines by color, all in one style."""
    paths = "".join(f"<path stroke='{color}' d='{line}'/>" for color, line in lines.items() if line)
    return f"<g {style}>{paths}</g>" if style else paths


def _text(x: float, y: float, text: str, *, anchor: str = "") -> str:
    anchored = f" text-anchor='{anchor}'" if anchor else ""
    return f"<text x='{x:.0f}' y='{y:.0f}'{anchored}>{escape(printable(text), quote=False)}</text>"


def _image(svg: str, title: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(f"![{title}](<data:image/svg+xml,{quote(svg, safe=_UNENCODED)}>)")
