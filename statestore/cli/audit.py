"""`statekeeper audit`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    cluster,
    executor_option,
    output_option,
    pasteable,
    progress_bar,
    scratch_option,
)
from statekeeper.statestore.cli.roots import several_roots
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit import Audit, Finding, Severity, StoreAudit
from statekeeper.statestore.maintenance.upkeep.retention import Amount
from statekeeper.statestore.maintenance.verbs.audit import Looked, look
from statekeeper.statestore.maintenance.verbs.report import when

_NAMED_STORES = 3
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


@click.command()
@several_roots
@click.option(
    "--deep",
    is_flag=True,
    help="Also read and decode every byte of every store. Without it, the audit reads the header of each changelog, and "
    "the name and size of each SST file.",
)
@click.option(
    "--retain",
    type=click.IntRange(1),
    help="Number of versions to verify: one for each batch. Use the same number as for gc. Default: the number in "
    "statekeeper.toml, otherwise 100.",
)
@scratch_option
@executor_option
@click.option(
    "--verbose",
    is_flag=True,
    help="Also list the properties that this audit did not verify. Each of these lines begins with `not proved`.",
)
@output_option
def audit(root: Opened, deep: bool, retain: int | None, scratch: Path, verbose: bool, output: Output) -> int:
    """Verify the integrity of a checkpoint: compare the state files with the commit log.

    The audit writes nothing below ROOT.

    Exit code 3: the audit has findings. Each finding names the action. Files that the next gc deletes are not findings:
    the summary only counts them.
    """
    policy = root.policies.retention
    with progress_bar() as progress:
        bar = progress.add_task("stores", total=None)
        looked = look(
            root.storage,
            replace(root.policies, retention=replace(policy, versions=retain or policy.versions)),
            clock=SystemClock(),
            scratch=scratch if deep else None,
            progress=lambda done, of: progress.update(bar, completed=done, total=of),
            cluster=cluster() if deep else None,
        )
    looked = replace(looked, audit=_named(looked.audit))
    output.show(_object(looked), lambda console: _print(console, looked, verbose=verbose))
    return FINDINGS if looked.audit.findings else 0


def _named(result: Audit) -> Audit:
    """The audit with commands that name the root as the user did."""
    findings = (replace(one, meaning=pasteable(one.meaning), action=pasteable(one.action)) for one in result.findings)
    return replace(result, findings=tuple(findings))


def _object(looked: Looked) -> dict[str, Any]:
    result, figures = looked.audit, looked.forecast
    garbage = figures.now if figures else Amount()
    by_store = figures.stores if figures else {}
    return {
        "batch": result.batch,
        "version": None if result.batch is None else result.batch + 1,
        "restart": asdict(result.restart),
        "findings": [_finding_object(finding) for finding in result.findings],
        "stores": [_store_object(store, by_store.get(store.store, Amount())) for store in result.stores],
        "decoded": {str(store): asdict(decoded) for store, decoded in result.decoded.items()},
        "totals": {
            "errors": result.count(Severity.ERROR),
            "warnings": result.count(Severity.WARNING),
            "stores": len(result.stores),
            "versions": result.versions,
            "requests": looked.requests.total,
            "bytes_read": looked.requests.bytes_read,
            "files": sum(store.files for store in result.stores),
            "bytes": sum(store.bytes for store in result.stores),
            "garbage_files": garbage.files,
            "garbage_bytes": garbage.bytes,
        },
        "floor": figures and figures.floor,
        "unproven": list(result.unproven),
        "stateless": result.stateless and code(result.stateless),
        "rewound": result.rewound and {"first": result.rewound.start, "last": result.rewound[-1]},
    }


def _finding_object(finding: Finding) -> dict[str, Any]:
    return {
        "severity": code(finding.severity),
        "code": finding.kind.code,
        "store": None if finding.store is None else str(finding.store),
        "file": finding.file,
        "problem": finding.problem,
        "meaning": finding.meaning,
        "action": finding.action,
    }


def _store_object(store: StoreAudit, garbage: Amount) -> dict[str, Any]:
    return {
        **asdict(store),
        "garbage_files": garbage.files,
        "garbage_bytes": garbage.bytes,
        "store": str(store.store),
        "head": str(store.head),
        "loadable": None if store.loadable is None else str(store.loadable),
        "base": None if store.base is None else str(store.base),
        "lost": [str(version) for version in store.lost],
    }


def _print(console: Console, looked: Looked, *, verbose: bool) -> None:
    """Print the findings by severity and kind, then the summary."""
    result = looked.audit
    problems = _by_problem(result.findings)
    for (severity, kind), group in itertools.groupby(
        problems[: tables.ROWS], key=lambda problem: (problem[0].severity, problem[0].kind)
    ):
        console.print(Text.assemble((severity.name, _COLOURS[severity]), ": ", kind.value), soft_wrap=True)
        for finding, others in group:
            # As plain text: names and errors come from files and may look like markup.
            console.print(Text(f"  {finding.place}: {finding.problem}"), soft_wrap=True)
            console.print(Text(f"    {finding.meaning}"), soft_wrap=True)
            if others:
                console.print(Text(f"    the same is true for {_named_stores(others)}"), soft_wrap=True)
            console.print(Text(f"    -> {finding.action}"), soft_wrap=True)
        console.print()
    if len(problems) > tables.ROWS:
        console.print(f"the worst {tables.ROWS} of {len(problems):,} problems; --output json prints all")
    for line in _summary(looked):
        console.print(Text(line), soft_wrap=True)
    if result.repeated_output is not None:
        console.print(Text(pasteable(result.repeated_output)), soft_wrap=True)
    if result.unproven and not verbose:
        more = "" if result.decoded else "; to verify most of them, add --deep"
        console.print(f"this audit did not verify {len(result.unproven)} properties; to list them, add --verbose{more}")
    for text in result.unproven if verbose else ():
        console.print(Text(f"not proved: {text}", style="dim"), soft_wrap=True)
    if problems:
        explained = pasteable(f"statekeeper explain {problems[0][0].kind.code} ROOT")
        console.print(Text(f"the worst finding is explained by: {explained}"), soft_wrap=True)


def _by_problem(findings: Sequence[Finding]) -> list[tuple[Finding, list[StorePath]]]:
    """Return a finding for each problem of a file, and the other stores that have it: a batch log belongs to many."""
    found: dict[tuple[object, ...], tuple[Finding, list[StorePath]]] = {}
    for one in findings:
        meaning = one.meaning.replace(f" {one.store} ", " ")
        known = found.setdefault((one.severity, one.kind, one.file, one.problem, meaning, one.action), (one, []))
        if one is not known[0] and one.store is not None:
            known[1].append(one.store)
    return list(found.values())


def _named_stores(stores: Sequence[StorePath]) -> str:
    named = ", ".join(str(store) for store in stores[:_NAMED_STORES])
    return f"{counted(len(stores), 'other store')}: {named}{', ...' if len(stores) > _NAMED_STORES else ''}"


def _summary(looked: Looked) -> Iterator[str]:
    """The lines after the findings: can the query restart, what was read, and what gc does."""
    result, totals = looked.audit, _object(looked)["totals"]
    verdict = (
        ("nothing to audit" if result.batch is None else "clean")
        if not result.findings
        else f"{counted(totals['errors'], 'error')}, {counted(totals['warnings'], 'warning')}"
    )
    read = f"{totals['requests']:,} requests, {totals['bytes_read']:,} bytes read"
    decoded = result.decoded.values()
    if decoded:
        records, keys = sum(one.records for one in decoded), sum(one.keys for one in decoded)
        read += f", {records:,} records and {keys:,} keys of snapshots decoded"
    if result.stateless is not None:
        yield f"{when(result.batch)}: {verdict}; {result.stateless.value}; {result.restart.explained}"
        yield read
        return
    if looked.facts.root.provider is Provider.HDFS_BACKED:
        garbage = f"Spark's maintenance deletes old files ({Provider.HDFS_BACKED.value})"
    elif result.breaks:
        garbage = f"gc deletes nothing until the errors are fixed ({totals['garbage_files']:,} files wait for deletion)"
    else:
        garbage = f"the next gc deletes at most {totals['garbage_files']:,} files ({totals['garbage_bytes']:,} bytes)"
        if looked.forecast is not None and looked.forecast.floor is not None:
            garbage += f"; it retains {VersionId(looked.forecast.floor).in_words} and later"
    yield f"{when(result.batch)}: {verdict}; {result.restart.explained}"
    yield f"{counted(totals['stores'], 'store')} with {counted(totals['versions'], 'version')}; {read}"
    yield garbage
