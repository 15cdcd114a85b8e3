"""Each error is provoked by a test, and the commands of its message are executed where it has any.

`PROVOKED` names a test of another module for each class; `_HINTS` provokes some again to execute their commands. A class
without an entry fails here.
"""

from __future__ import annotations

import ast
import re
import shlex
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from statekeeper.statestore.base import errors
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError, error_classes
from statekeeper.statestore.base.messages import of_job, with_name
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rewrites.whole_stores import Rescale
from statekeeper.statestore.root.state_root import require_startable
from statekeeper.statestore.storage import open_storage
from tests.support import rescales
from tests.support.checkpoints import Checkpoint
from tests.support.commands import statekeeper
from tests.support.entry_points import Dying
from tests.support.faulty_storage import SimulatedCrash
from tests.support.keyed_roots import KeyedRoot

TESTS = Path(__file__).parents[1]
HDFS = TESTS / "fixtures" / "checkpoints" / "spark-4.2.0-hdfs-aggregation.zip"

NEVER_RAISED = {errors.RefusedBatch, errors.FailedBatch}
"""Classes that only group others."""

PROVOKED: dict[type[StatekeeperError], tuple[str, str]] = {
    errors.CorruptFile: (
        "checkpoint/test_partitions.py",
        "test_a_commit_without_other_evidence_is_rejected_with_a_typed_error",
    ),
    errors.RecordTooLarge: (
        "format/test_changelog.py",
        "test_a_record_above_the_memory_limit_is_rejected_before_decompression",
    ),
    errors.UnknownFormatVersion: ("cli/test_audit_verb.py", "test_errors_are_a_line_on_stderr_with_their_exit_code"),
    errors.UnsupportedProvider: (
        "checkpoint/test_hdfs_backed_checkpoints.py",
        "test_other_verbs_name_the_provider_and_the_next_step",
    ),
    errors.NotACheckpoint: ("cli/test_cli.py", "test_an_error_for_a_path_near_a_checkpoint_suggests_the_checkpoint"),
    errors.StorageError: ("storage/test_copies.py", "test_a_copy_of_a_file_that_became_smaller_fails"),
    errors.ObjectMissing: ("cli/test_audit_verb.py", "test_a_missing_object_names_the_next_command"),
    errors.AlreadyExists: ("storage/test_copies.py", "test_a_file_of_others_is_not_replaced_on_a_local_disk"),
    errors.SourceChanged: ("storage/test_copies.py", "test_a_replaced_source_is_not_copied"),
    errors.NoExclusiveCreate: (
        "storage/test_conditional_delete.py",
        "test_a_store_that_overwrites_silently_is_rejected",
    ),
    errors.NotAFile: (
        "storage/test_local.py",
        "test_entries_that_are_not_regular_files_are_not_listed_and_never_opened",
    ),
    errors.UnsafePath: ("base/test_provoked_errors.py", "test_a_path_outside_of_the_root_is_rejected"),
    errors.BucketMissing: ("storage/test_s3.py", "test_a_missing_bucket_never_looks_like_an_empty_root"),
    errors.AccessDenied: ("storage/test_s3.py", "test_rejected_credentials_are_distinguished_from_missing_objects"),
    errors.LocalStateError: ("cli/test_cli.py", "test_a_scratch_folder_is_created_or_the_error_names_it"),
    errors.LocalStateDamaged: ("store/engine/test_rocks.py", "test_an_invalid_marker_is_damage"),
    errors.LocalStateLocked: ("store/engine/test_rocks.py", "test_a_second_writer_gets_a_locked_error"),
    errors.LocalDiskFull: (
        "maintenance/copies/savepoints/test_holds.py",
        "test_a_scratch_disk_that_is_too_small_is_refused_before_anything_is_written",
    ),
    errors.VersionNotLoadable: (
        "checkpoint/test_hdfs_backed_checkpoints.py",
        "test_a_missing_delta_loses_the_versions_from_it_on",
    ),
    errors.LineageCeiling: (
        "store/test_store_snapshots.py",
        "test_near_the_ceiling_the_store_stops_with_a_typed_error_until_a_snapshot_exists",
    ),
    errors.TooLarge: (
        "maintenance/sequences/test_size_limits.py",
        "test_a_value_that_no_load_could_read_is_not_committed",
    ),
    errors.RootHeld: (
        "maintenance/copies/clones/test_refusals.py",
        "test_two_clones_into_one_destination_exclude_each_other",
    ),
    errors.LeaseLost: ("maintenance/records/test_leases.py", "test_a_run_that_has_lost_its_lease_writes_nothing_more"),
    errors.RefusedAsUnsafe: (
        "maintenance/copies/clones/test_refusals.py",
        "test_a_destination_inside_the_source_or_around_it_is_rejected",
    ),
    errors.ForeignOwner: ("storage/test_ownership.py", "test_a_user_outside_of_the_group_is_rejected"),
    errors.UnknownPartitioning: (
        "format/test_partition_keys.py",
        "test_what_cannot_be_known_is_rejected_with_operator_store_and_reason",
    ),
    errors.DestinationNotEmpty: ("cli/test_clone_verb.py", "test_json_has_the_plan_the_bytes_and_the_refusals"),
    errors.MirrorStarted: ("cli/test_mirror_verb.py", "test_json_has_the_lag_the_bytes_and_the_deletions"),
    errors.MirrorDiverged: (
        "maintenance/copies/mirrors/test_losses.py",
        "test_a_switch_of_the_source_between_two_runs_is_detected",
    ),
    errors.HalfSwitched: (
        "maintenance/rewrites/edits/test_edit.py",
        "test_a_half_done_edit_blocks_other_verbs_and_other_edits",
    ),
    errors.ForeignRoot: ("root/test_root.py", "test_the_root_of_another_query_is_foreign"),
    errors.RootLost: ("root/test_root.py", "test_a_batch_without_its_predecessor_is_rejected"),
    errors.BatchConflict: ("root/test_root.py", "test_other_offsets_for_the_same_batch_are_rejected"),
    errors.OtherStructure: (
        "root/test_root.py",
        "test_a_root_of_the_other_structure_is_rejected_with_the_command_that_switches_it",
    ),
    errors.SinkConflict: (
        "pipelines/jobs/test_restored_roots.py",
        "test_a_sink_with_an_attempt_of_other_offsets_is_rejected",
    ),
    errors.SinkChanged: (
        "pipelines/sinks/test_sink_history.py",
        "test_a_sink_changed_between_two_runs_of_a_query_is_detected",
    ),
    errors.UnsafeSink: ("pipelines/sinks/test_sink_history.py", "test_a_table_with_transaction_retention_is_rejected"),
    errors.UnsupportedTable: (
        "pipelines/sinks/test_data_files.py",
        "test_a_table_with_a_feature_of_sparks_writer_is_rejected",
    ),
    errors.BaseIdMismatch: ("pipelines/jobs/test_races.py", "test_a_report_with_a_wrong_base_fails_the_batch"),
    errors.PartitionMissing: (
        "pipelines/jobs/test_races.py",
        "test_a_partition_that_reports_no_commit_fails_the_batch",
    ),
    errors.ForeignBlock: (
        "pipelines/jobs/test_races.py",
        "test_three_attempts_with_foreign_rows_fail_the_batch_and_a_restart_runs_it",
    ),
    errors.BadConfiguration: (
        "maintenance/sequences/test_size_limits.py",
        "test_an_invalid_limit_is_bad_configuration",
    ),
    errors.WrongOption: ("cli/test_rewind_verb.py", "test_a_wrong_source_is_a_usage_error_that_names_the_right_ones"),
    errors.UnsupportedType: ("format/test_types.py", "test_a_string_with_a_collation_is_rejected"),
    errors.SchemaMismatch: (
        "maintenance/rewrites/edits/test_edit.py",
        "test_a_goal_that_does_not_fit_the_schema_is_rejected",
    ),
    errors.WrongInitial: ("pipelines/testing/test_harness.py", "test_wrong_initial_rows_are_rejected"),
    errors.WrongInput: ("pipelines/operator/test_times.py", "test_a_row_without_an_event_time_is_rejected"),
    errors.HotKey: (
        "pipelines/task/test_whole_keys.py",
        "test_a_key_with_too_many_rows_is_rejected_for_any_batch_boundaries",
    ),
    errors.WrongResult: (
        "pipelines/task/test_wrong_results.py",
        "test_an_invalid_result_of_an_update_function_is_rejected_and_not_committed",
    ),
    errors.UnusableFunction: (
        "pipelines/task/test_wrong_results.py",
        "test_a_misspelt_column_names_the_column_that_was_meant_and_the_line",
    ),
    errors.SparkDied: ("pipelines/jobs/test_failures.py", "test_a_job_whose_jvm_is_killed_says_so"),
    errors.TaskLost: (
        "maintenance/executors/test_spark_executor.py",
        "test_an_item_that_kills_its_worker_is_given_up_and_the_others_are_done",
    ),
    errors.UnsupportedEnvironment: ("pipelines/startup/test_inputs.py", "test_a_query_without_an_input_is_rejected"),
    errors.PortInUse: (
        "assets/test_platform.py",
        "test_a_port_in_use_is_reported_in_one_line_before_any_process_starts",
    ),
}


