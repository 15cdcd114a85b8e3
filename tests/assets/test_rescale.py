"""The asset `rescale` plans, executes a launched rescale, and shows an incomplete one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_sink import LOG
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.dagster_runs import checks, shown
from tests.support.faulty_storage import Fault, FaultyStorage, Request
from tests.support.keyed_roots import KeyedRoot
from tests.support.rescales import all_rows
from tests.support.switching import WRITES
from tests.support.unpacked import unpacked

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "spark-4.2.0-v1-aggregation.zip"


@pytest.fixture
def checkpoint(configuration: Path) -> Path:
    """A checkpoint of Spark, as the query `flights`."""
    configuration.write_text(configuration.read_text().replace('url = "flights"', 'url = "checkpoint"'))
    return unpacked(ARCHIVE, configuration.parent)


def launched(definitions: dg.Definitions, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("rescale_checkpoint")
    ops = {"ops": {"rescale": {"config": config}}}
    return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)


def files(storage: Storage) -> set[str]:
    return {entry.path for entry in storage.list("") if not entry.path.startswith(names.CONTROL)}


def test_a_launch_with_the_default_action_only_plans(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path
) -> None:
    storage = open_storage(str(checkpoint))
    before = {entry.path for entry in storage.list("")}
    result = launched(definitions, instance, partitions=5)
    assert result.success
    plan = shown(result, "rescale")
    assert (plan["phase"], plan["partitions_before"], plan["partitions_after"]) == ("planned", 2, 5)
    assert (plan["refusals"], plan["file_sink"]) == (0, "none")
    assert {entry.path for entry in storage.list("")} == before
    assert checks(result)["nothing_left_half_switched"].passed


def test_it_rescales_a_query_confirmed_as_stopped_with_its_file_sink(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path, tmp_path: Path
) -> None:
    storage = open_storage(str(checkpoint))
    before, rows, batch = files(storage), all_rows(checkpoint), catalog.newest_batch(storage) or 0
    log = tmp_path / "output" / LOG
    log.mkdir(parents=True)
    for number in range(batch + 1):
        (log / str(number)).write_bytes(b"v1")
    config = {"partitions": 5, "do": "APPLY", "file_sink": str(tmp_path / "output")}
    assert not launched(definitions, instance, **config).success
    assert files(storage) == before
    result = launched(definitions, instance, **config, confirm_stopped=True)
    assert result.success
    done = shown(result, "rescale")
    assert (done["phase"], done["partitions_after"]) == ("rewritten", 5)
    assert str(done["file_sink"]).endswith(f"{LOG}/{batch + 1}.compact")
    assert (log / f"{batch + 1}.compact").read_bytes() == b"v1"
    assert all_rows(checkpoint) == rows
    heads = catalog.heads(storage)
    assert heads is not None
    assert len(heads.heads) == 5
    again = launched(definitions, instance, partitions=5, do="APPLY", confirm_stopped=True)
    assert again.success


def test_a_refused_rescale_fails_with_the_reason(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path
) -> None:
    storage = open_storage(str(checkpoint))
    batch = catalog.newest_batch(storage) or 0
    storage.create(names.offsets(batch + 1), storage.read(names.offsets(batch)))
    result = launched(definitions, instance, partitions=5, do="APPLY", confirm_stopped=True)
    assert not result.success
    assert "is started but not committed" in str(result.all_events)


def test_an_incomplete_rescale_is_red_until_a_launch_completes_or_reverses_it(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(str(checkpoint))
    before = files(storage)

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.LOST_REPLY if request.kind in WRITES and "made-" in request.path else None

    with monkeypatch.context() as patched:
        patched.setattr("statekeeper.resources.fleet.open_storage", lambda *_, **__: Dying(storage))
        result = launched(definitions, instance, partitions=5, do="APPLY", confirm_stopped=True)
    assert not result.success
    red = checks(result)["nothing_left_half_switched"]
    assert not red.passed
    assert '{"partitions": 5, "do": "APPLY", "confirm_stopped": true}' in (red.description or "")
    assert rewrite_journal.open_journal(storage) is not None
    result = launched(definitions, instance, do="ABORT", confirm_stopped=True)
    assert result.success
    assert checks(result)["nothing_left_half_switched"].passed
    assert shown(result, "rescale")["phase"] == "aborted"
    assert files(storage) == before


def test_it_rescales_the_state_root_of_a_job_and_retention_deletes_the_removed_partitions(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path, tmp_path: Path
) -> None:
    storage = open_storage(str(configuration.parent / "flights"))
    root = KeyedRoot(storage, tmp_path, partitions=4, key_groups=16)
    root.grow(2)
    plan = shown(launched(definitions, instance, partitions=2), "rescale")
    assert (plan["phase"], plan["partitions_before"], plan["partitions_after"]) == ("planned", 4, 2)
    assert int(str(plan["read_bytes"])) > 0
    result = launched(definitions, instance, partitions=2, do="APPLY", confirm_stopped=True)
    assert result.success
    assert shown(result, "rescale")["phase"] == "rewritten"
    assert checks(result)["nothing_left_half_switched"].passed
    assert read_binding(storage)[0].partitions == 2
    root.grow(6)
    root.assert_right(2)
    maintained = definitions.resolve_job_def("maintain_query").execute_in_process(
        partition_key="flights", instance=instance, raise_on_error=False
    )
    assert maintained.success
    assert {store.partition for store in catalog.files(storage)} == {0, 1}
    root.assert_right(2)
