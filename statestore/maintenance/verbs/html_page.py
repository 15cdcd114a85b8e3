"""One self-contained HTML page about checkpoints: no script, no font, no request to any server. Pure.

Every text is escaped, also the names of stores and files, which may be forged. Pictures are SVG from the same data, in the
colors of the page, so that they are readable in light and dark and on paper.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.format.names import DEFAULT_STORE
from statekeeper.statestore.maintenance.upkeep.audit import Finding, Severity
from statekeeper.statestore.maintenance.verbs.lineage import Fate, PicturedLineage
from statekeeper.statestore.maintenance.verbs.overview import ChangeOverview, Overview, RunOverview
from statekeeper.statestore.maintenance.verbs.report import decimal

_ROWS = 20
_MONTH_DAYS = 30
_DAY_SECONDS = 86_400.0

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --dim: #59636e; --line: #d1d9e0; --good: #1a7f37;
  --warn: #9a6700; --bad: #cf222e; --one: #8c959f; --two: #0969da; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --dim: #9198a1; --line: #3d444d;
  --good: #3fb950; --warn: #d29922; --bad: #f85149; --one: #6e7681; --two: #4493f8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: break-word; } p, code, td { overflow-wrap: anywhere; } td { min-width: 6rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; border-top: 1px solid var(--line); padding-top: 1rem; }
h3 { font-size: 1rem; margin-bottom: .25rem; }
.lead { font-size: 1.1rem; border-left: .3rem solid var(--good); padding-left: .75rem; }
.lead.warn { border-color: var(--warn); } .lead.bad { border-color: var(--bad); }
.dim { color: var(--dim); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: .875em ui-monospace, monospace; }
svg { display: block; width: 100%; height: auto; max-width: 40rem; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
@media screen and (max-width: 40rem) {
  svg { overflow: visible; margin-top: .75rem; } svg text { font-size: 17px; }
  thead { display: none; } table, tbody, tr, td, td.n { display: block; text-align: left; white-space: normal; }
  tr { border-bottom: 1px solid var(--line); padding: .35rem 0; } td { border: 0; padding: 0; } td:empty { display: none; }
  td[data-of]::before { content: attr(data-of) ": "; color: var(--dim); } }
@media print { :root { --ink: #000; --paper: #fff; --dim: #444; --line: #999; } body { max-width: none; padding: 0; }
  h2, h3 { break-after: avoid; } tr, svg { break-inside: avoid; } .wide { overflow: visible; } }
"""


@dataclass(frozen=True)
class Section:
    """A checkpoint on the page: what is known of it, or the error that prevents it."""

    name: str
    found: Overview | StatekeeperError

    @property
    def is_red(self) -> bool:
        """Whether a person must act."""
        if isinstance(self.found, StatekeeperError):
            return True
        return bool(self.found.lost or self.found.health.errors or _drill_findings(self.found))


def page(sections: Sequence[Section], *, now_seconds: float, title: str = "Statekeeper report") -> str:
    """Return the page. The checkpoints for which a person must act come first."""
    red = sum(one.is_red for one in sections)
    health = f"{red:,} of {counted(len(sections), 'checkpoint')} need action." if red else "No checkpoint needs action."
    ordered = sorted(sections, key=lambda one: (not one.is_red, one.name))
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>"
    )
    lead = f'<p class="lead{" bad" if red else ""}">{_text(health)}</p>' if len(sections) != 1 else ""
    body = "".join(map(_section, ordered))
    return f'{head}<h1>{_text(title)}</h1><p class="dim">made {utc(now_seconds)}</p>{lead}{body}</body></html>\n'


