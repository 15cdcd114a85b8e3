"""`statekeeper rewind` at a terminal and for programs."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
from click.testing import CliRunner, Result

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.storage import open_storage
from tests.support.clones import own
from tests.support.entry_points import ARCHIVES
from tests.support.maintainers import MAINTAINER
from tests.support.repairs import contents
from tests.support.s3_server import S3Server


def statekeeper(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)


def test_a_plan_is_shown_then_executed_then_undone(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    own(storage, tmp_path)
    before = contents(storage)
    verb = ("rewind", tmp_path / "root", "--to-batch", "5", "--scratch", tmp_path / "scratch")
    shown = statekeeper(*verb)
    assert shown.exit_code == 0, shown.output
    for text in ("rewind from batch 7 to 5", "each of the 2 stores was restored at batch 5", "continue_at_batch=6"):
        assert text in shown.output
    assert contents(storage) == before
    done = statekeeper(*verb, "--apply", "--confirm-stopped")
    assert done.exit_code == 0, done.output
    assert "rewound to batch 5: 9 files are in quarantine" in done.output
    assert catalog.newest_batch(storage) == 5
    again = statekeeper(*verb)
    assert (again.exit_code, "nothing to rewind" in again.output) == (0, True)
    run = re.search(r"--undo ([0-9a-f-]{36})", done.output)
    assert run is not None
    back = statekeeper("rewind", tmp_path / "root", "--undo", run[1], "--confirm-stopped")
    assert (back.exit_code, "put back 9 files" in back.output) == (0, True)
    assert contents(storage) == before


def test_a_plan_that_names_no_sink_says_that_the_query_writes_the_later_batches_again(tmp_path: Path) -> None:
    with zipfile.ZipFile(ARCHIVES / "spark-4.2.0-v2-aggregation.zip") as archive:
        archive.extractall(tmp_path)
    verb = ("rewind", tmp_path / "checkpoint", "--to-batch", "0", "--scratch", tmp_path / "scratch")
    shown = statekeeper(*verb).output
    assert (
        "It keeps the rows of batches 1 to 2, which the query then writes again. For a Delta table, add --sink URL"
        in shown
    )
    done = statekeeper(*verb, "--apply", "--confirm-stopped").output
    reminder = done.splitlines()[-1]
    assert reminder.startswith("before you start the query, remove the rows of batches 1 to 2 from its sink")
    assert reminder.endswith(f"statekeeper rewind {tmp_path}/checkpoint --to-batch 0 --sink URL")


def test_an_audit_reminds_of_the_output_that_the_query_writes_again_until_the_rewind_is_undone(tmp_path: Path) -> None:
    with zipfile.ZipFile(ARCHIVES / "spark-4.2.0-v2-aggregation.zip") as archive:
        archive.extractall(tmp_path)
    root = tmp_path / "checkpoint"

    def audited() -> tuple[str, dict[str, int] | None]:
        done = statekeeper("audit", root)
        assert done.exit_code == 0, done.output
        return done.output, json.loads(statekeeper("audit", root, "--output", "json").stdout)["rewound"]

    assert audited()[1] is None
    for batch in ("1", "0"):
        verb = ("rewind", root, "--to-batch", batch, "--scratch", tmp_path / "scratch", "--apply", "--confirm-stopped")
        done = statekeeper(*verb)
        assert done.exit_code == 0, done.output
    shown, rewound = audited()
    assert rewound == {"first": 1, "last": 2}
    assert "after the rewind to batch 0, the query writes batches 1 to 2 again. Before you start it, remove" in shown
    assert f"statekeeper rewind {root} --to-batch 0 --sink URL" in shown
    run = re.search(r"--undo ([0-9a-f-]{36})", done.output)
    assert run is not None
    assert statekeeper("rewind", root, "--undo", run[1], "--confirm-stopped").exit_code == 0
    assert audited()[1] == {"first": 2, "last": 2}


def test_a_wrong_source_is_a_usage_error_that_names_the_right_ones(tmp_path: Path) -> None:
    with zipfile.ZipFile(ARCHIVES / "spark-4.2.0-v2-aggregation.zip") as archive:
        archive.extractall(tmp_path)
    before = contents(open_storage(str(tmp_path / "checkpoint")))
    verb = ("rewind", tmp_path / "checkpoint", "--to-batch", "0", "--scratch", tmp_path / "scratch")
    (name,) = re.findall(r"source (\S+) must still have", statekeeper(*verb).output)
    for wrong in (tmp_path / "gone", tmp_path / "checkpoint", "orders"):
        failed = statekeeper(*verb, "--source", wrong)
        assert failed.exit_code == 2
        assert f"wrong_option: file://{Path(wrong).absolute()}: is no Delta table that the query reads" in failed.stderr
        found = re.search(r"choose from: --source (\S+) \(source (\S+)\)", failed.stderr)
        assert found is not None, failed.stderr
        assert (found[1].startswith("file:"), found[2]) == (True, name)
    assert contents(open_storage(str(tmp_path / "checkpoint"))) == before


def test_json_has_the_actions_the_query_ids_and_the_refusals(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    own(storage, tmp_path)
    verb = ("rewind", tmp_path / "root", "--to-batch", "5", "--scratch", tmp_path, "--output", "json")
    planned = json.loads(statekeeper(*verb).stdout)
    assert (planned["batch"], planned["newest_batch"], planned["stores"], planned["done"]) == (5, 7, 2, 0)
    assert planned["former_query_id"] == "a query" != planned["query_id"]
    assert {action["reason"] for action in planned["actions"]} == {"query_id", "commit", "state", "offsets"}
    chosen = "0badc0de-0000-4000-8000-00000000000a"
    done = json.loads(statekeeper(*verb, "--query-id", chosen, "--apply", "--confirm-stopped").stdout)
    assert (done["query_id"], done["done"]) == (chosen, len(done["actions"]))
    store, version = next(iter(catalog.heads_at(storage, 4).heads.items()))
    storage.delete([store.changelog(version), store.snapshot(version)])
    refused = statekeeper("rewind", tmp_path / "root", "--to-batch", "4", "--scratch", tmp_path, "--output", "json")
    assert refused.exit_code == 3
    assert json.loads(refused.stdout)["refusals"][0]["code"] == "version_not_loadable"


def test_the_plan_and_its_execution_name_the_lost_files_of_a_delta_table(tmp_path: Path) -> None:
    storage, table = open_storage(str(tmp_path / "root")), tmp_path / "a table"
    own(storage, tmp_path)
    for number in range(8):
        deltalake.write_deltalake(str(table), pa.table({"number": [number]}), mode="append")
    newest = deltalake.DeltaTable(str(table))
    for batch in range(8):
        log = logs.parse_offsets(storage.read(names.offsets(batch)), names.offsets(batch))
        offset = {"reservoirId": str(newest.metadata().id), "reservoirVersion": batch + 1, "index": -1}
        log = replace(log, sources=(json.dumps({"sourceVersion": 1, **offset, "isStartingVersion": False}),))
        storage.replace(names.offsets(batch), logs.encode_offsets(log))
    verb = ("rewind", tmp_path / "root", "--to-batch", "5", "--scratch", tmp_path / "scratch")
    needs = "source 0 must still have: version 6 of the Delta table and all later versions"
    assert f"{needs}; not checked. To check it, add --source URL" in statekeeper(*verb).output
    assert f"{needs}; nothing is missing" in statekeeper(*verb, "--source", table).output
    newest.optimize.compact()
    newest.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    (source,) = json.loads(statekeeper(*verb, "--source", table, "--output", "json").stdout)["sources"]
    assert (source["source"], len(source["missing"]), source["unchecked"]) == (0, 2, None)
    done = statekeeper(*verb, "--source", table, "--apply", "--confirm-stopped")
    assert done.exit_code == 0, done.output
    assert f"{needs}; missing now: " in done.output


def test_files_of_a_bucket_are_looked_up_with_the_credentials_of_the_checkpoint(
    tmp_path: Path, s3_server: S3Server
) -> None:
    bucket, config = s3_server.make_bucket(), tmp_path / "statekeeper.toml"
    config.write_text(f'[roots.job]\nurl = "s3://{bucket}/root"\n[roots.job.storage]\n')
    with config.open("a") as file:
        file.writelines(f'{key} = "{value}"\n' for key, value in s3_server.options.items())
    storage = open_storage(f"s3://{bucket}/root", options=s3_server.options)
    own(storage, tmp_path)
    for batch in range(8):
        log = logs.parse_offsets(storage.read(names.offsets(batch)), names.offsets(batch))
        log = replace(log, sources=(f'{{"logOffset":{batch}}}',))
        storage.replace(names.offsets(batch), logs.encode_offsets(log))
        url = f"s3a://{bucket}/clicks/{batch}.json"
        storage.create(f"{names.SOURCES}/0/{batch}", b'v1\n{"path":"%s","batchId":%d}' % (url.encode(), batch))
    s3_server.put(bucket, "clicks/6.json", b"{}")
    verb = ("--config", config, "rewind", "job", "--to-batch", "5", "--scratch", tmp_path / "scratch")
    assert f"add --source s3a://{bucket}/clicks" in statekeeper(*verb).output
    shown = statekeeper(*verb, "--source", f"s3a://{bucket}/clicks").output
    assert f"missing now: s3a://{bucket}/clicks/7.json" in shown


def test_paths_of_a_checkpoint_are_printed_without_control_characters_and_shortened(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    own(storage, tmp_path)
    url = "file:///nope\x1b[2J\ntrusted" + f"/{'x' * 200}" * 10 + "/end.json"
    for batch in range(8):
        log = logs.parse_offsets(storage.read(names.offsets(batch)), names.offsets(batch))
        log = replace(log, sources=(f'{{"logOffset":{batch}}}', '{"\x1b]0;title\x07' + "y" * 5_000))
        storage.replace(names.offsets(batch), logs.encode_offsets(log))
        entry = json.dumps({"path": url, "batchId": batch})
        storage.create(f"{names.SOURCES}/0/{batch}", f"v1\n{entry}".encode())
    shown = statekeeper("rewind", tmp_path / "root", "--to-batch", "5", "--scratch", tmp_path / "scratch").output
    assert r"missing now: file:///nope\x1b[2J\ntrusted/xxx" in shown
    assert "xxx/end.json" in shown
    assert r"\x1b]0;title\x07yyy" in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", shown)
    assert max(map(len, shown.splitlines())) < 700


def test_wrong_options_are_usage_errors(tmp_path: Path) -> None:
    own(open_storage(str(tmp_path / "root")), tmp_path)
    for options in (
        (),
        ("--to-batch", "5", "--to", "2026-11-20 03:00"),
        ("--to-batch", "5", "--query-id", "x"),
        ("--to", "yesterday"),
        ("--undo", "0badc0de-0000-4000-8000-00000000000a", "--to-batch", "5"),
        ("--undo", "0badc0de-0000-4000-8000-00000000000a", "--source", tmp_path),
        ("--to-batch", "5", "--kafka-config", tmp_path / "root" / names.QUERY_METADATA),
    ):
        assert statekeeper("rewind", tmp_path / "root", *options).exit_code == 2, options
    early = statekeeper("rewind", tmp_path / "root", "--to", "2020-01-01 10:00")
    assert (early.exit_code, "the oldest retained batch, 0, was committed at" in early.output) == (1, True)
