"""The command itself. A verb is imported when it runs, so that `--version` and `--help` are quick."""

from __future__ import annotations

from pathlib import Path

import click

from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.cli.group import LazyVerbs, Verbs

SHORT_HELP = {
    "inspect": "Show stores, heads, bases and tails.",
    "audit": "Verify the integrity of a checkpoint.",
    "dump": "Show the rows of the state.",
    "diff": "Compare the state of two versions.",
    "maintain": "Take snapshots, audit and delete garbage, once or resident.",
    "snapshot": "Take snapshots of the stores with long tails.",
    "gc": "Delete files that are no longer needed.",
    "repair": "Repair files that prevent Spark from starting.",
    "rewind": "Roll a stopped query back to an earlier batch.",
    "switch": "Move a checkpoint to the other structure, V1 or V2.",
    "rescale": "Change the number of partitions.",
    "convert": "Move a checkpoint to the other state store provider.",
    "edit": "Delete or correct rows of the state.",
    "load": "Replace the state by the rows of a savepoint.",
    "evolve": "Add, drop, widen or rename value columns of a state root.",
    "clone": "Copy a checkpoint at one batch to another location.",
    "mirror": "Keep a copy of a checkpoint up to date, to fail over to it.",
    "savepoint": "Keep the state of a batch, as files or as rows.",
    "claim": "Make another query the owner of a state root.",
    "unpack": "Write changelogs of batch logs as files that Spark reads.",
    "lease": "Show which process maintains a checkpoint.",
    "config": "Show the policies of each root and where they come from.",
}
"""The verbs, with their line in the help of the command. Verb `x` is the click command `x` of the module `cli.x`."""


def _existing(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    # A pattern is examined when it is read: the startup must be quick.
    if path is not None and not path.exists() and not {"*", "?", "["} & set(str(path)):
        raise click.BadParameter(f"File {str(path)!r} does not exist.")
    return path


@click.group(cls=Verbs, commands=LazyVerbs(SHORT_HELP), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="statekeeper", prog_name="statekeeper")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    callback=_existing,
    envvar="STATEKEEPER_CONFIG",
    help="Configuration file with roots and policies; a folder with files *.toml; or a pattern such as 'teams/*.toml'. "
    f"Default: {CONFIGURATION_FILE} in the working directory, if it exists.",
)
def main(config: Path | None) -> None:
    """Maintain the checkpoints of stateful Spark queries. ROOT is a path, a URL, or a name in statekeeper.toml.

    gc, repair, rewind, switch, rescale, convert, edit, load, evolve, claim and savepoint --delete show a plan. They change
    nothing unless you add --apply.

    maintain runs immediately, within the mode of each ROOT. It takes snapshots, and deletes files that gc would delete.

    snapshot, clone, mirror, savepoint and unpack run immediately: they need no --apply. To see their plan and change
    nothing, add --dry-run. They only add files. Exception: mirror deletes old copies in the mirror.

    --undo, --abort and lease --break also run immediately. All other commands only read.

    A native query uses Spark's own stateful operators and Spark's RocksDB state store. A job on pipelines is a PySpark
    job that uses the stateful operator of Statekeeper's Python package pipelines.

    The mode of ROOT also limits the changes. The default mode of a native query is observe: snapshot is rejected unless you
    add --mode snapshots, and gc --apply unless you add --mode full. You can also set the mode in statekeeper.toml.

    Only a mode that statekeeper.toml sets for ROOT limits repair, rewind, switch, rescale, convert, edit, load, evolve and
    claim. With observe or snapshots there, --apply, --undo and --abort are rejected. If statekeeper.toml sets no mode,
    these commands are allowed, although the default mode of a native query is observe.

    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 findings, 4 partial success, 10 not a checkpoint, 11 another run
    holds the lease, 12 unknown format, 13 rejected as unsafe (refused_as_unsafe), 130 interrupted.
    """
    del config  # the verbs read it, each for its root
