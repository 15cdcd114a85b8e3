"""Copies, rewrites and proofs on a Spark cluster: the results of this machine, after which queries continue."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.audits import audited
from tests.support.commands import statekeeper
from tests.support.dumped import dumped
from tests.support.edited_keys import a_key_of, leaves
from tests.support.keyed_roots import KeyedRoot
from tests.support.on_a_cluster import Ran, on_a_cluster
from tests.support.spark_clusters import SPECULATION, event_log, events, executor_killed_when, two_hosts
from tests.support.unpacked import unpacked

pytestmark = pytest.mark.spark

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
BATCHES = 4
VOLATILE = ("seconds", "bytes", "requests")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ON_A_CLUSTER = ("--executor", "spark")


def stable(printed: Any) -> Any:
    """What a verb printed, without times, and without sizes, which depend on the ids of new files."""
    if isinstance(printed, dict):
        return {name: stable(one) for name, one in printed.items() if not any(part in name for part in VOLATILE)}
    return [stable(one) for one in printed] if isinstance(printed, list) else printed


def anonymous(printed: Any, folder: Path) -> Any:
    """What a verb printed, without its folder, and with one name for all random ids."""
    found = json.loads(_ID.sub("ID", json.dumps(printed).replace(str(folder), "FOLDER")))
    found.pop("run", None)
    return found


def copies(root: Path) -> list[list[str]]:
    """Commands that copy a root into the folders beside it."""
    beside = root.parent
    return [
        ["clone", str(root), str(beside / "clone"), "--confirm-stopped"],
        ["mirror", str(root), str(beside / "mirror"), "--confirm-stopped"],
        ["savepoint", str(root), str(beside / "rows"), "--rows", "--confirm-stopped"],
    ]


def proofs(root: Path) -> list[list[str]]:
    return [["rewind", str(root), "--to-batch", "1", "--no-file-sink"], ["repair", str(root), "--deep"]]


def rewrites(root: Path, key: Mapping[str, str], structure: Structure, operator: int = 0) -> list[list[str]]:
    options = ["--apply", "--confirm-stopped", "--for-spark", "4.2"]
    deleted = [part for name, value in key.items() for part in ("--delete", f"{name}={value}")]
    return [
        ["edit", str(root), "--operator", str(operator), *deleted, *options],
        ["switch", str(root), "--to", structure.other.value, *options],
    ]


def here(*commands: Sequence[str]) -> list[Ran]:
    """Run commands on this machine."""
    done = [statekeeper(*one, "--output", "json") for one in commands]
    return [Ran(one.exit_code, json.loads(one.stdout), one.stderr) for one in done]


def on_the_cluster(folder: Path, *commands: Sequence[str], **how: Any) -> list[Ran]:
    return on_a_cluster(*([*one, *ON_A_CLUSTER] for one in commands), **how)


def require_same(commands: Sequence[Sequence[str]], found: Sequence[Ran], expected: Sequence[Ran]) -> None:
    for command, one, other in zip(commands, found, expected, strict=True):
        assert one.exit_code == other.exit_code, (command, one.errors, other.errors)
        assert stable(one.printed) == stable(other.printed), command


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The files of a copy, without those about its runs and with its own id. The URLs of inputs are those of one folder."""
    storage = open_storage(str(folder))
    own = (names.CONTROL, names.QUERY_METADATA)
    paths = [one.path for one in storage.list("") if not one.path.startswith(own)]
    return {path: storage.read(path).replace(str(folder.parent).encode(), b"FOLDER") for path in paths}


def require_same_copies(there: Path, at: Path) -> None:
    for name in ("clone", "mirror"):
        assert bytes_of(there / name) == bytes_of(at / name), name
    parts = [
        {path: body for path, body in bytes_of(one / "rows").items() if path.endswith(".parquet")}
        for one in (there, at)
    ]
    assert parts[0] == parts[1]
    assert parts[0]