def _section(one: Section) -> str:
    title = f"<h2>{_text(one.name)}</h2>"
    found = one.found
    if isinstance(found, StatekeeperError):
        return f'{title}<p class="lead bad">This checkpoint could not be examined: {_text(str(found))}</p>'
    color = " bad" if one.is_red else " warn" if found.health.warnings else ""
    parts = [
        title,
        f'<p class="dim"><code>{_text(found.url)}</code></p>',
        f'<p class="lead{color}">{_text(found.sentence)}</p>',
        _findings(found.findings),
        _restores(found),
        _lineages(found),
        _sizes(found),
        _growth(found),
        _keys(found),
        _costs(found),
        _drills(found),
        _changes(found.changes),
        _runs(found.runs),
    ]
    return "".join(parts)


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<h3>Findings</h3><p>The audit has no finding. It read names and sizes, not the bytes of every file.</p>"
    rows = [
        (
            _Cell("ERROR", "bad") if one.severity is Severity.ERROR else _Cell("WARNING", "warn"),
            f"{one.file} {one.problem}",
            one.meaning,
            one.action,
        )
        for one in findings[:_ROWS]
    ]
    return _table("Findings", ("severity", "problem", "consequence", "next"), rows, of=len(findings))


def _restores(found: Overview) -> str:
    worst = sorted(
        found.stores, key=lambda one: (one.predicted_seconds is not None, -(one.predicted_seconds or 0), one.store)
    )
    shown = worst[:_ROWS]
    bars = [
        _Bar(
            str(one.store),
            one.predicted_seconds or 0.0,
            found.drills[one.store].seconds if one.store in found.drills else None,
        )
        for one in shown
    ]
    rows = [
        (
            str(one.store),
            _seconds(one.predicted_seconds),
            _seconds(found.drills[one.store].seconds if one.store in found.drills else None),
            f"{one.changelogs:,}",
            decimal(one.tail_bytes),
            _Cell(one.problem, "bad") if one.problem else "",
        )
        for one in shown
    ]
    table = _table(
        "Longest restores",
        ("store", "#predicted s", "#measured s", "#changelogs", "#tail", "problem"),
        rows,
        of=len(found.stores),
    )
    picture = (
        _bars(bars, "predicted restore", "measured by the last drill", "s")
        if any(one.one or one.two for one in bars)
        else ""
    )
    return f"{_target(found)}{table}{picture}{_over_time(found.drill_runs)}"


def _target(found: Overview) -> str:
    """Draw the restore of all stores beside its target; nothing without a target, or if a store cannot be restored."""
    target, seconds = found.target_seconds, found.health.restore_seconds
    if target is None or found.lost:
        return ""
    most = max(target, seconds) * 1.1 or 1.0
    end, at = max(1.0, seconds / most * _WIDTH), target / most * _WIDTH
    color = "--bad" if seconds > target else "--two"
    anchor = "end" if at > _WIDTH / 2 else "start"
    verdict = "longer than" if seconds > target else "within"
    return (
        "<h3>Restore of all stores, and its target</h3>"
        f'<svg viewBox="0 0 {_WIDTH} 66" role="img" aria-label="restore seconds and their target">'
        f'<text x="0" y="12">{seconds:,.2f} s, one store after another</text>'
        f'<rect x="0" y="20" width="{end:.1f}" height="14" style="fill: var({color})"/>'
        f'<path d="M{at:.1f} 16V44" style="stroke: var(--ink); stroke-width: 2"/>'
        f'<text x="{at:.1f}" y="60" text-anchor="{anchor}">target {target:,.2f} s</text></svg>'
        f"<p>The predicted restore is {verdict} the target of the configuration.</p>"
    )


# -- lineages ---------------------------------------------------------------------------------------------------------


_MARK = 10
"""The width of a version."""


def _lineages(found: Overview) -> str:
    if not found.lineages:
        return ""
    legend = (
        "Square: snapshot. Dot: changelog. Blue: needed for a restart at the newest batch. Grey: not needed for it. Red: "
        "cannot be loaded. Below the line: of an attempt that was never committed."
    )
    pictures = "".join(map(_lineage, found.lineages))
    return f'<h3>Lineages of the longest restores</h3>{pictures}<p class="dim">{_text(legend)}</p>'


