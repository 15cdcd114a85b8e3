"""The asset `convert` plans, executes a launched conversion, and reverses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.provider import Provider, provider_of
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.dagster_runs import checks, shown
from tests.support.faulty_storage import Fault, FaultyStorage, Request
from tests.support.rescales import all_rows
from tests.support.switching import WRITES
from tests.support.unpacked import unpacked

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "spark-4.2.0-hdfs-sessions-snappy.zip"


@pytest.fixture
def checkpoint(configuration: Path) -> Path:
    """A checkpoint of Spark's default provider, as the query `flights`."""
    configuration.write_text(configuration.read_text().replace('url = "flights"', 'url = "checkpoint"'))
    return unpacked(ARCHIVE, configuration.parent)


def launched(definitions: dg.Definitions, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("convert_checkpoint")
    ops = {"ops": {"convert": {"config": config}}}
    return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)


def provider_at(storage: Storage) -> Provider | None:
    path = names.offsets(catalog.newest_batch(storage) or 0)
    return provider_of(logs.parse_offsets(storage.read(path), path).conf)


def files(storage: Storage) -> set[str]:
    return {entry.path for entry in storage.list("") if not entry.path.startswith(names.CONTROL)}


def test_a_launch_plans_and_then_converts_there_and_back(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path
) -> None:
    storage, rows = open_storage(str(checkpoint)), all_rows(checkpoint)
    before = files(storage)
    planned = launched(definitions, instance)
    assert planned.success
    assert shown(planned, "convert")["phase"] == "planned"
    assert files(storage) == before
    assert not launched(definitions, instance, do="APPLY").success, "the query is not confirmed as stopped"
    assert files(storage) == before
    there = launched(definitions, instance, do="APPLY", confirm_stopped=True, for_spark="V4_2")
    assert there.success
    assert (shown(there, "convert")["phase"], provider_at(storage)) == ("rewritten", Provider.ROCKSDB)
    assert all_rows(checkpoint) == rows
    assert checks(there)["nothing_left_half_switched"].passed
    back = launched(definitions, instance, to="HDFS_BACKED", do="APPLY", confirm_stopped=True)
    assert back.success
    assert provider_at(storage) is Provider.HDFS_BACKED
    assert all_rows(checkpoint) == rows


def test_an_incomplete_conversion_is_red_until_a_launch_reverses_it(
    definitions: dg.Definitions, instance: dg.DagsterInstance, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(str(checkpoint))
    before = files(storage)

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.LOST_REPLY if request.kind in WRITES and "made-" in request.path else None

    with monkeypatch.context() as patched:
        patched.setattr("statekeeper.resources.fleet.open_storage", lambda *_, **__: Dying(storage))
        result = launched(definitions, instance, do="APPLY", confirm_stopped=True, for_spark="V4_2")
    assert not result.success
    red = checks(result)["nothing_left_half_switched"]
    assert not red.passed
    assert 'launch the job convert_checkpoint for flights with {"ops": {"convert": ' in (red.description or "")
    result = launched(definitions, instance, do="ABORT", confirm_stopped=True)
    assert result.success
    assert checks(result)["nothing_left_half_switched"].passed
    assert files(storage) == before
