"""A full scratch disk is a typed error that names the folder and its option; a rerun completes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import LocalDiskFull
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.store.engine import scratch
from tests.faults.fuzz.roots import Stage, made
from tests.support.commands import statekeeper
from tests.support.mounts import fill, small_disk
from tests.support.unpacked import unpacked

CHECKPOINTS = Path(__file__).parents[3] / "fixtures" / "checkpoints"
GO = ("--apply", "--confirm-stopped")

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "snapshot": ("own-v2", ("snapshot", "{root}", "--mode", "full", "--all")),
    "audit --deep": ("own-v2", ("audit", "{root}", "--deep")),
    "dump": ("own-v2", ("dump", "{root}")),
    "diff": ("own-v2", ("diff", "{root}")),
    "gc": ("own-v2", ("gc", "{root}", "--mode", "full", "--retain", "1", "--grace", "0s", "--apply")),
    "switch": ("own-v2", ("switch", "{root}", "--to", "v1", *GO)),
    "edit": ("own-v2", ("edit", "{root}", "--operator", "0", "--delete", "name=counter", "--delete", "day=0", *GO)),
    "rewind": ("own-v2", ("rewind", "{root}", "--to-batch", "5", *GO)),
    "savepoint": ("own-v2", ("savepoint", "{root}", "{new}", "--rows")),
    "rescale": ("v2-aggregation", ("rescale", "{root}", "--partitions", "3", *GO)),
    "convert": ("hdfs-aggregation", ("convert", "{root}", "--to", "rocksdb", "--structure", "v2", *GO)),
    "load": ("v2-aggregation", ("load", "{saved}", "{root}", "--replace-state", *GO)),
    "dump of batch logs": ("own-v2-log", ("dump", "{root}")),
    "snapshot of batch logs": ("own-v2-log", ("snapshot", "{root}", "--mode", "full", "--all")),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.mark.parametrize("case", CASES)
def test_a_full_scratch_disk_is_named_with_its_option_and_a_rerun_completes(
    case: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, call = CASES[case]
    root = tmp_path / "root"
    if name.startswith("hdfs"):
        shutil.copytree(unpacked(CHECKPOINTS / f"spark-4.2.0-{name}.zip", tmp_path / "unpacked"), root)
    else:
        shutil.copytree(made(cache, name, Stage.WRITTEN), root)
    places = {"root": root, "new": tmp_path / "new", "saved": tmp_path / "saved"}
    if "{saved}" in call:
        saving = statekeeper("savepoint", root, places["saved"], "--rows", "--confirm-stopped")
        assert saving.exit_code == 0, saving.output
    with small_disk(tmp_path / "scratch", 64 * 1024**2) as disk:
        arguments = [part.format_map(places) for part in call]
        if "--scratch" in statekeeper(arguments[0], "--help").output:
            arguments += ["--scratch", str(disk)]
        monkeypatch.setattr("tempfile.tempdir", str(disk))
        filler = fill(disk)
        failed = statekeeper(*arguments)
        said = " ".join(failed.output.split())
        # A rewrite compares the free space already in its plan, which it blocks.
        assert failed.exit_code == 1 or (failed.exit_code == 3 and "are needed, but 0 are free" in said), said
        assert str(disk) in said
        assert "--scratch" in said
        found = lease.current(open_storage(str(root)))
        assert found is None or found.lease.released
        assert os.listdir(disk) == [filler.name]
        filler.unlink()
        assert os.listdir(disk) == []
        # As the error says: in another folder.
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        done = statekeeper(*(str(tmp_path / "large") if part == str(disk) else part for part in arguments))
        assert done.exit_code == 0, done.output
    assert statekeeper("audit", root).exit_code == 0


# -- leftovers ---------------------------------------------------------------------------------------------------------


def _work(base: str, ready: multiprocessing.connection.Connection) -> None:
    with scratch.work_folder(Path(base), "rewrite") as folder:
        (folder / "spool").mkdir()
        (folder / "spool" / "000004.sst").write_bytes(bytes(1000))
        ready.send(str(folder))
        signal.pause()


def test_the_folder_of_a_killed_process_is_deleted_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    killed, running = (context.Process(target=_work, args=(str(tmp_path), theirs)) for _ in range(2))
    try:
        killed.start()
        of_killed = Path(mine.recv())
        running.start()
        of_running = Path(mine.recv())
        foreign = tmp_path / "rewrite-abcdefgh"
        foreign.mkdir()
        killed.kill()
        killed.join()
        with scratch.work_folder(tmp_path, "rewrite") as own:
            left = {path.name for path in tmp_path.iterdir()}
            assert left == {own.parent.name, of_running.parent.name, foreign.name}
        assert not of_killed.exists()
        assert (of_running / "spool" / "000004.sst").exists()
    finally:
        for process in (killed, running):
            process.kill()
            process.join()


def test_a_folder_that_is_swept_while_it_is_used_stays(tmp_path: Path) -> None:
    with scratch.work_folder(tmp_path, "rewrite") as folder:
        scratch.sweep(tmp_path)
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_a_full_disk_elsewhere_keeps_its_path(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskFull) as raised, scratch.work_folder(tmp_path / "scratch", "rewrite"):
        raise LocalDiskFull("full", path=str(tmp_path / "other"), hint="free space there")
    assert raised.value.path == str(tmp_path / "other")
    assert raised.value.hint == "free space there"
