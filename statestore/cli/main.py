"""The command itself. A verb is imported when it runs, so that `--version` and `--help` are quick."""

from __future__ import annotations

from pathlib import Path

import click

from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.cli.group import Group, LazyVerbs, VerbEntry, Verbs

_LOOK, _HEALTHY, _RECOVER, _CHANGE, _MOVE, _SET_UP = Group
_ROOT = "s3://bucket/orders/checkpoint"
_JOB_ROOT = "s3://bucket/orders/state"

VERBS = (
    VerbEntry("inspect", _LOOK, "Show the stores, their snapshots and the restart time.", f"inspect {_ROOT}"),
    VerbEntry("audit", _LOOK, "Verify that the query can restart, and explain damage.", f"audit {_ROOT}"),
    VerbEntry("dump", _LOOK, "Show the rows of the state.", f"dump {_ROOT} --key user=ann"),
    VerbEntry(
        "diff", _LOOK, "Show which rows differ between two batches.", f"diff {_ROOT} --from-batch 40 --to-batch 41"
    ),
    VerbEntry("top", _LOOK, "Show the largest, the hottest and the oldest keys.", f"top {_ROOT}"),
    VerbEntry("report", _LOOK, "Write an HTML page about checkpoints.", "report --all -o report.html"),
    VerbEntry("explain", _LOOK, "Explain the code of a finding or an error.", "explain changelog_missing"),
    VerbEntry("lease", _LOOK, "Show which process maintains a checkpoint.", f"lease {_ROOT}"),
    VerbEntry(
        "maintain", _HEALTHY, "Do all that is due: snapshot, audit, gc. Can stay.", f"maintain {_ROOT} --dry-run"
    ),
    VerbEntry("snapshot", _HEALTHY, "Only shorten a restart.", f"snapshot {_ROOT} --mode snapshots"),
    VerbEntry("drill", _HEALTHY, "Prove that stores restore, and how fast.", f"drill {_ROOT}"),
    VerbEntry("gc", _HEALTHY, "Only delete files that no retained batch needs.", f"gc {_ROOT}"),
    VerbEntry(
        "optimize", _HEALTHY, "Merge and delete files of the table it writes.", f"optimize {_JOB_ROOT} s3://lake/delays"
    ),
    VerbEntry("repair", _RECOVER, "Remove what stops Spark, and keep the newest batch.", f"repair {_ROOT}"),
    VerbEntry("rewind", _RECOVER, "Go back to an earlier batch or time.", f"rewind {_ROOT} --to-batch 1200"),
    VerbEntry(
        "claim",
        _RECOVER,
        "Continue a state root with another query.",
        f"claim {_JOB_ROOT} --checkpoint s3://bucket/orders/new-checkpoint",
    ),
    VerbEntry("switch", _CHANGE, "Change the structure, V1 or V2.", f"switch {_ROOT} --to v2"),
    VerbEntry("rescale", _CHANGE, "Change the number of partitions.", f"rescale {_ROOT} --partitions 64"),
    VerbEntry("convert", _CHANGE, "Change the state store provider.", f"convert {_ROOT} --to rocksdb"),
    VerbEntry("edit", _CHANGE, "Delete or correct some rows.", f"edit {_ROOT} --operator 0 --delete user=ann"),
    VerbEntry("load", _CHANGE, "Replace all rows by those of a savepoint.", f"load s3://backup/orders {_ROOT}"),
    VerbEntry("evolve", _CHANGE, "Change the columns of a state root.", f"evolve {_JOB_ROOT} --schema columns.toml"),
    VerbEntry(
        "migrate",
        _CHANGE,
        "Keep the state when the query's code changes.",
        f"migrate {_ROOT} s3://bucket/orders/blueprint s3://bucket/orders/changed",
    ),
    VerbEntry("clone", _MOVE, "Copy one batch once, to start a query from it.", f"clone {_ROOT} s3://test/orders"),
    VerbEntry("mirror", _MOVE, "Keep a copy up to date, to fail over to it.", f"mirror {_ROOT} s3://replica/orders"),
    VerbEntry(
        "savepoint",
        _MOVE,
        "Keep a labeled batch forever, as files or as rows.",
        f"savepoint {_ROOT} s3://backup/orders --label before-upgrade",
    ),
    VerbEntry("publish", _MOVE, "Keep a Delta table equal to the state.", f"publish {_ROOT} s3://lake/open_orders"),
    VerbEntry(
        "history", _MOVE, "Keep tables of all runs, for SQL.", "history --all --to s3://lake/statekeeper-history"
    ),
    VerbEntry("unpack", _MOVE, "Write batch logs as files that Spark can read.", f"unpack {_JOB_ROOT}"),
    VerbEntry("config", _SET_UP, "Show the policies and where they come from.", "config check"),
    VerbEntry("application", _SET_UP, "Print the file that spark-submit starts.", "application"),
    VerbEntry("completion", _SET_UP, "Complete verbs, options and roots in your shell.", "completion bash"),
)
"""The verbs of the command, in the order of its help."""


def _existing(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    # A pattern is examined when it is read: the startup must be quick.
    if path is not None and not path.exists() and not {"*", "?", "["} & set(str(path)):
        raise click.BadParameter(f"File {str(path)!r} does not exist.")
    return path


@click.group(cls=Verbs, commands=LazyVerbs(VERBS), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="statekeeper", prog_name="statekeeper")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    callback=_existing,
    envvar="STATEKEEPER_CONFIG",
    help="Configuration: a file, a folder of files *.toml, or a pattern 'teams/*.toml'. "
    f"Default: ./{CONFIGURATION_FILE}, if it exists.",
)
def main(config: Path | None) -> None:
    """Maintain the checkpoints of stateful Spark queries. ROOT is a path, a URL, or a name in statekeeper.toml.

    Act at once: maintain, snapshot, drill, clone, mirror, publish, history, savepoint, unpack, lease --break, --undo and
    --abort. Add --dry-run to only plan. Need --apply, and only plan without it: gc, optimize, repair, rewind, claim, all
    verbs of Change and savepoint --delete.

    Mode: for a native query, snapshot needs --mode snapshots, and gc and optimize need --mode full, unless statekeeper.toml
    sets a mode.

    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 findings, 4 partial success, 10 not a checkpoint, 11 another run
    holds the lease, 12 unknown format, 13 rejected as unsafe (refused_as_unsafe), 130 interrupted.
    """
    del config  # the verbs read it, each for its root
