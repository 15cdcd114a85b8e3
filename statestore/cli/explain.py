"""`statekeeper explain`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console

from statekeeper.statestore.base import errors
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    Output,
    complete_root,
    endpoint_option,
    name_root,
    open_root,
    output_option,
    pasteable,
    say,
)
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.maintenance.upkeep.audit.explanations import EXPLANATIONS
from statekeeper.statestore.maintenance.verbs.audit import look

_FINDINGS = {kind.code: kind for kind in FindingKind}
_ERRORS = {kind.code: kind for kind in errors.error_classes()}
_BATCH, _NUMBER, _ROOT = "BATCH", "NUMBER", "ROOT"
"""The placeholders of commands."""
_CODES = sorted({*_FINDINGS, *_ERRORS})


def _code(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given is None:
        return None
    code = given.lower().replace("-", "_")
    if code in _CODES:
        return code
    near = difflib.get_close_matches(code, _CODES, n=3, cutoff=0.5) or [one for one in _CODES if code in one][:3]
    most_alike = f"the nearest codes are {', '.join(near)}" if near else "no code is like it"
    raise click.BadParameter(f"there is no code {given!r}: {most_alike}. To list all codes, run: statekeeper explain")


@click.command()
@click.argument(
    "code",
    metavar="[CODE]",
    required=False,
    callback=_code,
    shell_complete=lambda _, __, typed: [one for one in _CODES if one.startswith(typed)],
)
@click.argument("root", required=False, shell_complete=complete_root)
@endpoint_option
@output_option
def explain(code: str | None, root: str | None, output: Output) -> None:
    """Explain the code of a finding or an error: its meaning, the usual causes, and the next command.

    The audit prints the code of its worst finding, and with --output json the code of each finding. An error begins with
    its code.

    explain only reads. With ROOT, the commands name this checkpoint. If a command needs the batch from which the query can
    restart, explain also audits ROOT. If this audit, which is not --deep, has the finding, explain fills in the batch.

    Without CODE, explain lists all codes.
    """
    if code is None:
        output.show(_all(), _print_all)
        return
    batch = None
    if root is not None:
        name_root(click.get_current_context(), root)
        if code in _FINDINGS and any(_BATCH in one for one in EXPLANATIONS[_FINDINGS[code]].commands):
            batch = _batch_to_restart_from(root, _FINDINGS[code])
    found = list(_explained(code, batch))
    output.show({"code": code, "batch": batch, "explanations": found}, lambda console: _print(console, code, found))


def _batch_to_restart_from(root: str, kind: FindingKind) -> int | None:
    """Return the batch that the audit of a root names; None if it names none, has no finding of this kind, or fails.

    An audit that does not have the finding may name a batch that has the damage, which only a deep audit sees.
    """
    try:
        opened = open_root(click.get_current_context(), root)
        found = look(opened.storage, opened.policies, clock=SystemClock()).audit
    except StatekeeperError as error:
        say(error)
        return None
    return found.restart.batch if any(one.kind is kind for one in found.findings) else None


def _all() -> dict[str, Any]:
    return {
        "findings": [{"code": code, "title": kind.value} for code, kind in _FINDINGS.items()],
        "errors": [
            {"code": code, "title": _first_sentence(kind), "exit_code": kind.exit_code}
            for code, kind in _ERRORS.items()
        ],
    }


def _explained(code: str, batch: int | None) -> Iterator[dict[str, Any]]:
    """Yield the explanations of a code: of a finding, of an error, or of both. `batch`: for the placeholder BATCH."""
    if code in _FINDINGS:
        kind = _FINDINGS[code]
        one = EXPLANATIONS[kind]
        yield {
            "of": "finding",
            "title": kind.value,
            "meaning": one.meaning,
            "causes": list(one.causes),
            "works": one.works,
            "action": one.action,
            "commands": [
                pasteable(line if batch is None else line.replace(_BATCH, str(batch))) for line in one.commands
            ],
            "page": f"docs/checks/{one.check}.md#{code}",
        }
    if code in _ERRORS:
        error = _ERRORS[code]
        action = errors.action_of(error)
        yield {
            "of": "error",
            "title": f"exit code {error.exit_code}",
            "meaning": _text(error),
            "causes": [],
            "works": None,
            "action": f"{action[:1].upper()}{action[1:]}. The message of the error has the next command.",
            "commands": [],
            "page": f"docs/reference/errors.md#{errors.__name__}.{error.__name__}",
        }


def _text(error: type[StatekeeperError]) -> str:
    return " ".join((error.__doc__ or "").split())


def _first_sentence(error: type[StatekeeperError]) -> str:
    return _text(error).partition(". ")[0].removesuffix(".")


def _print(console: Console, code: str, found: list[dict[str, Any]]) -> None:
    for one in found:
        console.print(tables.plain(f"{code} ({one['of']}): {one['title']}"), soft_wrap=True)
        parts = {"Meaning": one["meaning"], "Usual causes": " ".join(one["causes"]), "What still works": one["works"]}
        for name, text in {**parts, "Next": one["action"]}.items():
            if text:
                console.print()
                console.print(tables.plain(f"{name}: {text.replace('`', '')}"))
        if one["commands"]:
            console.print()
        for command in one["commands"]:
            console.print(tables.plain(f"    {command}"), soft_wrap=True)
        if any(_BATCH in command for command in one["commands"]):
            deep = " --deep" if any(command.endswith("--deep") for command in one["commands"]) else ""
            line = pasteable(f"BATCH is the batch that the audit names: statekeeper audit {_ROOT}{deep}")
            console.print(tables.plain(line), soft_wrap=True)
        if any(_NUMBER in command for command in one["commands"]):
            console.print("NUMBER is the number of partitions that you want", soft_wrap=True)
        console.print()
        console.print(tables.plain(f"Page: {one['page']}"), soft_wrap=True)
        if one is not found[-1]:
            console.print()


def _print_all(console: Console) -> None:
    listed = _all()
    width = max(map(len, _CODES))
    for headline, of in (("findings of the audit:", listed["findings"]), ("errors:", listed["errors"])):
        console.print(headline)
        for one in of:
            console.print(tables.plain(f"  {one['code']:{width}}  {one['title']}"), soft_wrap=True)
        console.print()
    console.print("to explain a code, run for example: statekeeper explain changelog_missing", soft_wrap=True)
