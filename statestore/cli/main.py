"""The command itself: its verbs, each in a module of its own."""

from __future__ import annotations

from pathlib import Path

import click

from statekeeper.statestore.cli.audit import audit
from statekeeper.statestore.cli.claim import claim
from statekeeper.statestore.cli.clone import clone
from statekeeper.statestore.cli.common import Verbs, config_option
from statekeeper.statestore.cli.convert import convert
from statekeeper.statestore.cli.diff import diff
from statekeeper.statestore.cli.dump import dump
from statekeeper.statestore.cli.edit import edit
from statekeeper.statestore.cli.evolve import evolve
from statekeeper.statestore.cli.gc import gc
from statekeeper.statestore.cli.inspect import inspect
from statekeeper.statestore.cli.lease import lease
from statekeeper.statestore.cli.load import load
from statekeeper.statestore.cli.mirror import mirror
from statekeeper.statestore.cli.repair import repair
from statekeeper.statestore.cli.rescale import rescale
from statekeeper.statestore.cli.rewind import rewind
from statekeeper.statestore.cli.savepoint import savepoint
from statekeeper.statestore.cli.snapshot import snapshot
from statekeeper.statestore.cli.switch import switch
from statekeeper.statestore.cli.unpack import unpack


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="statekeeper", prog_name="statekeeper")
@config_option
def main(config: Path | None) -> None:
    """Maintain the checkpoints of stateful Spark queries. ROOT is a path, a URL, or a name in statekeeper.toml.

    gc, repair, rewind, switch, rescale, convert, edit, load, evolve, claim and savepoint --delete show a plan. They change
    nothing unless you add --apply.

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


for verb in (
    inspect,
    audit,
    dump,
    diff,
    snapshot,
    gc,
    repair,
    rewind,
    switch,
    rescale,
    convert,
    edit,
    load,
    evolve,
    clone,
    mirror,
    savepoint,
    claim,
    unpack,
    lease,
):
    main.add_command(verb)