def _lineage(one: PicturedLineage) -> str:
    """Draw the newest versions of a store. The head is at the right edge, so that stores can be compared."""
    right = _WIDTH - _MARK
    at = {mark.version.version: right - number * _MARK for number, mark in enumerate(reversed(one.marks))}
    parts = [f'<path d="M{min(at.values())} 42H{right}" style="stroke: var(--line); stroke-width: 2"/>']
    for mark in one.marks:
        x = at[mark.version.version]
        if mark.changelog is not None:
            parts.append(f'<circle cx="{x}" cy="42" r="3.5" style="fill: var({_FATES[mark.changelog]})"/>')
        if mark.snapshot is not None:
            color = "--bad" if not mark.snapshot else "--two" if mark.version == one.base else "--one"
            parts.append(f'<rect x="{x - 4}" y="24" width="8" height="8" style="fill: var({color})"/>')
    parts += [f'<circle cx="{at[number]}" cy="56" r="3.5" style="fill: var(--one)"/>' for number in one.dead]
    first, head = one.marks[0].version.version, one.head.version
    if one.base is None:
        loads = "does not load"
    elif one.base.version:
        loads = f"loads from the snapshot of batch {one.base.version - 1:,} and {counted(one.tail, 'changelog')}"
    else:
        loads = f"loads from {counted(one.tail, 'changelog')}, without a snapshot"
    oldest = "" if at[first] > right - 120 else f'<text x="{at[first]}" y="76">batch {first - 1:,}</text>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} 80" role="img" aria-label="lineage of {_text(str(one.store))}">'
        f'<text x="0" y="14">{_text(f"{one.store}: {loads}")}</text>{"".join(parts)}{oldest}'
        f'<text x="{_WIDTH}" y="76" text-anchor="end">batch {head - 1:,}</text></svg>'
    )


_FATES = {Fate.REPLAYED: "--two", Fate.NOT_NEEDED: "--one", Fate.NOT_LOADABLE: "--bad"}


def _sizes(found: Overview) -> str:
    kinds = [_Bar(f"{kind}: {decimal(size)}", float(size)) for kind, size in found.kinds.items()]
    largest = sorted(found.stores, key=lambda one: (-one.size_bytes, one.store))[:_ROWS]
    rows = [(str(one.store), decimal(one.size_bytes)) for one in largest]
    health = found.health
    skew = "" if found.skew is None else f" The largest store has {found.skew:,.1f} times the mean."
    text = (
        f"The next garbage collection can delete {counted(health.reclaimable_files, 'file')}, "
        f"{decimal(health.reclaimable_bytes)}. The last one deleted {decimal(health.reclaimed_bytes)}.{skew}"
    )
    table = _table("Largest stores", ("store", "#bytes"), rows, of=len(found.stores))
    return f"<h3>Bytes by kind</h3>{_bars(kinds, '', '', '')}<p>{_text(text)}</p>{table}"


_FORECASTS = (30, 90)
"""Days."""


def _growth(found: Overview) -> str:
    """The size over time, and its forecast."""
    growth, title = found.growth, "<h3>Growth</h3>"
    slope = growth.bytes_per_day
    if slope is None:
        text = (
            f"Not known: a forecast needs three sizes over two days, and {counted(len(growth.sizes), 'size')} over "
            f"{growth.days:,.1f} days are on record. Each run of gc records the size before it."
        )
        return f"{title}<p>{_text(text)}</p>"
    sizes = {days: growth.in_days(days) or 0 for days in _FORECASTS}
    forecast = " and ".join(f"{decimal(size)} in {days} days" for days, size in sizes.items())
    text = (
        f"The stores have {decimal(growth.sizes[-1][1])} and change by {'-' if slope < 0 else '+'}"
        f"{decimal(round(abs(slope)))} a day. Forecast: {forecast}, if they change as they did."
    )
    method = (
        f"Method: the median of the slopes between all pairs of {counted(len(growth.sizes), 'size')} of the last "
        f"{growth.days:,.1f} days. Each run of gc recorded the size before it, and the newest size is of today. The "
        "forecast knows no change of the load, of the policies or of expiring state."
    )
    picture = _line_of_sizes(growth.sizes, sizes)
    return f'{title}<p>{_text(text)}</p>{picture}<p class="dim">{_text(method)}</p>'


