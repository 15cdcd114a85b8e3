"""A process that loads and commits over one scratch folder is killed again and again, wherever it happens to be."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.storage import open_storage
from tests.support.hosts import Host, State, changed
from tests.support.processes import any_lock_is_held

KILLS = 15
SEED = 7
KEYS_PER_BATCH = 400


def batch(number: int) -> dict[bytes, bytes | None]:
    """The changes that make version `number`: the model and the victim compute the same."""
    chance = random.Random(number)
    keys = [b"key %05d" % chance.randrange(5_000) for _ in range(KEYS_PER_BATCH)]
    return {key: None if chance.random() < 0.2 else b"%d " % number * 10 for key in keys}


def victim(root: Path, folder: Path, say: Connection) -> None:
    """Continue from the newest reported version, and report each commit. It ends only by a kill."""
    host = Host(open_storage(str(root)), folder / "host")
    log = folder / "commits"
    head = newest(log)
    say.send("ready")
    while True:
        head = host.commit(head, batch(head.version + 1))
        with log.open("a") as file:
            file.write(f"{head}\n")
        say.send("committed")
        # The copy moves on with each batch, its tables are merged every eight, and now and then an older version is
        # built in its place.
        host.advance_local_copy(head)
        if head.version % 11 == 0:
            host.read(earlier(log, head.version - 3))


def reported(log: Path) -> list[VersionId]:
    """The versions in the log; a line that a kill cut short is none."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    pairs = [line.strip().partition("_") for line in lines if line.endswith("\n")]
    return [VersionId(int(number), checkpoint_id) for number, _, checkpoint_id in pairs]


def newest(log: Path) -> VersionId:
    versions = reported(log)
    # The line that was cut is overwritten, as a commit log that never became visible is.
    log.write_text("".join(f"{version}\n" for version in versions))
    return versions[-1] if versions else EMPTY


def earlier(log: Path, version: int) -> VersionId:
    return next(item for item in reported(log) if item.version == version)


def test_after_a_kill_at_any_time_the_next_load_returns_the_committed_state(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    root, log = tmp_path / "root", tmp_path / "commits"
    states: list[State] = [{}]
    # Forked from a process that has imported all and opened nothing, as Spark's workers are.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    damaged = kills = while_the_copy_was_written = 0
    # On a busy machine, many kills come before the copy is written to: one must not.
    while kills < KILLS or (not while_the_copy_was_written and kills < 10 * KILLS):
        said, say = context.Pipe(duplex=False)
        process = context.Process(target=victim, args=(root, tmp_path, say))
        process.start()
        say.close()
        # Kill it in its first load or a few batches later. A batch takes some hundredths of a second.
        for _ in range(1 + chance.choice([0, 1, 1, 2, 2, 3])):
            assert said.poll(60)
            said.recv()
        time.sleep(chance.uniform(0.0, 0.05))
        assert process.is_alive()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        while_the_copy_was_written += any_lock_is_held(list((tmp_path / "host").glob("db-*/LOCK")))
        os.kill(process.pid, signal.SIGKILL)
        process.join(30)
        said.close()
        kills += 1
        head = newest(log)
        while len(states) <= head.version:
            states.append(changed(states[-1], batch(len(states))))
        with Host(open_storage(str(root)), tmp_path / "host").load(head) as store:
            damaged += store.load_report.replaced_damaged_copy
            assert dict(store.scan()) == states[head.version]
    fresh = Host(open_storage(str(root)), tmp_path / "fresh")
    assert fresh.read(head) == states[-1]
    print(
        f"{kills} kills over {head.version} versions, {while_the_copy_was_written} while the copy was written to; "
        f"it was found damaged {damaged} times"
    )
    # A copy that a kill damages is rebuilt, but then the kill has cost a load from storage: RocksDB survives kills.
    assert damaged == 0
    assert head.version >= KILLS
    assert while_the_copy_was_written >= 1
