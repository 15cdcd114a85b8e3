"""Pictures in metadata: SVG in a Markdown image. Drawn by hand: a plotting library costs each run a second of imports."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

import dagster as dg

from statestore.chain import Chain
from statestore.format.names import VersionId
from statestore.maintenance.audit import Audit, Facts
from statestore.maintenance.audit.facts import StoreFacts
from statestore.maintenance.health import Health

_VERSIONS = 60
_STEP = 14
_LEFT = 20
_GREEN, _BLUE, _RED, _GREY = "#2e7d32", "#1565c0", "#c62828", "#9e9e9e"


def of_lineage(facts: Facts, found: Audit) -> dg.MarkdownMetadataValue:
    """The newest versions of one store: the first that is broken, else the one with the longest tail."""
    stores = {one.store: one for one in facts.stores if isinstance(one, StoreFacts)}
    named = [finding.store for finding in found.breaks if finding.store in stores]
    longest = max(found.stores, key=lambda store: store.tail, default=None)
    chosen = named[0] if named else (longest.store if longest else None)
    if chosen is None:
        return dg.MetadataValue.md("no store could be looked at")
    return _image(lineage_svg(stores[chosen]), f"lineage of {chosen}")


def lineage_svg(store: StoreFacts) -> str:
    """Squares are snapshots, dots changelogs, both on the line of committed versions; dead branches lie below it. What
    cannot be loaded is red; the line is green from the base on that a load of the head starts from."""
    chain = store.chain
    shown = chain.versions[-_VERSIONS:]
    at = {version: _LEFT + number * _STEP for number, version in enumerate(shown)}
    width = max(420, _LEFT * 2 + len(shown) * _STEP)
    parts = [_text(_LEFT, 18, f"{chain.store}: head {chain.head.version}, {_base(chain)}", 12)]
    for before, version in pairwise(shown):
        parts.append(_line(at[before], at[version], 60, _colour(chain, version)))
    for version in shown:
        parts += _marks(chain, version, at[version], 60)
        if version.version % 10 == 0 or version == chain.head:
            parts.append(_text(at[version] - 6, 88, str(version.version), 9))
    by_number = {version.version: x for version, x in at.items()}
    dead = [v for v in (*chain.files.changelogs, *chain.files.snapshots) if v not in at and v.version in by_number]
    parts += [
        f'<circle cx="{by_number[version.version]}" cy="104" r="4" fill="{_GREY}"><title>{version}</title></circle>'
        for version in dead
    ]
    parts.append(_text(_LEFT, 128, "■ snapshot   ● changelog   grey, below: never committed   red: does not load", 10))
    return _svg(width, 140, parts)


def of_fleet(rows: Mapping[str, Health]) -> dg.MarkdownMetadataValue:
    """Bars of what each query holds and what of it is reclaimable, the largest first."""
    return _image(fleet_svg(rows), "bytes of each query")


def fleet_svg(rows: Mapping[str, Health], most: int = 12) -> str:
    """See `of_fleet`."""
    largest = sorted(rows.items(), key=lambda row: -row[1].bytes)[:most]
    scale = 360 / max((health.bytes for _, health in largest if health.bytes), default=1)
    parts = [_text(_LEFT, 18, f"state by query, the largest {len(largest)} of {len(rows)}: live, and reclaimable", 12)]
    for number, (name, health) in enumerate(largest):
        y = 34 + number * 24
        live = (health.bytes - health.reclaimable_bytes) * scale
        parts.append(_text(_LEFT, y + 12, name, 11))
        parts.append(_bar(160, y, live, _BLUE))
        parts.append(_bar(160 + live, y, health.reclaimable_bytes * scale, _GREY))
        parts.append(_text(166 + health.bytes * scale, y + 12, f"{health.bytes / 1024 / 1024:,.1f} MiB", 10))
    return _svg(640, 44 + len(largest) * 24, parts)


def _marks(chain: Chain, version: VersionId, x: int, y: int) -> list[str]:
    marks = []
    colour = _GREEN if version in chain.bases else _RED
    if version in chain.files.changelogs or version in chain.broken:
        title = chain.broken.get(version, f"{chain.store.changelog(version)}")
        fill = _RED if version in chain.broken and version not in chain.snapshots else colour
        marks.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{fill}"><title>{escape(title)}</title></circle>')
    if version in chain.snapshots:
        facts = chain.snapshots[version]
        fill = _BLUE if facts.is_whole else _RED
        title = facts.damage or chain.store.snapshot(version)
        marks.append(
            f'<rect x="{x - 6}" y="{y - 26}" width="12" height="12" fill="{fill}"><title>{escape(title)}</title></rect>'
        )
    return marks


def _base(chain: Chain) -> str:
    base = chain.bases.get(chain.head)
    if base is None:
        return "cannot be loaded"
    return f"loads from version {base.version} and {len(chain.tail(chain.head))} changelogs"


def _colour(chain: Chain, version: VersionId) -> str:
    if version not in chain.bases:
        return _RED
    replayed = chain.tail(chain.head) if chain.head in chain.bases else ()
    return _GREEN if version in replayed else _GREY


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif">'
    )
    return f'{head}<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}">{escape(text)}</text>'


def _line(start: float, end: float, y: float, colour: str) -> str:
    return f'<line x1="{start:.0f}" x2="{end:.0f}" y1="{y:.0f}" y2="{y:.0f}" stroke="{colour}" stroke-width="2"/>'


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.0f}" width="{max(width, 0.5):.1f}" height="16" fill="{colour}"/>'


def _image(svg: str, title: str) -> dg.MarkdownMetadataValue:
    data = base64.b64encode(svg.encode()).decode()
    return dg.MetadataValue.md(f"![{title}](data:image/svg+xml;base64,{data})")