def test_each_error_is_provoked_by_a_test_that_exists() -> None:
    assert PROVOKED.keys() == set(error_classes()) - NEVER_RAISED
    for kind, (file, function) in PROVOKED.items():
        source = (TESTS / file).read_text()
        found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function]
        assert len(found) == 1, f"{file}::{function}"
        text = ast.get_source_segment(source, found[0]) or ""
        # Some tests take the class from a table of their module.
        expected = (kind.__name__, kind.code)
        assert any(one in text for one in expected) or any(one in source for one in expected), function


def test_a_class_that_only_groups_others_is_never_raised() -> None:
    for file in (TESTS.parent / "statekeeper").rglob("*.py"):
        for kind in NEVER_RAISED:
            assert f"raise {kind.__name__}(" not in file.read_text(), file


def test_a_path_outside_of_the_root_is_rejected(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    for path in ("../x", "/x", "state/../../x", "state//x", "a\0b"):
        with pytest.raises(errors.UnsafePath, match="is not a valid path in a checkpoint"):
            storage.read(path)


# -- hints -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Provoked:
    """An error and how to see that its commands help.

    message   the error, with its hint
    again     the command that failed, if it works after the commands of the hint
    """

    code: str
    message: str
    again: tuple[object, ...] = ()


Provocation = Callable[[Path], Provoked]
_HINTS: dict[type[StatekeeperError], Provocation] = {}


def _provokes(kind: type[StatekeeperError]) -> Callable[[Provocation], Provocation]:
    def add(function: Provocation) -> Provocation:
        _HINTS[kind] = function
        return function

    return add


def _failed(*arguments: object, works_later: bool = True) -> Provoked:
    result = statekeeper(*arguments)
    message = result.stderr.strip().splitlines()[-1] if result.stderr else result.stdout.strip().splitlines()[-1]
    return Provoked(message.partition(": ")[0], message, arguments if works_later else ())


def _raised(error: StatekeeperError) -> Provoked:
    return Provoked(error.code, str(error))


def _six_batches(folder: Path) -> Checkpoint:
    made = Checkpoint(open_storage(str(folder / "root of orders")), folder / "job")
    made.grow(6)
    return made


@_provokes(errors.CorruptFile)
def _(folder: Path) -> Provoked:
    _six_batches(folder)
    (folder / "root of orders" / names.commits(5)).write_text("v2\n{")
    return _failed("snapshot", folder / "root of orders", works_later=False)


@_provokes(errors.UnsupportedProvider)
def _(folder: Path) -> Provoked:
    zipfile.ZipFile(HDFS).extractall(folder)
    return _failed("edit", folder / "checkpoint", "--operator", 0, "--delete", "k=1", works_later=False)


@_provokes(errors.NotACheckpoint)
def _(folder: Path) -> Provoked:
    _six_batches(folder)
    failed = _failed("audit", folder / "root of orders" / "state", works_later=False)
    meant = failed.message.partition("did you mean ")[2].removesuffix("?")
    assert statekeeper("audit", meant).exit_code == 0
    return replace(failed, message=failed.message + f" statekeeper audit '{meant}'")


@_provokes(errors.ObjectMissing)
def _(folder: Path) -> Provoked:
    made = _six_batches(folder)
    with pytest.raises(errors.ObjectMissing) as raised:
        made.storage.read("state/0/0/99.zip")
    raised.value.name_root(lambda text: with_name(text, str(folder / "root of orders")))
    return _raised(raised.value)


@_provokes(errors.VersionNotLoadable)
def _(folder: Path) -> Provoked:
    root = folder / "state of orders"
    KeyedRoot(open_storage(str(root)), folder / "job", partitions=2, key_groups=16).grow(3)
    next(root.glob("state/0/0/3_*.changelog")).unlink()
    return _failed("dump", root, works_later=False)


@_provokes(errors.RootHeld)
def _(folder: Path) -> Provoked:
    made = _six_batches(folder)
    lease.acquire(made.storage, "gc", run=RandomIds().fresh(), holder="elsewhere:7", clock=SystemClock())
    return _failed("snapshot", folder / "root of orders", "--all")


@_provokes(errors.RefusedAsUnsafe)
def _(folder: Path) -> Provoked:
    made = _six_batches(folder)
    (folder / "root of orders" / made.stores[0].changelog(made.versions[6][0])).unlink()
    failed = _failed("gc", folder / "root of orders", "--retain", 1, "--grace", "0s", "--apply", works_later=False)
    assert "--accept-loss" in failed.message
    return failed


@_provokes(errors.HalfSwitched)
def _(folder: Path) -> Provoked:
    storage = open_storage(str(folder / "state of orders"))
    KeyedRoot(storage, folder / "job", partitions=2, key_groups=16).grow(2)
    with pytest.raises(SimulatedCrash):
        rescales.rescale(Dying(storage), Rescale(3), folder)
    assert statekeeper("lease", folder / "state of orders", "--break").exit_code == 0
    return _failed("snapshot", folder / "state of orders", "--all")


@_provokes(errors.ForeignRoot)
def _(folder: Path) -> Provoked:
    made = KeyedRoot(open_storage(str(folder / "state of orders")), folder / "job", partitions=2, key_groups=16)
    made.grow(2)
    wanted = replace(made.wanted(), query_id=RandomIds().fresh())
    with pytest.raises(errors.ForeignRoot) as raised:
        require_startable(made.storage, wanted, committed=None, structure=Structure.V2)
    raised.value.name_root(lambda text: of_job(text, made.storage.url, str(folder / "a checkpoint")))
    return _raised(raised.value)


@_provokes(errors.OtherStructure)
def _(folder: Path) -> Provoked:
    made = KeyedRoot(open_storage(str(folder / "state of orders")), folder / "job", partitions=2, key_groups=16)
    made.grow(2)
    with pytest.raises(errors.OtherStructure) as raised:
        require_startable(made.storage, made.wanted(), committed=1, structure=Structure.V1)
    return _raised(raised.value)


@_provokes(errors.SchemaMismatch)
def _(folder: Path) -> Provoked:
    root = folder / "state of orders"
    KeyedRoot(open_storage(str(root)), folder / "job", partitions=2, key_groups=16).grow(2)
    return _failed("edit", root, "--operator", 0, "--delete", "kye=1", works_later=False)


@_provokes(errors.BadConfiguration)
def _(folder: Path) -> Provoked:
    (folder / "statekeeper.toml").write_text("[rots.orders]\nurl = 'x'\n")
    failed = _failed("--config", folder / "statekeeper.toml", "audit", "orders", works_later=False)
    assert "roots" in failed.message
    return failed


_WITHOUT_COMMANDS = {errors.BadConfiguration}
"""Their hint is a correction by hand."""


def _commands(text: str) -> list[list[str]]:
    """The commands of a message: each ends before punctuation."""
    found = re.findall(r"\bstatekeeper ((?:'[^']*'|[^\s'])+(?: (?:'[^']*'|[^\s'])+)*)", text)
    commands = []
    for one in found:
        words: list[str] = []
        for word in re.findall(r"(?:'[^']*'|[^\s'])+", one):
            bare = word.rstrip(".,;:)")
            words += shlex.split(bare)
            if bare != word:
                break
        commands.append(words)
    return commands


@pytest.mark.parametrize("kind", _HINTS, ids=lambda kind: kind.code)
def test_the_commands_of_an_error_can_be_executed_and_help(kind: type[StatekeeperError], tmp_path: Path) -> None:
    provoked = _HINTS[kind](tmp_path)
    assert provoked.code == kind.code, provoked.message
    commands = _commands(provoked.message)
    assert commands or kind in _WITHOUT_COMMANDS, provoked.message
    for command in commands:
        assert not {"ROOT", "CHECKPOINT", "FOLDER"} & set(command), command
        done = statekeeper(*command)
        # 3: an audit has findings, or a plan waits for --apply.
        assert done.exit_code in (0, 3), (command, done.output)
    if provoked.again:
        assert statekeeper(*provoked.again).exit_code == 0


def test_the_way_out_of_lost_versions_is_in_the_words_of_the_tool(tmp_path: Path) -> None:
    """What a person does who knows nothing but the messages: dump fails, audit names the rewind, its plan the command."""
    _HINTS[errors.VersionNotLoadable](tmp_path)
    root = tmp_path / "state of orders"
    [audit] = [one for one in _commands(_failed("dump", root).message) if one[0] == "audit"]
    [rewind] = [one for one in _commands(statekeeper(*audit).stdout) if one[0] == "rewind"]
    [execute] = [one for one in _commands(statekeeper(*rewind).stdout.splitlines()[-1]) if "--apply" in one]
    assert statekeeper(*execute).exit_code == 0
    assert statekeeper("dump", root).exit_code == 0
    assert statekeeper(*audit).exit_code == 0