class OfJob:
    """A root of a Python job, and its commands."""

    def __init__(self, made: KeyedRoot, folder: Path) -> None:
        self.made = made
        self.folder = folder

    @classmethod
    def of(cls, made: KeyedRoot, folder: Path) -> OfJob:
        """A copy of a root."""
        return cls(made.copied_to(open_storage(str(folder / "root")), folder / "job"), folder)

    @property
    def commands(self) -> list[list[str]]:
        root, structure = self.folder / "root", self.made.structure
        found = [*copies(root), *proofs(root)]
        edit, switch = rewrites(root, {"key": f"key {BATCHES - 1} 5"}, structure)
        return [*found, *([edit] if structure is Structure.V2 else []), switch]

    def continues(self) -> None:
        """Require that the job continues from the root and from its copies."""
        made = self.made
        for name in ("clone", "mirror"):
            copy = KeyedRoot(
                open_storage(str(self.folder / name)),
                self.folder / f"job of {name}",
                made.partitions,
                made.key_groups,
                made.in_batch_logs,
                made.structure,
                dict(made.rows),
                made.batches,
            )
            copy.assert_right()
        if made.structure is Structure.V2:
            del made.rows[0, f"key {BATCHES - 1} 5"]
        made.structure, made.in_batch_logs = made.structure.other, False
        made.assert_right()
        made.grow(2)
        made.assert_right()
        require_clean(self.folder / "root", self.folder)


class OfSpark:
    """A checkpoint that Spark wrote, and its commands. `is_short`: only rewrites."""

    def __init__(self, folder: Path, name: str, *, is_short: bool = False) -> None:
        self.folder, self.name, self.is_short = folder, name, is_short
        self.root = unpacked(FIXTURES / f"spark-4.2.0-{name}.zip", folder)

    @property
    def commands(self) -> list[list[str]]:
        found = a_key_of(self.root)
        assert found is not None
        operator, key = found
        structure = Structure.V1 if self.name.startswith("v1") else Structure.V2
        others = [] if self.is_short else [*copies(self.root), *proofs(self.root)]
        return [*others, *rewrites(self.root, leaves(key), structure, operator)]


def require_clean(root: Path, folder: Path) -> None:
    assert audited(open_storage(str(root)), scratch=folder / "deep").breaks == ()


def require_as_here(
    tmp_path: Path, jobs: Sequence[Mapping[str, Any]], sparks: Sequence[str], *, is_short: bool = False, **how: Any
) -> None:
    """Run all commands on a cluster and on this machine, and compare. `is_short`: see `OfSpark`."""
    pairs: list[tuple[OfJob | OfSpark, OfJob | OfSpark]] = []
    for number, options in enumerate(jobs):
        made = KeyedRoot(open_storage(str(tmp_path / f"root {number}")), tmp_path / f"job {number}", **options)
        made.grow(BATCHES)
        pairs.append((OfJob.of(made, tmp_path / f"{number} here"), OfJob.of(made, tmp_path / f"{number} there")))
    for name in sparks:
        at, there = (OfSpark(tmp_path / f"{name} {place}", name, is_short=is_short) for place in ("here", "there"))
        pairs.append((at, there))
    commands = [(at.commands, there.commands) for at, there in pairs]
    expected = [here(*of_pair) for of_pair, _ in commands]
    all_there = [command for _, of_pair in commands for command in of_pair]
    found = on_the_cluster(tmp_path, *all_there, **how)
    for (at, there), (_, of_pair), of_here in zip(pairs, commands, expected, strict=True):
        of_there = [found.pop(0) for _ in of_pair]
        texts = [
            one._replace(printed=anonymous(one.printed, side.folder))
            for side, some in ((at, of_here), (there, of_there))
            for one in some
        ]
        require_same(of_pair, texts[len(of_here) :], texts[: len(of_here)])
        if isinstance(at, OfJob) or not at.is_short:
            require_same_copies(there.folder, at.folder)
        for side in (at, there):
            if isinstance(side, OfJob):
                side.continues()
            else:
                require_clean(side.root, side.folder)
        if isinstance(at, OfSpark) and isinstance(there, OfSpark):
            assert dumped(there.root) == dumped(at.root)


