"""A job whose root every verb changes in turn: after each one, it continues with the output and the state of pandas.

The tests of the single verbs are in the files beside this one. Here, each verb finds what the others have left.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.counting import MERGING_AND_FILES, V2, Job, variant
from tests.support.twins import clean, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

APPLY = ("--apply", "--confirm-stopped")


def run(job: Job, verb: str, *options: str, root: Path | None = None) -> str:
    return statekeeper(verb, str(root or job.root), *options)


def on_scratch(job: Job, verb: str, *options: str) -> str:
    return run(job, verb, *options, "--scratch", str(job.folder / "scratch"))


def snapshots(job: Job) -> None:
    on_scratch(job, "snapshot", "--at-head")


def rescaled_up(job: Job) -> None:
    on_scratch(job, "rescale", "--partitions", "5", *APPLY)


def rescaled_down(job: Job) -> None:
    on_scratch(job, "rescale", "--partitions", "2", *APPLY)


def collected(job: Job) -> None:
    """On a new host, so that the job restores all stores from the files that are left."""
    snapshots(job)
    on_scratch(job, "gc", "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    shutil.rmtree(job.folder / "local")


def edited_and_undone(job: Job) -> None:
    told = on_scratch(job, "edit", "--operator", "0", "--delete", "key=1", *APPLY)
    run(job, "edit", "--undo", told.split("--undo ")[1].split()[0], "--confirm-stopped")


def rewound_and_undone(job: Job) -> None:
    to = ("--to-batch", str(job.committed() - 2), *APPLY, "--output", "json")
    told = run(job, "rewind", *to)
    run(job, "rewind", "--undo", json.loads(told[told.index("{") :])["run"], "--confirm-stopped")


def loaded_with_its_own_rows(job: Job) -> None:
    saved = str(job.folder / f"rows of {job.committed()}")
    on_scratch(job, "savepoint", saved, "--rows")
    scratch = str(job.folder / "scratch")
    statekeeper("load", saved, str(job.root), "--replace-state", *APPLY, "--scratch", scratch)


def moved_to_a_clone(job: Job) -> None:
    """Both folders: the clones take the places of the lost ones."""
    for folder in (job.checkpoint, job.root):
        clone = folder.with_name(f"clone of {folder.name}")
        run(job, "clone", str(clone), "--confirm-stopped", root=folder)
        shutil.rmtree(folder)
        clone.rename(folder)


def mirrored(job: Job) -> None:
    for folder in (job.checkpoint, job.root):
        run(job, "mirror", str(folder.with_name(f"mirror of {folder.name}")), "--confirm-stopped", root=folder)


def switched(job: Job) -> None:
    if job.log is LogLayout.STORES:
        on_scratch(job, "switch", "--to", job.structure.other.value, *APPLY)
        job.structure = Structure(job.structure.other)


TOUR: tuple[Callable[[Job], None], ...] = (
    *(snapshots, rescaled_up, edited_and_undone, collected, rewound_and_undone, switched, mirrored, switched),
    *(loaded_with_its_own_rows, rescaled_down, moved_to_a_clone, collected, edited_and_undone, rescaled_up),
)


@pytest.mark.parametrize("name", [V2, MERGING_AND_FILES])
@pytest.mark.timeout(1800)
def test_a_job_continues_after_each_verb_of_a_tour(delta_session: SparkSession, tmp_path: Path, name: str) -> None:
    job = variant(tmp_path, name)
    job.feed(2).run(delta_session)
    for number, verb in enumerate(TOUR):
        verb(job)
        job.feed(2).run(delta_session)
        job.assert_right(job.fed)
        # A rescale removes partitions whose files an older batch still needs.
        clean(open_storage(str(job.root)), tmp_path / "scratch")
        print(number, verb.__name__)
    job.assert_right(job.fed, delta_session)
