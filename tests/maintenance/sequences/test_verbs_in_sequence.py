"""Verbs after other verbs on checkpoints that Spark wrote, without Spark: tests/interop/sequences adds batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format.logs import SHUFFLE_PARTITIONS, STATE_CONF, parse_offsets
from statekeeper.statestore.maintenance.copies import clones
from statekeeper.statestore.maintenance.rollback import rewind
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, Severity, gather, judge
from statekeeper.statestore.storage import open_storage
from tests.support.commands import statekeeper
from tests.support.damage import LOST_LOGS, REPAIRED, cut, deleted
from tests.support.dumped import dumped
from tests.support.maintainers import MAINTAINER
from tests.support.sparks_checkpoints import commit, describe
from tests.support.unpacked import unpacked
from tests.support.written import written_checkpoints

APPLY = ("--apply", "--confirm-stopped")


def _checkpoint(form: str, folder: Path) -> Path:
    [archive] = (one for one in written_checkpoints("") if one.name == f"spark-4.2.0-{form}.zip")
    return unpacked(archive, folder)


def _rows(checkpoint: Path) -> list[str]:
    """The rows of the newest batch, in any partition and of any provider."""
    rows = dumped(checkpoint)
    for row in rows:
        _, operator, _, *store = row.pop("store").split("/")
        row["store"] = [operator, *store]
        row.pop("version", None)
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def _run(*arguments: object, exit_code: int = 0) -> str:
    result = statekeeper(*arguments)
    assert result.exit_code == exit_code, result.output
    return result.output


def _rescaled(checkpoint: Path, *partitions: int) -> None:
    for number in partitions:
        _run("rescale", checkpoint, "--partitions", number, *APPLY)


def _assert_clean(checkpoint: Path, scratch: Path | None = None) -> None:
    found = judge(gather(open_storage(str(checkpoint)), scratch=scratch))
    assert found.findings == ()
    assert found.restart.as_is


@pytest.mark.parametrize(
    ("form", "partitions", "verb"),
    [
        ("v1-aggregation", (5, 2), ("switch", "--to", "v2", "--for-spark", "4.2")),
        ("v2-aggregation", (1,), ("switch", "--to", "v1")),
        ("v2-transformWithState", (3, 1), ("switch", "--to", "v1")),
        ("v1-aggregation", (1,), ("convert", "--to", "hdfs")),
        ("v1-join-2", (4, 1), ("convert", "--to", "hdfs")),
        ("v2-aggregation", (4, 2, 3), ("switch", "--to", "v1")),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_a_verb_after_a_rescale_leaves_the_removed_partitions_out(
    tmp_path: Path, form: str, partitions: tuple[int, ...], verb: tuple[str, ...]
) -> None:
    checkpoint = _checkpoint(form, tmp_path)
    before = _rows(checkpoint)
    _rescaled(checkpoint, *partitions)
    name, *options = verb
    _run(name, checkpoint, *options, *APPLY)
    _assert_clean(checkpoint, tmp_path / "scratch")
    assert _rows(checkpoint) == before
    if name == "convert":
        _run("convert", checkpoint, "--to", "rocksdb", "--structure", "v1", *APPLY)
    _rescaled(checkpoint, 3)
    _assert_clean(checkpoint)
    assert _rows(checkpoint) == before


@pytest.mark.parametrize("form", ["v1-aggregation", "v2-aggregation", "v2-join-3"])
@pytest.mark.parametrize("verb", ["clone", "mirror", "savepoint"])
def test_a_copy_after_a_rescale_is_clean_and_can_be_rescaled_and_rewound(tmp_path: Path, form: str, verb: str) -> None:
    checkpoint, copy = _checkpoint(form, tmp_path), tmp_path / "copy"
    before = _rows(checkpoint)
    _rescaled(checkpoint, 5, 2)
    options = ("--label", "before") if verb == "savepoint" else ()
    _run(verb, checkpoint, copy, *options, "--confirm-stopped")
    _assert_clean(copy, tmp_path / "scratch")
    _run("gc", copy, "--mode", "full", "--retain", "1", *APPLY)
    batch = judge(gather(open_storage(str(copy)))).batch
    _rescaled(copy, 4)
    _assert_clean(copy)
    _run("rewind", copy, "--to-batch", batch, *APPLY)
    _assert_clean(copy)
    assert _rows(copy) == before


def _id() -> str:
    return MAINTAINER.ids.fresh()


def test_commits_between_two_rescales_are_compared_with_the_partitions_of_their_own_batches(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    describe(storage)
    for batch, partitions in enumerate([1, 3, 3, 1, 1, 1]):
        conf = {**STATE_CONF, SHUFFLE_PARTITIONS: str(partitions)}
        commit(storage, batch, [_id() for _ in range(partitions)], conf)
    kinds = {finding.kind for finding in judge(gather(storage)).findings}
    assert FindingKind.COMMIT_AT_ODDS not in kinds
    commit(storage, 2, [_id(), _id()], {**STATE_CONF, SHUFFLE_PARTITIONS: "3"})
    [finding] = (one for one in judge(gather(storage)).findings if one.kind is FindingKind.COMMIT_AT_ODDS)
    assert finding.file == "commits/2"


@pytest.mark.parametrize(("form", "between"), [("v1-aggregation", 1), ("v2-aggregation", 3)])
def test_an_audit_after_a_rescale_and_one_back_knows_the_partitions_of_the_batches_between(
    tmp_path: Path, form: str, between: int
) -> None:
    checkpoint, rows = _checkpoint(form, tmp_path), tmp_path / "rows"
    before = _rows(checkpoint)
    _run("savepoint", checkpoint, rows, "--rows", "--confirm-stopped")
    _rescaled(checkpoint, between, 2)
    # The newest two offsets have the partitions of the first ones.
    _run("load", rows, checkpoint, "--replace-state", *APPLY)
    _assert_clean(checkpoint)
    _assert_clean(checkpoint, tmp_path / "scratch")
    assert _rows(checkpoint) == before


def test_lost_files_of_a_removed_partition_are_a_warning_about_rewinds(tmp_path: Path) -> None:
    checkpoint = _checkpoint("v1-aggregation", tmp_path)
    _rescaled(checkpoint, 1)
    (checkpoint / "state/0/1/2.changelog").unlink()
    found = judge(gather(open_storage(str(checkpoint))))
    assert [(one.kind, one.severity) for one in found.findings] == [(FindingKind.CHANGELOG_MISSING, Severity.WARNING)]
    assert "no start needs this store" in found.findings[0].meaning
    assert "a rewind to batches 1 to 2 is not possible" in found.findings[0].meaning
    assert found.restart.as_is


def test_a_rewind_to_a_batch_in_v1_is_possible_after_a_switchover_and_the_way_back(tmp_path: Path) -> None:
    checkpoint, twin = _checkpoint("v1-aggregation", tmp_path / "one"), _checkpoint("v1-aggregation", tmp_path / "twin")
    _run("switch", checkpoint, "--to", "v2", "--for-spark", "4.2", *APPLY)
    refused = _run("rewind", checkpoint, "--to-batch", "1", exit_code=3)
    assert "switch back first: statekeeper switch" in refused
    _run("switch", checkpoint, "--to", "v1", *APPLY)
    _run("rewind", checkpoint, "--to-batch", "1", *APPLY)
    _assert_clean(checkpoint, tmp_path / "scratch")
    _run("rewind", twin, "--to-batch", "1", *APPLY)
    assert _rows(checkpoint) == _rows(twin)


def test_after_the_way_back_to_v1_a_rewind_to_a_batch_in_v2_names_a_switchover_that_makes_it_possible(
    tmp_path: Path,
) -> None:
    checkpoint, twin = _checkpoint("v2-aggregation", tmp_path / "one"), _checkpoint("v2-aggregation", tmp_path / "twin")
    _run("switch", checkpoint, "--to", "v1", *APPLY)
    assert "switch back first: statekeeper switch" in _run("rewind", checkpoint, "--to-batch", "0", exit_code=3)
    _run("switch", checkpoint, "--to", "v2", "--for-spark", "4.2", *APPLY)
    _run("rewind", checkpoint, "--to-batch", "0", *APPLY)
    _assert_clean(checkpoint, tmp_path / "scratch")
    _run("rewind", twin, "--to-batch", "0", *APPLY)
    assert _rows(checkpoint) == _rows(twin)


def test_a_rewind_across_a_switchover_names_no_way_back_to_files_that_are_gone(tmp_path: Path) -> None:
    checkpoint = _checkpoint("v2-aggregation", tmp_path)
    _run("switch", checkpoint, "--to", "v1", *APPLY)
    for changelog in checkpoint.glob("state/0/0/1_*.changelog"):
        changelog.unlink()
    refused = _run("rewind", checkpoint, "--to-batch", "0", exit_code=3)
    assert "-> choose a batch after the switchover" in refused
    assert "switch back" not in refused


@pytest.mark.parametrize("verb", ["clone", "mirror", "rewind"])
def test_a_query_without_state_that_logs_only_some_batches_is_copied_and_rewound(tmp_path: Path, verb: str) -> None:
    odd = Path(__file__).parents[2] / "fixtures" / "odd_queries" / "spark-4.2.0-asynchronous.zip"
    checkpoint, copy = unpacked(odd, tmp_path), tmp_path / "copy"
    arguments = ("rewind", checkpoint, "--to-batch", "2", *APPLY) if verb == "rewind" else (verb, checkpoint, copy)
    _run(*arguments)
    _assert_clean(checkpoint if verb == "rewind" else copy)


def test_a_partition_behind_a_symbolic_link_is_not_called_missing(tmp_path: Path) -> None:
    checkpoint = _checkpoint("v1-aggregation", tmp_path)
    (checkpoint / "state/0/1").rename(tmp_path / "elsewhere")
    (checkpoint / "state/0/1").symlink_to(tmp_path / "elsewhere")
    found = judge(gather(open_storage(str(checkpoint))))
    [error] = [one for one in found.findings if one.severity is Severity.ERROR]
    assert (error.kind, error.file) == (FindingKind.STORE_NOT_AUDITED, "state/0/1")
    assert "symbolic link" in error.problem
    assert error.action == "stop the query, and replace the link by the folder to which it leads"
    assert "backup" not in error.action
    assert found.restart.batch is None, "the partition was not read"
    (checkpoint / "state/0/1").unlink()
    (tmp_path / "elsewhere").rename(checkpoint / "state/0/1")
    _assert_clean(checkpoint)


# -- lost logs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["v1-aggregation", "v2-aggregation"])
@pytest.mark.parametrize("case", LOST_LOGS)
def test_lost_or_edited_logs_are_an_error_with_the_command_that_leads_to_a_start(
    tmp_path: Path, form: str, case: str
) -> None:
    damage, kind, verb = LOST_LOGS[case]
    checkpoint = _checkpoint(form, tmp_path)
    before, storage = _rows(checkpoint), open_storage(str(checkpoint))
    damage(checkpoint)
    found = judge(gather(storage))
    [error] = [one for one in found.findings if one.severity is Severity.ERROR]
    assert error.kind is kind
    assert not found.restart.as_is
    if verb == REPAIRED:
        assert error.action == f"run: statekeeper repair {storage.url} --apply --confirm-stopped"
        _run("repair", checkpoint, *APPLY)
        assert _rows(checkpoint) == before
    else:
        command = f"statekeeper rewind {storage.url} --to-batch 1"
        assert error.action.endswith(command)
        named = f"statekeeper rewind {checkpoint} --to-batch 1"
        assert named in _run("repair", checkpoint, exit_code=3), "repair points to the command that works"
        _run("rewind", checkpoint, "--to-batch", "1", *APPLY)
    _assert_clean(checkpoint, tmp_path / "scratch")


@pytest.mark.parametrize("form", ["v2-aggregation", "hdfs-aggregation"])
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_repair_of_offsets_can_be_undone(tmp_path: Path, form: str, how: str) -> None:
    checkpoint = _checkpoint(form, tmp_path)
    (deleted("offsets/1") if how == "missing" else cut("offsets/1", 0))(checkpoint)
    told = _run("repair", checkpoint, *APPLY)
    rebuilt, newest = ((checkpoint / f"offsets/{batch}").read_bytes() for batch in (1, 2))
    assert parse_offsets(rebuilt, "offsets/1").sources == parse_offsets(newest, "offsets/2").sources
    run = told.partition("--undo ")[2].split()[0]
    _run("repair", checkpoint, "--undo", run, "--confirm-stopped")
    assert (checkpoint / "offsets/1").exists() is (how == "empty")
    assert how == "missing" or (checkpoint / "offsets/1").read_bytes() == b""


def test_offsets_before_a_rescale_are_rebuilt_with_the_partitions_before_it(tmp_path: Path) -> None:
    checkpoint, twin = _checkpoint("v1-aggregation", tmp_path / "one"), _checkpoint("v1-aggregation", tmp_path / "twin")
    _rescaled(checkpoint, 5)
    deleted("offsets/2")(checkpoint)
    _run("repair", checkpoint, *APPLY)
    _assert_clean(checkpoint, tmp_path / "scratch")
    conf = parse_offsets((checkpoint / "offsets/2").read_bytes(), "offsets/2").conf
    assert conf[SHUFFLE_PARTITIONS] == "2"
    for one in (checkpoint, twin):
        _run("rewind", one, "--to-batch", "1", *APPLY)
        _assert_clean(one)
    assert _rows(checkpoint) == _rows(twin)


def test_no_query_continues_after_a_batch_whose_offsets_were_rebuilt(tmp_path: Path) -> None:
    """Batch 1 has the positions of batch 2 then, so that the rows of batch 2 would never be read."""
    checkpoint = _checkpoint("v2-aggregation", tmp_path)
    deleted("offsets/1")(checkpoint)
    _run("repair", checkpoint, *APPLY)
    storage, copy = open_storage(str(checkpoint)), open_storage(str(tmp_path / "copy"))
    with pytest.raises(RefusedAsUnsafe, match="offsets/1: was written by a repair, with the positions of batch 2"):
        rewind.gather(storage, 1)
    with pytest.raises(RefusedAsUnsafe, match="offsets/1: was written by a repair, with the positions of batch 2"):
        clones.gather(storage, copy, batch=1)
    [newest] = (checkpoint / "state/0/0").glob("3_*.changelog")
    newest.unlink()
    assert judge(gather(storage)).restart.batch == 0


def test_a_gap_in_the_commit_log_blocks_neither_gc_nor_a_rescale(tmp_path: Path) -> None:
    checkpoint = _checkpoint("v2-aggregation", tmp_path)
    deleted("commits/1")(checkpoint)
    found = judge(gather(open_storage(str(checkpoint))))
    assert [(one.kind, one.severity) for one in found.findings] == [(FindingKind.COMMIT_MISSING, Severity.WARNING)]
    _run("gc", checkpoint, "--mode", "full", *APPLY)
    _rescaled(checkpoint, 3)


def test_an_older_commit_that_cannot_be_read_is_quarantined_by_repair(tmp_path: Path) -> None:
    checkpoint = _checkpoint("v1-aggregation", tmp_path)
    cut("commits/1", 3)(checkpoint)
    storage = open_storage(str(checkpoint))
    [warning] = judge(gather(storage)).findings
    assert warning.severity is Severity.WARNING
    assert f"statekeeper repair {storage.url} --apply --confirm-stopped" in warning.action
    _run("repair", checkpoint, *APPLY)
    _run("gc", checkpoint, "--mode", "full", *APPLY)
    [gap] = judge(gather(storage)).findings
    assert (gap.kind, gap.severity) == (FindingKind.COMMIT_MISSING, Severity.WARNING)