def _line_of_sizes(sizes: Sequence[tuple[float, int]], forecast: Mapping[int, int]) -> str:
    """Draw the sizes, and dashed their forecast."""
    first, last = sizes[0][0], sizes[-1][0]
    points = [*sizes, *((last + days * _DAY_SECONDS, size) for days, size in forecast.items())]
    most, end = max(size for _, size in points) or 1, points[-1][0]
    top, bottom = 20, 120

    def placed(some: Sequence[tuple[float, int]]) -> str:
        return " ".join(
            f"{(at - first) / (end - first) * _WIDTH:.1f},{bottom - size / most * (bottom - top):.1f}"
            for at, size in some
        )

    now = (last - first) / (end - first) * _WIDTH
    style = "fill: none; stroke: var(--two); stroke-width: 2"
    return (
        f'<svg viewBox="0 0 {_WIDTH} 150" role="img" aria-label="size of all stores over time, with a forecast">'
        f'<text x="0" y="12">{_text(decimal(most))}</text>'
        f'<path d="M0 {bottom}H{_WIDTH}M{now:.1f} {top}V{bottom}" style="stroke: var(--line)"/>'
        f'<polyline style="{style}" points="{placed(sizes)}"/>'
        f'<polyline style="{style}; stroke-dasharray: 6 5" points="{placed(points[len(sizes) - 1 :])}"/>'
        f'<text x="0" y="145">{_text(utc(first)[:10])}</text>'
        f'<text x="{_WIDTH}" y="145" text-anchor="end">{_text(utc(end)[:10])}</text></svg>'
        '<p class="dim">solid: recorded; dashed: forecast; the lower line is at 0 bytes</p>'
    )


def _keys(found: Overview) -> str:
    """The largest and the most changed keys; nothing if they were not looked for."""
    if found.top is None:
        return ""
    if isinstance(found.top, StatekeeperError):
        return f'<h3>Keys</h3><p class="bad">{_text(f"Not known: {found.top}")}</p>'
    parts = ["<h3>Keys</h3>"]
    for one in found.top.kinds:
        name = f"operator {one.operator} {one.operator_name}".strip()
        family = "" if one.family is None else f", {one.family}"
        store = "" if one.store == DEFAULT_STORE else f", store {one.store}"
        skew = "" if one.skew is None else f"; the largest partition has {one.skew:,.2f} times the average"
        parts.append(f"<p>{_text(f'{name}{store}{family}: ' + counted(one.rows, 'row') + skew)}</p>")
        for title, column, keys in (
            ("Largest keys", "#bytes", [(key, decimal(key.size_bytes)) for key in one.largest]),
            ("Most changed keys", "#writes", [(key, f"{key.writes:,}") for key in one.changed]),
        ):
            rows = [(json.dumps(key.key, default=str), str(key.partition), figure) for key, figure in keys]
            if rows:
                parts.append(_table(title, ("key", "#partition", column), rows, of=len(rows)))
    if found.top.counted is not None:
        first, last = found.top.counted
        parts.append(f'<p class="dim">writes of batches {first:,} to {last:,}</p>')
    return "".join(parts)


