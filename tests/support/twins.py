"""A query and its twin: changes of a native checkpoint, and comparisons after them.

The twin of a query is the same query over the same batches, whose checkpoint Statekeeper does not change. The outputs of
both must be equal, and so must their states as Spark's reader shows them.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit.findings import FindingKind
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.store.engine.rocks import Database
from tests.support.dumped import dumped, expected, shown
from tests.support.edited_keys import a_key_of, leaves, without_key
from tests.support.maintainers import MAINTAINER
from tests.support.native import NativeQuery
from tests.support.savepoints import rows_of, saved

State = Mapping[str, Counter[str]]
"""The rows that Spark's reader shows, by view."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
AT_HEAD = ("--at-head", "--confirm-stopped")


@dataclass(frozen=True)
class Oracle:
    """Spark's own reader: the newest state as text, and as JSON."""

    state: Callable[[], State]
    views: Callable[[], Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class Twin:
    """The outputs of an unmaintained query by batch, and its state when it was saved as `middle` and at its end."""

    outputs: Mapping[int, Counter[str]]
    middle: State
    end: State


def statekeeper(*arguments: str, exit_code: int = 0) -> str:
    """Run the command, and return its output. Fail if it ends with another exit code."""
    done = CliRunner().invoke(main, arguments, obj=MAINTAINER)
    assert done.exit_code == exit_code, done.output
    return done.output


def changelogs(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("state") if entry.path.endswith(".changelog")]


def clean(storage: Storage, scratch: Path, *, but: frozenset[FindingKind] = frozenset()) -> None:
    """Assert that the audit has no findings except the named ones."""
    found = audit.judge(audit.gather(storage, scratch=scratch))
    assert [finding for finding in found.findings if finding.kind not in but] == []
    assert found.stores


def untouched(query: NativeQuery, oracle: Oracle) -> Twin:
    """Run the query to its end with nothing done to it, and save it in the middle."""
    query.run(3)
    query.saved("middle")
    middle = oracle.state()
    query.run(2)
    return Twin(dict(query.outputs), middle, oracle.state())


def take_snapshots(query: NativeQuery, scratch: Path, *options: str) -> None:
    """Take a snapshot of each store's head, and delete the changelogs that a restart could replay instead."""
    root = query.root
    statekeeper("snapshot", root, *AT_HEAD, "--mode", "snapshots", "--scratch", str(scratch), *options)
    collect_all_but_the_head(query)
    storage = open_storage(root)
    heads = catalog.heads(storage)
    assert heads is not None
    assert len(changelogs(storage)) == len(heads.heads)
    left = {path for folder in ("commits", "offsets") for path in (entry.path for entry in storage.list(folder))}
    assert left == {names.commits(heads.batch), names.offsets(heads.batch), names.offsets(heads.batch - 1)}


def collect_all_but_the_head(query: NativeQuery) -> None:
    """Delete all versions but the newest one."""
    statekeeper("gc", query.root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")


def switch(query: NativeQuery, to: Structure, scratch: Path, *options: str) -> None:
    """By the command; the conf is the caller's business."""
    root = query.root
    statekeeper("switch", root, "--to", to.value, "--apply", "--confirm-stopped", "--scratch", str(scratch), *options)


def rescale(query: NativeQuery, partitions: int, scratch: Path, *options: str) -> int:
    """Rescale the checkpoint, and return the number of the batch that the rescale appends."""
    given = ("--partitions", str(partitions), "--apply", "--confirm-stopped", "--scratch", str(scratch))
    statekeeper("rescale", query.root, *given, *options)
    batch = catalog.newest_batch(open_storage(query.root))
    assert batch is not None
    return batch


def convert(query: NativeQuery, structure: Structure, scratch: Path, *options: str) -> int:
    """Convert the checkpoint to RocksDB, and return the number of the batch that the conversion appends."""
    given = (
        "--to",
        "rocksdb",
        "--structure",
        structure.value,
        "--apply",
        "--confirm-stopped",
        "--scratch",
        str(scratch),
    )
    statekeeper("convert", query.root, *given, *options)
    batch = catalog.newest_batch(open_storage(query.root))
    assert batch is not None
    return batch


def delete_a_key(query: NativeQuery, scratch: Path, *options: str) -> str:
    """Delete a key of the state. Check that only its rows are gone, and return the id of the run."""
    chosen = a_key_of(query.checkpoint)
    assert chosen is not None
    operator, key = chosen
    expected = without_key(dumped(query.root), operator, key)
    goal = [text for name, value in leaves(key).items() for text in ("--delete", f"{name}={value}")]
    given = ("--operator", str(operator), *goal, "--apply", "--confirm-stopped", "--scratch", str(scratch))
    told = statekeeper("edit", query.root, *given, *options)
    assert dumped(query.root) == expected
    return told.split("--undo ")[1].split()[0]


def without(outputs: Mapping[int, Counter[str]], appended: int) -> dict[int, Counter[str]]:
    """Return the outputs by batch as if the appended batch did not exist."""
    assert appended not in outputs
    return {batch - (batch > appended): rows for batch, rows in outputs.items()}


def goes_on(query: NativeQuery, oracle: Oracle, twin: Twin) -> None:
    """From the middle to the end, as the twin did."""
    query.run(2)
    assert query.outputs == twin.outputs
    assert oracle.state() == twin.end


def dump_is_what_spark_shows(query: NativeQuery, oracle: Oracle) -> None:
    rows = dumped(query.root)
    assert rows
    for view, found in oracle.views().items():
        assert shown(rows, json.loads(view)) == expected(found, json.loads(view)), view


def savepoint_is_what_spark_shows(query: NativeQuery, oracle: Oracle, folder: Path) -> None:
    """Make a savepoint with rows in a new folder, and compare its tables with Spark's rows."""
    to = Path(tempfile.mkdtemp(dir=folder, prefix="savepoint-"))
    saved(open_storage(query.root), open_storage(str(to)), folder, stopped=True)
    rows = rows_of(to)
    assert rows
    for view, found in oracle.views().items():
        assert shown(rows, json.loads(view)) == expected(found, json.loads(view)), view


def take_wrong_snapshots(query: NativeQuery, scratch: Path, *options: str) -> None:
    """Take snapshots that lack a key in each store. A comparison must detect them."""
    root = query.root
    with forgetful():
        statekeeper("snapshot", root, *AT_HEAD, "--mode", "snapshots", "--scratch", str(scratch), *options)
    storage = open_storage(root)
    storage.delete(changelogs(storage))


def leave_only_wrong_snapshots(query: NativeQuery, scratch: Path, *options: str) -> None:
    """As `take_wrong_snapshots`, and delete older versions. Before a rewrite: it rejects a gap between an older snapshot
    and the wrong one."""
    take_wrong_snapshots(query, scratch, *options)
    collect_all_but_the_head(query)


@contextmanager
def forgetful() -> Iterator[None]:
    """Snapshots made inside this block lack the first key of their store."""
    capture = Database.capture

    def without_first(database: Database, path: Path) -> None:
        first = next((keys[0] for keys, _ in database.scan()), None)
        if first is not None:
            database.apply([[(first, None)]], None)
        capture(database, path)

    Database.capture = without_first
    try:
        yield
    finally:
        Database.capture = capture
