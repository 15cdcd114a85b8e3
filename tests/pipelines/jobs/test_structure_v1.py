"""A whole job in structure V1: restarts, dead attempts, Spark's own reader, and rejected requests."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.driver import BatchDriver
from statekeeper.pipelines.batch.progress import Outcome, Phase
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import OtherStructure, RefusedBatch, SinkConflict, VersionNotLoadable
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import open_storage
from tests.support import tasks
from tests.support.counting import Job, Watching, once
from tests.support.maintainers import MAINTAINER

pytestmark = pytest.mark.spark


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, structure=Structure.V1)


def died() -> None:
    raise RuntimeError("the driver dies")


def test_a_v1_job_survives_repeated_attempts_and_driver_failures_and_spark_reads_its_state(
    job: Job, delta_session: SparkSession
) -> None:
    job.driver = tasks.FailsAfterCommit
    job.feed(2).run(delta_session)
    job.driver = BatchDriver
    with pytest.raises(RuntimeError, match="the driver dies"):
        job.feed(2).run(delta_session, once(2, Phase.PENDING_WRITTEN, died))
    # The files of the dead driver's tasks are replaced: each call of the function writes another stamp.
    with pytest.raises(RuntimeError, match="the driver dies"):
        job.run(delta_session, once(2, Phase.SINK_WRITTEN, died))
    shutil.rmtree(job.folder / "local")
    assert [report.outcome for report in job.run(delta_session)] == [Outcome.TAKEN_FROM_SINK, Outcome.COMPUTED]
    job.assert_right(4, delta_session)
    changelogs = {path.name for path in job.root.glob("state/0/*/*.changelog")}
    assert changelogs == {f"{version}.changelog" for version in range(1, 5)}
    assert logs.parse_commit((job.root / "commits/3").read_bytes(), "x").ids is None
    # Spark starts from our snapshots, too.
    storage = open_storage(str(job.root))
    for action in snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True).take:
        snapshot.execute(storage, action, scratch=job.folder / "scratch", clock=SystemClock(), ids=RandomIds())
    for changelog in job.root.glob("state/0/*/*.changelog"):
        changelog.unlink()
    job.assert_right(4, delta_session)


@pytest.mark.slow
def test_a_new_host_rejects_the_changelog_of_a_nondeterministic_zombie(job: Job, delta_session: SparkSession) -> None:
    job.feed(2).run(delta_session)
    zombie = job.store(1, 0, job.folder / "local-of-a-zombie")
    keys, _ = zip(*zombie.scan(), strict=True)
    zombie.delete(pa.array(keys, pa.large_binary()))
    # It falls asleep between its look at the commit log and its upload.
    late = zombie._finished_changelog().path.read_bytes()
    job.feed(1).run(delta_session)
    (job.root / "state/0/0/3.changelog").write_bytes(late)
    shutil.rmtree(job.folder / "local")
    with pytest.raises(VersionNotLoadable, match=r"3\.changelog: .* not committed.* batch 2 .* batch 1"):
        job.feed(1).run(delta_session)
    assert job.committed() == 3


def test_a_job_or_attempt_of_the_other_structure_is_rejected(job: Job, delta_session: SparkSession) -> None:
    job.feed(1).run(delta_session)
    job.structure = Structure.V2
    before = sorted(path for path in job.root.rglob("*") if path.is_file())
    with pytest.raises(OtherStructure, match=r"structure V1, but the job requires V2.*statekeeper switch .* --to v2"):
        job.feed(1).run(delta_session)
    assert sorted(path for path in job.root.rglob("*") if path.is_file()) == before

    job.structure = Structure.V1
    with pytest.raises(RuntimeError, match="the driver dies"):
        job.run(delta_session, once(1, Phase.SINK_WRITTEN, died))
    (pending,) = (job.root / names.PENDING).glob("1-*.json")
    pending.write_text(pending.read_text().replace('"structure": "v1"', '"structure": "v2"'))
    with pytest.raises(SinkConflict, match=r"ran in structure V2; .* -> stop the job and run: statekeeper switch"):
        job.run(delta_session)


def printed_commands(text: str) -> list[str]:
    """Return the commands that a message prints, each up to the confirmation."""
    return re.findall(r"statekeeper switch .*?--confirm-stopped", text)


def follow(job: Job, command: str) -> Result:
    """Run a printed command."""
    words = command.replace("ROOT", str(job.root)).split()
    return CliRunner().invoke(main, words[1:], obj=MAINTAINER)


@pytest.mark.parametrize("batch", [0, 1])
def test_the_printed_advice_leads_from_an_unfinished_v1_batch_to_a_job_in_v2(
    job: Job, delta_session: SparkSession, batch: int
) -> None:
    with pytest.raises(RuntimeError, match="the driver dies"):
        job.feed(batch + 1).run(delta_session, once(batch, Phase.SINK_WRITTEN, died))
    job.structure = Structure.V2
    with pytest.raises(RefusedBatch) as stopped:
        job.run(delta_session)
    advice = str(stopped.value)
    if batch > 0:
        assert isinstance(stopped.value, OtherStructure)
        [command] = printed_commands(advice)
        blocked = follow(job, command)
        assert blocked.exit_code == 3, blocked.output
        advice = blocked.output.partition("blocked: ")[2]
    assert f"tart the job with structure V1 until it commits batch {batch}" in advice
    job.structure = Structure.V1
    assert job.run(delta_session)[0].outcome is Outcome.TAKEN_FROM_SINK
    [command] = printed_commands(advice)
    switched = follow(job, command)
    assert switched.exit_code == 0, switched.output
    job.structure = Structure.V2
    job.feed(1).run(delta_session)
    job.assert_right(batch + 2, delta_session)


@pytest.mark.parametrize(
    "structure",
    [Structure.V2, pytest.param(Structure.V1, marks=pytest.mark.slow)],
    ids=lambda structure: structure.value,
)
def test_the_printed_advice_completes_a_batch_that_ran_during_a_switchover(
    job: Job, delta_session: SparkSession, structure: Structure
) -> None:
    job.structure = structure
    job.feed(2).run(delta_session)

    def switch_then_die(batch: int, phase: Phase) -> None:
        if (batch, phase) == (2, Phase.COMPUTING):
            to = f"--to {structure.other.value}"
            assert follow(job, f"statekeeper switch ROOT {to} --apply --confirm-stopped").exit_code == 0
        if (batch, phase) == (2, Phase.SINK_WRITTEN):
            died()

    with pytest.raises(RuntimeError, match="the driver dies"):
        job.feed(1).run(delta_session, Watching(switch_then_die))
    job.structure = structure.other
    with pytest.raises(SinkConflict, match=f"ran in structure {structure.name}; .*until it commits batch 2") as stopped:
        job.run(delta_session)
    back, forth = printed_commands(str(stopped.value))
    assert follow(job, back).exit_code == 0
    job.structure = structure
    assert [report.outcome for report in job.run(delta_session)] == [Outcome.TAKEN_FROM_SINK]
    assert follow(job, forth).exit_code == 0
    job.structure = structure.other
    job.feed(1).run(delta_session)
    job.assert_right(4, delta_session)
    assert follow(job, "statekeeper audit ROOT --deep").exit_code == 0


@pytest.mark.parametrize(
    "structure",
    [Structure.V1, pytest.param(Structure.V2, marks=pytest.mark.slow)],
    ids=lambda structure: structure.value,
)
def test_a_job_continues_after_its_root_was_switched_and_switched_back(
    job: Job, delta_session: SparkSession, structure: Structure
) -> None:
    job.structure = structure
    job.feed(2).run(delta_session)
    with pytest.raises(RuntimeError, match="the driver dies"):
        job.feed(1).run(delta_session, once(2, Phase.SINK_WRITTEN, died))
    asked = ["switch", str(job.root), "--to", structure.other.value, "--apply"]
    refused = CliRunner().invoke(main, asked, obj=MAINTAINER)
    assert refused.exit_code == 3
    assert "batch 2 has begun, and the sink may already contain its rows" in refused.output
    job.run(delta_session)
    for to in (structure.other, structure):
        done = CliRunner().invoke(main, ["switch", str(job.root), "--to", to.value, "--apply"], obj=MAINTAINER)
        assert done.exit_code == 0, done.output
        with pytest.raises(OtherStructure, match="statekeeper switch"):
            job.feed(1).run(delta_session)
        job.structure = to
        job.run(delta_session)
        shutil.rmtree(job.folder / "local")
        job.feed(1).run(delta_session)
    job.assert_right(7, delta_session)
