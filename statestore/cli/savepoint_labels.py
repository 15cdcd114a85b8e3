"""`statekeeper savepoint --list` and `--delete`."""

from __future__ import annotations

import sys
from typing import Any

from rich import filesize
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    error_object,
    pasteable,
    run_of,
)
from statekeeper.statestore.maintenance.copies.labels import Label, Labels
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.savepoint import Remove, find, listed


def delete_labeled(root: Opened, policies: Policies, label: str, forget: bool, applies: bool, output: Output) -> None:
    """Show the files of a savepoint and, with `applies`, delete them. Raises as `Remove`."""
    found = find(root.storage, label)
    prepared = prepare(Remove(label=found, forget=forget), run_of(root, policies=policies))
    planned, refusals, url = prepared.plan.plan, prepared.refusals, prepared.plan.destination.url
    shown = {
        **_label(found),
        "files": len(planned.files),
        "bytes": planned.size_bytes,
        "other_files": planned.others,
        "refusals": [error_object(error) for error in refusals],
    }
    if applies:
        perform(prepared)
    text = f"{counted(len(planned.files), 'file')} of {label} at {url}, {filesize.decimal(planned.size_bytes)}"

    def print_removal(console: Console) -> None:
        if planned.others:
            console.print(f"{planned.others:,} other files stay")
        for refusal in refusals:
            console.print(Text.assemble(("blocked: ", "red"), pasteable(str(refusal))), soft_wrap=True)
        end = "deleted" if applies else "to delete"
        console.print(tables.plain(f"{end} {text}{'' if applies else '; add --apply'}"), soft_wrap=True)

    output.show({**shown, "deleted": applies}, print_removal)
    if not applies and refusals:
        sys.exit(FINDINGS)


def _label(label: Label) -> dict[str, Any]:
    return {
        "label": label.label,
        "note": label.note,
        "content": label.content.value,
        "source": label.source,
        "destination": label.destination,
        "batch": label.batch,
        "size_bytes": label.size_bytes,
        "created_at": _time(label),
        "deleting": label.deleting,
    }


def _time(label: Label) -> str:
    return utc(label.created_at_ms / 1000)


def list_labels(root: Opened, output: Output) -> None:
    """Show the savepoints that a root records. Ends with `FINDINGS` if a record cannot be read."""
    found = listed(root.storage)
    shown = {
        "savepoints": [_label(one) for one in found.labels],
        "problems": [error_object(problem) for problem in found.problems],
    }
    output.show(shown, lambda console: _print_list(console, found))
    if found.problems:
        sys.exit(FINDINGS)


def _print_list(console: Console, found: Labels) -> None:
    console.print(f"savepoints: {len(found.labels):,}")
    for one in found.labels:
        size = filesize.decimal(one.size_bytes)
        line = f"{one.label}: {tables.when(one.batch)} as {one.content.value}, {size}, {_time(one)}, {one.destination}"
        rest = f"{': ' if one.note else ''}{one.note}{'; its deletion has begun' if one.deleting else ''}"
        console.print(tables.plain(f"{line}{rest}"), soft_wrap=True)
    for problem in found.problems:
        console.print(Text.assemble(("unreadable: ", "red"), str(problem)), soft_wrap=True)
