"""The command itself: its verbs, each in a module of its own."""

from __future__ import annotations

import click

from statestore.cli.common import Verbs
from statestore.cli.inspect import inspect
from statestore.cli.snapshot import snapshot


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Looks after the checkpoints of stateful Spark queries. ROOT is a path or a URL.

    Exit codes: 0 fine, 1 failed, 2 usage, 3 findings, 4 partly done, 10 not a checkpoint, 11 locked, 12 unknown
    format, 13 refused as unsafe, 130 interrupted.
    """


for verb in (inspect, snapshot):
    main.add_command(verb)
