"""Verbs on a Spark cluster: two executors with JVMs and Python workers of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import run
from tests.support.on_a_cluster import on_a_cluster

pytestmark = pytest.mark.spark

PARTITIONS = 8
BATCHES = 6
FULL = ("--mode", "full")
VOLATILE = ("seconds", "_bytes", "requests", "bytes_read", "digest", "run", "holder")


def stable(printed: Any) -> Any:
    """What a verb printed, without times, and without sizes and requests, which depend on the ids of new files."""
    if isinstance(printed, dict):
        return {
            name: stable(value) for name, value in sorted(printed.items()) if not any(one in name for one in VOLATILE)
        }
    return [stable(one) for one in printed] if isinstance(printed, list) else printed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("made")
    checkpoint = Checkpoint(open_storage(str(folder / "root")), folder / "job", partitions=PARTITIONS)
    checkpoint.grow(BATCHES)
    return checkpoint


def verbs(root: Path) -> list[list[str]]:
    return [
        ["snapshot", str(root), "--all", *FULL],
        ["audit", str(root), "--deep"],
        ["drill", str(root), "--sample", str(PARTITIONS)],
        ["gc", str(root), "--retain", "2", "--grace", "0s", "--apply", *FULL],
        ["audit", str(root), "--deep"],
    ]


def test_each_verb_on_a_cluster_does_what_it_does_on_this_machine(made: Checkpoint, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    local = made.copied_to(open_storage(str(here)), tmp_path / "job here")
    remote = made.copied_to(open_storage(str(there)), tmp_path / "job there")
    on_this_machine = [run(*one, "--output", "json") for one in verbs(here)]
    on_the_cluster = on_a_cluster(tmp_path, *([*one, "--executor", "spark"] for one in verbs(there)))
    for one, (expected, found) in zip(verbs(here), zip(on_this_machine, on_the_cluster, strict=True), strict=True):
        assert (found.exit_code, stable(found.printed)) == (expected.exit_code, stable(json.loads(expected.stdout))), (
            one
        )
    assert [one.exit_code for one in on_the_cluster] == [0] * len(on_the_cluster)
    for checkpoint in (local, remote):
        checkpoint.assert_snapshots_are_right(tmp_path / "host")
        checkpoint.grow(1)
        checkpoint.assert_right(tmp_path / "host")
