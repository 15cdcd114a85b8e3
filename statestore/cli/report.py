"""`statekeeper report`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.cli.common import FINDINGS, TALK, open_root, pasteable, say, scratch_option
from statekeeper.statestore.cli.roots import chosen_roots, no_checkpoints, roots_options, worst
from statekeeper.statestore.cli.rows import chosen, restored_bar
from statekeeper.statestore.cli.tables import plain
from statekeeper.statestore.contents.rows import contents_at
from statekeeper.statestore.contents.top import TopOfState, look
from statekeeper.statestore.maintenance.verbs.html_page import Section, page
from statekeeper.statestore.maintenance.verbs.overview import overview
from statekeeper.statestore.storage import Storage

_BATCHES = 10
"""The newest batches in which the writes of each key are counted."""


@click.command()
@roots_options
@click.option(
    "--top",
    "limit",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Add so many of the largest and of the most changed keys of each operator. This restores the stores into the "
    "scratch directory, and the page then contains keys.",
)
@scratch_option
@click.option(
    "-o",
    "--output-file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("statekeeper-report.html"),
    show_default=True,
    help="The HTML file to write. An existing file is replaced.",
)
def report(roots: tuple[str, ...], all_roots: bool, limit: int, scratch: Path, file: Path) -> None:
    """Write one HTML page about checkpoints: health, findings, restores, lineages, growth, costs, drills and runs.

    The page is one file without scripts. It loads nothing from a network, so it can be sent by mail or kept with an
    incident. It can be read on a phone, in light and dark, and printed. Checkpoints for which a person must act come first.

    report only reads the checkpoints. It audits names and sizes; audit --deep reads every byte.

    Exit code 3: a checkpoint needs action.
    """
    ctx, clock, codes = click.get_current_context(), SystemClock(), list[int]()
    sections: list[Section] = []
    for name in chosen_roots(ctx, codes, roots, all_roots=all_roots):
        try:
            root = open_root(ctx, name)
            found = overview(root.storage, root.policies, clock=clock, prices=root.prices)
            if limit:
                found = replace(found, top=_top(root.storage, limit, scratch, clock))
        except StatekeeperError as error:
            say(error)
            sections.append(Section(name, error))
            codes.append(error.exit_code)
            continue
        sections.append(Section(name, found.named(pasteable)))
        codes.append(FINDINGS if sections[-1].is_red else 0)
    if not sections:
        raise no_checkpoints(ctx)
    file.write_text(page(sections, now_seconds=clock.now_seconds()), encoding="utf-8")
    TALK.print(plain(f"wrote {file}"), soft_wrap=True)
    sys.exit(worst(codes))


def _top(storage: Storage, limit: int, scratch: Path, clock: Clock) -> TopOfState | StatekeeperError | None:
    """Restore the stores one after another, and find the largest and the most changed keys.

    None before the first batch; the error if a store does not load, which is also a finding.
    """
    try:
        contents = contents_at(storage)
        if contents is None:
            return None
        stores = chosen(contents, (), None)
        with restored_bar(len(stores)) as advance:
            return look(
                contents,
                stores,
                batches=_BATCHES,
                limit=limit,
                scratch=scratch,
                clock=clock,
                ids=RandomIds(),
                told=lambda store: advance(),
            )
    except StatekeeperError as error:
        return error