def _costs(found: Overview) -> str:
    """What a month costs, and what deletions save. Each sentence names what it assumes."""
    prices, size, job, gone = found.prices, sum(found.kinds.values()), found.health.job, found.collected
    sentences = [
        f"Storage: {_dollars(prices.dollars_of_storage(size))} a month for {decimal(size)}, at {prices.per_gb_month:g} "
        "dollars for 10^9 bytes."
    ]
    if job is None:
        sentences.append(
            "Requests of the query: not known. The newest batch has no record of its requests. A native query writes none."
        )
    else:
        sentences.append(
            f"Requests of the job: {_dollars(job.dollars_a_day(prices) * _MONTH_DAYS)} a month. Its newest "
            f"{counted(job.batches, 'batch')} sent {job.writes:,} write requests and {job.reads:,} read requests in "
            f"{job.seconds:,.0f} s, at {prices.per_1000_writes:g} and {prices.per_1000_reads:g} dollars for 1,000."
        )
    if gone.since_seconds is None:
        sentences.append("Saved by garbage collection: not known. The history has no run of gc.")
    else:
        sentences.append(
            f"Saved by garbage collection: {_dollars(prices.dollars_of_storage(gone.bytes))} a month. The "
            f"{counted(gone.runs, 'run')} of gc since {utc(gone.since_seconds)} deleted {counted(gone.files, 'file')} "
            f"with {decimal(gone.bytes)}. This assumes that nothing else would have deleted them: Spark's own maintenance "
            "deletes old files, too, while the query runs."
        )
    items = "".join(f"<li>{_text(one)}</li>" for one in sentences)
    return f"<h3>Dollars a month</h3><ul>{items}</ul>"


def _dollars(value: float) -> str:
    return "less than 0.01 dollars" if 0 < value < 0.01 else f"{value:,.2f} dollars"


def _changes(changes: Sequence[ChangeOverview]) -> str:
    if not changes:
        return "<h3>Changes of the state</h3><p>The history has no rewrite, rewind or repair.</p>"
    rows = [
        (
            utc(one.started_seconds, between=" "),
            one.verb,
            "-" if one.batch is None else f"{one.batch:,}",
            one.details,
            one.outcome if one.outcome == "done" else _Cell(one.error or one.outcome, "bad"),
        )
        for one in reversed(changes)
    ]
    columns = ("time", "verb", "#batch", "change", "outcome")
    return _table("Changes of the state, the newest first", columns, rows, of=len(rows))


def _drills(found: Overview) -> str:
    last = sorted(found.drills.items(), key=lambda item: (-item[1].drilled_at_seconds, item[0]))
    never = sum(one.store not in found.drills for one in found.stores)
    text = (
        f"{counted(never, 'store')} of {len(found.stores):,} were never restored by a drill."
        if never
        else ("A drill has restored each store.")
    )
    if red := _drill_findings(found):
        text = f"The newest drill has {counted(red, 'finding')}. {text}"
    rows = [
        (
            str(store),
            utc(one.drilled_at_seconds, between=" "),
            f"{max(one.version - 1, 0):,}",
            one.verdict.replace("_", " "),
            _seconds(one.predicted_seconds),
            _seconds(one.seconds),
        )
        for store, one in last[:_ROWS]
    ]
    columns = ("store", "last drill", "#batch", "result", "#predicted s", "#measured s")
    return f"<h3>Drills</h3><p>{_text(text)}</p>{_table('', columns, rows, of=len(last)) if rows else ''}"


def _drill_findings(found: Overview) -> int:
    return found.drill_runs[-1].findings if found.drill_runs else 0


def _runs(runs: Sequence[RunOverview]) -> str:
    rows = [
        (
            utc(one.started_seconds, between=" "),
            one.verb,
            f"{one.records:,}",
            _Cell(one.failed, "bad") if one.failed else "",
        )
        for one in reversed(runs)
    ]
    if not rows:
        return "<h3>Runs</h3><p>The history has no run.</p>"
    return _table("Runs, the newest first", ("time", "verb", "#records", "failed"), rows, of=len(rows))


# -- pieces ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    text: str
    color: str


@dataclass(frozen=True)
class _Bar:
    """A bar, and a second one below it."""

    label: str
    one: float
    two: float | None = None


