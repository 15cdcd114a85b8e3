"""Tests of a query whose checkpoint is not on local disk: the same for a bucket and for HDFS."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from click.testing import CliRunner
from pyspark.sql import SparkSession

from statekeeper.statestore.cli import main
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.interop.soak import Maintenance, expected
from tests.support.native import NativeQuery, Operator, state
from tests.support.native_queries import held, switched
from tests.support.quick_spark import BY_FILE_CONTEXT
from tests.support.twins import changelogs, statekeeper, take_wrong_snapshots

AT_HEAD = ("--at-head", "--confirm-stopped", "--mode", "snapshots")
VERBS = [
    ("inspect",),
    ("audit", "--deep"),
    ("dump", "--output", "jsonl"),
    ("diff",),
    ("snapshot", "--changelogs", "1", "--mode", "snapshots"),
    ("gc", "--retain", "2", "--grace", "0s"),
    ("repair",),
    ("snapshot", *AT_HEAD),
    ("gc", "--retain", "1", "--grace", "0s", "--mode", "full", "--apply"),
    ("gc", "--orphans", "--confirm-stopped", "--retain", "1", "--grace", "0s", "--mode", "full", "--apply"),
]
"""The verbs to run one after another, each followed by a batch of Spark."""

ONLY_LOOK = ("inspect", "audit", "dump", "diff", "repair")


class ElsewhereQuery(NativeQuery, ABC):
    """A query whose checkpoint Spark and Statekeeper reach each in its own way."""

    def __init__(self, spark: SparkSession, folder: Path, operator: Operator, confs: Mapping[str, str]) -> None:
        super().__init__(spark, folder, operator, {**BY_FILE_CONTEXT, **confs})

    @property
    @abstractmethod
    def urls(self) -> Sequence[str]:
        """Return all URLs of the checkpoint that Statekeeper accepts, `root` first."""

    @abstractmethod
    def forget(self, *paths: str) -> None:
        """Delete files of the checkpoint, behind everybody's back."""


def clean(query: ElsewhereQuery) -> None:
    found = json.loads(statekeeper("audit", query.root, "--deep", "--output", "json"))
    assert (found["findings"], len(found["stores"]) > 0) == ([], True)


def is_right_after(query: ElsewhereQuery, batches: int) -> None:
    """Check the output and the state of an aggregation."""
    outputs, end = expected(batches)
    assert query.outputs == outputs
    assert held(query) == end


def goes_on_from_the_snapshots_alone(query: ElsewhereQuery, folder: Path) -> None:
    """An aggregation in structure V2, after two batches."""
    clean(query)
    statekeeper("snapshot", query.urls[0], "--at-head", "--mode", "snapshots", "--scratch", str(folder))
    statekeeper("gc", query.urls[-1], "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    assert len(changelogs(open_storage(query.root))) == 2, "nothing but the snapshots leads to the head"
    query.run(1)
    clean(query)
    is_right_after(query, 3)


def goes_on_after_each_verb_as_a_twin(query: ElsewhereQuery, folder: Path) -> None:
    query.run(3)
    query.saved("middle")
    for _ in VERBS:
        query.run(1)  # each start may run a batch without data, too
    outputs, end = query.outputs, state(query)

    query.restored("middle")
    for number, (verb, *options) in enumerate(VERBS):
        said = statekeeper(verb, query.urls[number % len(query.urls)], *options)
        if verb in ONLY_LOOK:
            for url in query.urls:
                again = statekeeper(verb, url, *options)
                assert again == said, f"{verb} {url}:\n{again}\nand before:\n{said}"
        query.run(1)
        clean(query)
    assert query.outputs == outputs
    assert state(query) == end

    # Negative control: a key is missing in each store, and the comparison above detects it.
    query.restored("middle")
    middle = state(query)
    take_wrong_snapshots(query, folder)
    assert state(query) != middle


def is_maintained_meanwhile(query: ElsewhereQuery, folder: Path) -> None:
    with Maintenance(query.root, str(folder)) as maintenance:
        query.run(15)
        query.run(15)
    assert maintenance.failures == []
    assert sum(maintenance.is_ours.values()) >= 4
    is_right_after(query, 30)


def goes_on_after_a_repair_when_it_was_taken_back(query: ElsewhereQuery, folder: Path) -> None:
    """In structure V1. By its URLs in turn."""
    query.run(4)
    statekeeper("snapshot", query.root, *AT_HEAD, "--scratch", str(folder))
    query.forget(*(f"{log}/{batch}" for log in ("commits", "offsets", "sources/0") for batch in (2, 3)))
    assert "was rolled back" in CliRunner().invoke(main, ["audit", query.urls[-1]]).output
    before = _of_versions(query)
    repaired = statekeeper("repair", query.root, "--apply", "--confirm-stopped")
    assert {"state/0/0/4.zip", "state/0/1/4.zip"} <= before - _of_versions(query), "Spark would load them later"
    run = repaired.partition("--undo ")[2].split()[0]
    statekeeper("repair", query.urls[-1], "--undo", run, "--confirm-stopped")
    assert _of_versions(query) == before
    statekeeper("repair", query.urls[-1], "--apply", "--confirm-stopped")
    query.run(1)
    is_right_after(query, 5)
    clean(query)


def is_moved_to_the_other_structure_and_back(query: ElsewhereQuery, folder: Path) -> None:
    """From structure V1."""
    query.run(2)
    for structure in (Structure.V2, Structure.V1):
        switched(query, structure, folder)
        clean(query)
        query.run(2)
        clean(query)
    is_right_after(query, 6)


def _of_versions(query: ElsewhereQuery) -> set[str]:
    """The files of its stores, but for tables."""
    listed = open_storage(query.root).list("state")
    return {entry.path for entry in listed if entry.path.endswith((".changelog", ".zip"))}