def test_copies_and_rewrites_on_a_cluster_do_what_they_do_on_this_machine(tmp_path: Path) -> None:
    require_as_here(tmp_path, [{"partitions": 2}], ["v1-aggregation"], is_short=True)


@pytest.mark.slow
def test_all_kinds_of_roots_are_copied_and_rewritten_on_a_cluster(tmp_path: Path) -> None:
    jobs = [
        {"partitions": 4, "structure": Structure.V1},
        {"partitions": 4, "in_batch_logs": True},
    ]
    sparks = ["v1-join-2", "v1-two-operators-zstd", "v2-aggregation", "v2-join-3", "v2-transformWithState"]
    require_as_here(tmp_path, jobs, sparks)


@pytest.mark.slow
def test_speculative_copies_of_tasks_leave_no_wrong_file(tmp_path: Path) -> None:
    log = tmp_path / "events"
    with two_hosts(tmp_path, 7178) as master:
        settings = {"spark.master": master, "spark.speculation.interval": "10ms", **SPECULATION, **event_log(log)}
        require_as_here(tmp_path, [{"partitions": 16}], ["v1-aggregation"], settings=settings)
    tasks = events(log, "SparkListenerTaskEnd")
    assert any(one["Task Info"]["Speculative"] for one in tasks)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["clone", "mirror", "savepoint"])
def test_a_copy_survives_the_death_of_an_executor(tmp_path: Path, verb: str) -> None:
    log = tmp_path / "events"
    made = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=32)
    made.grow(12, keys=1_000 if verb == "savepoint" else 40)
    command = next(one for one in copies(tmp_path / "root") if one[0] == verb)
    copy = tmp_path / Path(command[2]).name
    kind, few = ("*.parquet", 3) if verb == "savepoint" else ("*.changelog", 50)

    def made_files() -> int:
        return sum(1 for _ in copy.rglob(kind))

    with executor_killed_when(lambda: made_files() >= few) as killed:
        [done] = on_the_cluster(tmp_path, command, executors=3, settings=event_log(log))
    assert killed
    assert done.exit_code == 0, done.errors
    removed = min(one["Timestamp"] for one in events(log, "SparkListenerExecutorRemoved"))
    tasks = events(log, "SparkListenerTaskEnd")
    assert any(one["Task Info"]["Launch Time"] > removed for one in tasks), (
        "the executor died after the last task began"
    )
    if verb == "savepoint":
        [expected] = here([*command[:2], str(tmp_path / "here"), *command[3:]])
        assert done.printed["digest"] == expected.printed["digest"]
        parts = [
            {path: body for path, body in bytes_of(one).items() if path.endswith(".parquet")}
            for one in (copy, tmp_path / "here")
        ]
        assert parts[0] == parts[1]
        return
    twin = made.copied_to(open_storage(str(tmp_path / "twin")), tmp_path / "job of twin")
    twin.storage = open_storage(str(copy))
    twin.assert_right()
    require_clean(copy, tmp_path)


@pytest.mark.slow
def test_nothing_is_written_if_the_executors_cannot_run_statekeeper(tmp_path: Path) -> None:
    made = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=2)
    made.grow(2)
    before = bytes_of(tmp_path / "root")
    commands = [*copies(tmp_path / "root"), *rewrites(tmp_path / "root", {"key": "key 1 5"}, Structure.V2)]
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH= exec {sys.executable} -S "$@"\n')  # without the installed packages
    python.chmod(0o755)
    found = on_the_cluster(tmp_path, *commands, environment={"PYSPARK_PYTHON": str(python)})
    for command, one in zip(commands, found, strict=True):
        assert one.exit_code == 2, (command, one.errors)
        assert "docs/how-to/run-on-a-spark-cluster.md" in one.errors
    assert bytes_of(tmp_path / "root") == before
    assert not [one for one in ("clone", "mirror", "rows") if (tmp_path / one).exists()]
    assert not open_storage(str(tmp_path / "root")).list(names.SWITCHOVERS)