def _text(text: str) -> str:
    return escape(redacted(printable(text)))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | _Cell]], *, of: int) -> str:
    """A table; on a phone, a list of its rows. The name of a column with numbers begins with #."""
    classes = [' class="n"' if name.startswith("#") else "" for name in columns]
    head = "".join(
        f"<th{kind}>{_text(name.removeprefix('#'))}</th>" for kind, name in zip(classes, columns, strict=True)
    )
    body, count = "", 0
    for row in rows:
        count += 1
        cells = "".join(
            f'<td{kind} data-of="{_text(name.removeprefix("#"))}">{_cell(value)}</td>'
            for name, kind, value in zip(columns, classes, row, strict=True)
        )
        body += f"<tr>{cells}</tr>"
    more = f'<p class="dim">the first {count:,} of {of:,}</p>' if of > count else ""
    heading = f"<h3>{_text(title)}</h3>" if title else ""
    return f'{heading}<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def _cell(value: str | _Cell) -> str:
    if isinstance(value, _Cell):
        return f'<span class="{value.color}">{_text(value.text)}</span>'
    return _text(value)


_WIDTH, _STEP, _LABEL = 640, 34, 16


def _bars(bars: Sequence[_Bar], one: str, two: str, unit: str) -> str:
    """Draw bars below their labels. `one`, `two`: the names of the bars in the legend."""
    most = max((value for bar in bars for value in (bar.one, bar.two or 0.0)), default=0.0) or 1.0
    parts, y = [], 0
    for bar in bars:
        values = [(bar.one, "--two" if not two else "--one")] + ([] if bar.two is None else [(bar.two, "--two")])
        unit_text = ""
        if unit:
            unit_text = f": {bar.one:,.2f} {unit}" + ("" if bar.two is None else f", measured {bar.two:,.2f} {unit}")
        parts.append(f'<text x="0" y="{y + 12}">{_text(bar.label + unit_text)}</text>')
        for number, (value, color) in enumerate(values):
            width = max(1.0, value / most * _WIDTH)
            parts.append(
                f'<rect x="0" y="{y + _LABEL + number * 7}" width="{width:.1f}" height="6" style="fill: var({color})"/>'
            )
        y += _STEP
    legend = f'<p class="dim">grey: {_text(one)}; blue: {_text(two)}</p>' if two else ""
    label = _text(one or "bytes by kind")
    return f'<svg viewBox="0 0 {_WIDTH} {max(y, 1)}" role="img" aria-label="{label}">{"".join(parts)}</svg>{legend}'


def _over_time(runs: Sequence[RunOverview]) -> str:
    """Draw the predicted and the measured seconds of a store, by drill."""
    if len(runs) < 2:
        return ""
    lines: Mapping[str, list[float]] = {
        "--one": [one.predicted_seconds / one.stores for one in runs],
        "--two": [one.seconds / one.stores for one in runs],
    }
    most = max(max(values) for values in lines.values()) or 1.0
    step, top, bottom = _WIDTH / (len(runs) - 1), 20, 120
    drawn = "".join(
        f'<polyline style="fill: none; stroke: var({color}); stroke-width: 2" points="{" ".join(points)}"/>'
        for color, values in lines.items()
        for points in [
            [f"{n * step:.1f},{bottom - value / most * (bottom - top):.1f}" for n, value in enumerate(values)]
        ]
    )
    first, last = utc(runs[0].started_seconds), utc(runs[-1].started_seconds)
    return (
        "<h3>Restore seconds of a store, by drill</h3>"
        f'<svg viewBox="0 0 {_WIDTH} 150" role="img" aria-label="restore seconds by drill">'
        f'<text x="0" y="12">{most:,.2f} s</text>{drawn}<text x="0" y="145">{_text(first)}</text>'
        f'<text x="{_WIDTH}" y="145" text-anchor="end">{_text(last)}</text></svg>'
        '<p class="dim">grey: predicted; blue: measured</p>'
    )
