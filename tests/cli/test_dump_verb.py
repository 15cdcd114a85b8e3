"""`statekeeper dump` and `statekeeper diff`, on an own root and on checkpoints of earlier Sparks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result

from statekeeper.statestore.base.errors import LocalStateDamaged
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.state_rows import encode_values
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import json_output, run
from tests.support.counted_state import SCHEMA, VALUE, changes, counts, key

GROWN = pa.schema([*VALUE, pa.field("extra", pa.string())])

State = dict[str, int]


@pytest.fixture
def checkpoint(root: Path, tmp_path: Path) -> Checkpoint:
    """Two stores of rows, three versions."""
    made = Checkpoint(open_storage(str(root)), tmp_path / "job", schema=SCHEMA)
    made.batch(changes(a=1, b=2), changes(z=9))
    made.batch(changes(a=None, c=3), changes())
    made.batch(changes(b=5, c=3), changes(y=0))
    return made


NEWEST = [("state/0/0", "b", 5), ("state/0/0", "c", 3), ("state/0/1", "y", 0), ("state/0/1", "z", 9)]


def test_the_rows_of_the_newest_version_are_shown_with_their_columns(root: Path, checkpoint: Checkpoint) -> None:
    found = json_output("dump", root)
    assert (found["batch"], found["version"], found["shown"], found["all"]) == (2, 3, 4, True)
    assert sorted(counts(found["rows"])) == NEWEST
    [row] = [row for row in found["rows"] if row["key"]["name"] == "c"]
    assert row == {
        "store": "state/0/0",
        "family": None,
        "key": {"key_group": 1, "name": "c", "day": 7},
        "value": {"n": 3, "tags": ["x", "x", "x"]},
    }


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_any_retained_version_can_be_shown_by_version_or_batch(
    root: Path, checkpoint: Checkpoint, with_snapshot: bool
) -> None:
    if with_snapshot:
        json_output("snapshot", root, "--all")
    by_version = {
        0: [],
        1: [("state/0/0", "a", 1), ("state/0/0", "b", 2), ("state/0/1", "z", 9)],
        2: [("state/0/0", "b", 2), ("state/0/0", "c", 3), ("state/0/1", "z", 9)],
        3: NEWEST,
    }
    for version, rows in by_version.items():
        found = json_output("dump", root, "--version", version)
        assert sorted(counts(found["rows"])) == rows
        assert (found["batch"], found["version"]) == (version - 1, version)
        if version:
            assert json_output("dump", root, "--batch", version - 1) == found


def test_each_line_of_jsonl_is_a_row(root: Path, checkpoint: Checkpoint) -> None:
    lines = run("dump", root, "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == json_output("dump", root)["rows"]


def test_a_table_shows_columns_by_store_and_names_the_option_for_more(root: Path, checkpoint: Checkpoint) -> None:
    shown = run("dump", root).output
    assert "batch 2: 4 rows" in shown
    for text in ("state/0/0\n", "state/0/1\n", "key_group", "name", "day", "tags", '["x", "x", "x"]'):
        assert text in shown
    few = run("dump", root, "--limit", 3).output
    assert "batch 2: the first 3 rows; --limit shows more" in few
    assert "3 rows;" in few


def test_a_limit_ends_the_dump(root: Path, checkpoint: Checkpoint) -> None:
    found = json_output("dump", root, "--limit", 3)
    assert (len(found["rows"]), found["shown"], found["all"]) == (3, 3, False)
    assert json_output("dump", root, "--limit", 0)["rows"] == []
    assert json_output("dump", root, "--limit", 4)["all"]


def test_stores_and_keys_can_be_chosen(root: Path, checkpoint: Checkpoint) -> None:
    for name in ("0/1", "state/0/1", "state/0/1/"):
        assert {row["store"] for row in json_output("dump", root, "--store", name)["rows"]} == {"state/0/1"}
    assert sorted(counts(json_output("dump", root, "--store", "0")["rows"])) == NEWEST
    assert sorted(counts(json_output("dump", root, "--store", "0/0", "--store", "0/1")["rows"])) == NEWEST
    assert counts(json_output("dump", root, "--key", "name=b")["rows"]) == [("state/0/0", "b", 5)]
    assert len(json_output("dump", root, "--key", "day=7")["rows"]) == 4
    assert json_output("dump", root, "--key", "name=b", "--key", "day=8")["rows"] == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--store", "0/7"], "there is no store '0/7'; existing stores: state/0/0, state/0/1"),
        (["--store", "0/"], ""),
        (["--family", "total"], "there is no column family 'total'; existing: none"),
        (["--key", "name"], "'name' is not COLUMN=VALUE"),
        # A column of the value.
        (["--key", "n=5"], "no key has a column 'n'; existing columns: day, key_group, name"),
        (["--version", "1", "--batch", "0"], "give one of them"),
    ],
)
def test_invalid_selections_are_usage_errors(root: Path, checkpoint: Checkpoint, options: list[str], told: str) -> None:
    result = run("dump", root, *options)
    assert result.exit_code == (2 if told else 0)
    assert told in " ".join(result.output.split())


def test_version_0_of_a_native_query_is_empty_even_after_its_first_logs_were_purged(
    root: Path, checkpoint: Checkpoint
) -> None:
    storage = checkpoint.storage
    storage.delete([names.BINDING, *(f"{log}/{batch}" for log in (names.COMMITS, names.OFFSETS) for batch in (0, 1))])
    assert json_output("dump", root, "--version", 0) == {"batch": -1, "version": 0, "rows": [], "shown": 0, "all": True}
    told = json_output("diff", root, "--from", 0)
    assert (told["from"], told["totals"]) == ({"batch": -1, "version": 0}, {"added": 4, "removed": 0, "changed": 0})


def test_an_error_for_an_uncommitted_version_lists_the_committed_ones(root: Path, checkpoint: Checkpoint) -> None:
    result = run("dump", root, "--version", 9)
    assert result.exit_code == 1
    assert "version_not_loadable: commits/8: batch 8 is not committed" in result.stderr
    assert "the commit log has batches 0 to 2" in result.stderr


def test_a_checkpoint_without_a_batch_has_no_rows(root: Path, tmp_path: Path) -> None:
    Checkpoint(open_storage(str(root)), tmp_path)
    assert json_output("dump", root) == {"batch": None, "version": None, "rows": [], "shown": 0, "all": True}
    assert json_output("diff", root)["changes"] == []
    for verb in ("dump", "diff"):
        assert "no batch is committed yet" in run(verb, root).output


def test_a_dump_writes_nothing_below_the_root_and_leaves_the_local_disk_empty(
    root: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    scratch = tmp_path / "scratch"
    for arguments in (["dump", root], ["dump", root, "--limit", 1], ["diff", root]):
        assert run(*arguments, "--scratch", scratch).exit_code == 0
        assert not list(scratch.iterdir())
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_rows_from_before_an_added_column_have_their_former_columns(root: Path, checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(names.later_schema(3), json.dumps({"default": spark_schema_json(GROWN)}).encode())
    added = encode_values(pa.Table.from_pylist([{"n": 1, "tags": [], "extra": "new"}] * 4, GROWN)).to_pylist()
    states = checkpoint.states[-1]
    checkpoint.batch(*(dict.fromkeys(state, added[0]) for state in states))
    assert {json.dumps(row["value"]) for row in json_output("dump", root)["rows"]} == {
        '{"n": 1, "tags": [], "extra": "new"}'
    }
    assert sorted(counts(json_output("dump", root, "--version", 3)["rows"])) == NEWEST
    [change] = [one for one in json_output("diff", root)["changes"] if one["key"]["name"] == "y"]
    assert change["before"] == {"n": 0, "tags": []}
    assert change["after"] == {"n": 1, "tags": [], "extra": "new"}


def test_rows_that_contradict_the_schema_are_damage_and_the_error_names_their_store(root: Path, tmp_path: Path) -> None:
    made = Checkpoint(open_storage(str(root)), tmp_path / "job", schema=SCHEMA)
    made.batch(changes(a=1), {key("b"): b"\0" + bytes(7)})
    result = run("dump", root)
    assert result.exit_code == 1
    assert (
        "corrupt_file: state/0/1: the state of batch 0 does not fit the schema in _statekeeper/binding.json"
        in result.stderr
    )
    assert run("dump", root, "--store", "0/0").exit_code == 0


def test_rows_are_shown_without_pandas(root: Path, checkpoint: Checkpoint) -> None:
    """Its import takes longer than the command."""
    tell = "import atexit, sys; atexit.register(lambda: print('pandas' in sys.modules))"
    for verb in ("dump", "diff"):
        command = [sys.executable, "-c", f"{tell}; from statekeeper.statestore.cli import main; main()", verb, root]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "batch 2" in shown
        assert shown.endswith("False\n")


def test_an_output_error_is_not_reported_as_a_damaged_copy(
    root: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("statekeeper.statestore.cli.rows._write", full)
    result = run("dump", root, "--output", "jsonl")
    assert isinstance(result.exception, OSError)
    assert not isinstance(result.exception, LocalStateDamaged)


# -- Spark's files ------------------------------------------------------------------------------------------------------


def as_sparks(checkpoint: Checkpoint, **conf: str) -> None:
    """Turn the root into a native checkpoint: settings in the offset log, and no binding."""
    storage = checkpoint.storage
    storage.delete([names.BINDING])
    pinned = {**logs.STATE_CONF, **{f"spark.sql.streaming.stateStore.{name}": text for name, text in conf.items()}}
    newest = len(checkpoint.versions) - 2
    storage.replace(
        names.offsets(newest),
        logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf=pinned, sources=())),
    )


def refused(result: Result) -> str:
    assert result.exit_code == 12, result.output
    assert "unknown_format_version: " in result.stderr
    return result.stderr


def test_a_checkpoint_without_a_binding_is_read_with_its_schema_file_and_metadata(
    root: Path, checkpoint: Checkpoint
) -> None:
    as_sparks(checkpoint)
    assert sorted(counts(json_output("dump", root)["rows"])) == NEWEST


@pytest.mark.parametrize("verb", ["dump", "diff"])
def test_avro_rows_are_rejected_with_a_typed_error(root: Path, checkpoint: Checkpoint, verb: str) -> None:
    as_sparks(checkpoint, encodingFormat="avro")
    told = refused(run(verb, root))
    assert (
        "offsets/2: the query encodes its rows as avro; this release decodes only unsaferow, the default encoding -> "
        "to see the rows" in told
    )


def test_unknown_schema_versions_and_types_are_rejected_with_a_typed_error(root: Path, checkpoint: Checkpoint) -> None:
    as_sparks(checkpoint)
    path = names.state_schema(0)
    checkpoint.storage.replace(path, operators.encode_schema("{}", "{}").replace(b"v2", b"v9"))
    assert f"{path}: has state schema version 'v9'" in refused(run("dump", root))
    strange = SCHEMA.value_json.replace('"long"', '"variant"')
    checkpoint.storage.replace(path, operators.encode_schema(SCHEMA.key_json, strange))
    assert f"{path}: column n has Spark's type variant" in refused(run("dump", root))


def test_keys_with_an_undescribed_prefix_are_rejected_with_a_typed_error(root: Path, checkpoint: Checkpoint) -> None:
    """Spark before 4.0 wrote none; the keys of its session windows have a prefix."""
    json_output("snapshot", root, "--all")
    as_sparks(checkpoint)
    # Structure V1 is all that such a Spark had, and a snapshot is the same in both.
    for path in root.glob("state/0/*/*.*"):
        path.unlink() if path.suffix == ".changelog" else path.rename(path.with_name("3.zip"))
    checkpoint.storage.replace(names.commits(2), logs.encode_commit(logs.CommitLog(0, None)))
    assert sorted(counts(json_output("dump", root)["rows"])) == NEWEST
    checkpoint.storage.delete([names.operator_metadata(0)])
    told = refused(run("dump", root))
    assert "the operator has no metadata, so the encoding of its keys is unknown" in told


# -- diff --------------------------------------------------------------------------------------------------------------


def test_a_diff_shows_added_removed_and_changed_rows_with_both_values(root: Path, checkpoint: Checkpoint) -> None:
    found = json_output("diff", root, "--from", 1)
    assert (found["from"], found["to"]) == ({"batch": 0, "version": 1}, {"batch": 2, "version": 3})
    told = {
        change["key"]["name"]: (change["change"], *(side and side["n"] for side in (change["before"], change["after"])))
        for change in found["changes"]
    }
    assert told == {
        "a": ("removed", 1, None),
        "b": ("changed", 2, 5),
        "c": ("added", None, 3),
        "y": ("added", None, 0),
    }
    assert found["totals"] == {"added": 2, "removed": 1, "changed": 1}
    assert found["stores"] == [
        {"store": "state/0/0", "added": 1, "removed": 1, "changed": 1},
        {"store": "state/0/1", "added": 1, "removed": 0, "changed": 0},
    ]


def test_the_newest_version_is_compared_with_the_one_before_it(root: Path, checkpoint: Checkpoint) -> None:
    assert json_output("diff", root) == json_output("diff", root, "--from", 2, "--to", 3)
    assert json_output("diff", root) == json_output("diff", root, "--from-batch", 1, "--to-batch", 2)
    assert json_output("diff", root, "--to-batch", 0) == json_output("diff", root, "--from-batch", -1, "--to", 1)
    assert "from the empty state to batch 0: " in run("diff", root, "--to-batch", 0).output
    twice = run("diff", root, "--from-batch", 1, "--from", 2)
    assert (twice.exit_code, "give either --from-batch or --from" in twice.stderr) == (2, True)
    assert {change["key"]["name"] for change in json_output("diff", root)["changes"]} == {"b", "y"}, (
        "c was put as it was"
    )
    assert json_output("diff", root, "--to", 1)["totals"] == {"added": 3, "removed": 0, "changed": 0}
    assert json_output("diff", root, "--from", 3, "--to", 1)["totals"] == {"added": 1, "removed": 2, "changed": 1}


def test_all_differences_are_counted_even_if_a_limit_hides_some(root: Path, checkpoint: Checkpoint) -> None:
    found = json_output("diff", root, "--from", 1, "--limit", 2)
    assert (len(found["changes"]), found["shown"]) == (2, 2)
    assert found["totals"] == {"added": 2, "removed": 1, "changed": 1}
    shown = run("diff", root, "--from", 1, "--limit", 2).output
    assert "from batch 0 to batch 2: 2 added, 1 removed, 1 changed; the first 2 are shown" in shown
    whole = run("diff", root, "--from", 1).output
    assert "2 added, 1 removed, 1 changed\n" in whole
    lines = run("diff", root, "--from", 1, "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == json_output("diff", root, "--from", 1)["changes"]


def test_one_store_can_be_compared_alone(root: Path, checkpoint: Checkpoint) -> None:
    assert json_output("diff", root, "--from", 1, "--store", "0/1")["totals"] == {
        "added": 1,
        "removed": 0,
        "changed": 0,
    }
    assert run("diff", root, "--to", 9).exit_code == 1


def test_diff_to_version_0_is_a_usage_error(root: Path, checkpoint: Checkpoint) -> None:
    result = run("diff", root, "--to", 0)
    assert result.exit_code == 2
    assert "no state is before the empty one: use --to-batch 0 or later" in " ".join(result.stderr.split())
