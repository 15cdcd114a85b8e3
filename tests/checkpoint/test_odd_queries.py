"""Native checkpoints of unusual but correct queries: no verb reports a false problem."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.base.errors import UnsupportedProvider
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, gather, judge
from statekeeper.statestore.storage import open_storage
from tests.support.unpacked import unpacked

FOLDER = Path(__file__).parents[1] / "fixtures" / "odd_queries"
FORMS = sorted(path.stem.removeprefix("spark-4.2.0-") for path in FOLDER.glob("*.zip"))
FEWEST = 19
STATELESS = ("asynchronous", "continuous", "stateless", "stateless-v2")
UNCOMMITTED = [form for form in FORMS if form.endswith(("no-batches", "just-started", "first-batch-uncommitted"))]
STORES = {
    "v1-available-now": 2,
    "v1-several-operators": 4,
    "v2-several-operators": 4,
    "v1-union": 2,
    "v2-union": 2,
    "v1-never-any-rows": 2,
    "v1-of-all-rows": 2,
    "v2-of-all-rows": 2,
    "v1-kryo": 2,
    "v2-kryo": 2,
}

Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return lambda form: unpacked(FOLDER / f"spark-4.2.0-{form}.zip", tmp_path)


def output_of(root: Path, verb: str, *options: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(main, [verb, str(root), *options])
    assert done.exit_code == exit_code, (verb, done.output, done.exception)
    return " ".join(done.output.split())


def files(root: Path) -> dict[str, bytes]:
    """Return the files of Spark, without the history of maintenance."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith("_statekeeper/")}


def test_all_of_them_are_there() -> None:
    assert len(FORMS) >= FEWEST
    assert {*STATELESS, *UNCOMMITTED, *STORES} == {*FORMS}


@pytest.mark.parametrize("form", FORMS)
def test_the_audit_of_an_ordinary_query_is_clean(written: Written, tmp_path: Path, form: str) -> None:
    root = written(form)
    before = files(root)
    for scratch in (None, tmp_path / "scratch"):
        audit = judge(gather(open_storage(str(root)), scratch=scratch))
        assert audit.findings == ()
        assert len(audit.stores) == STORES.get(form, 0)
        assert (audit.stateless is not None) == (form in STATELESS)
        assert audit.restart.batch == audit.batch
    assert files(root) == before


@pytest.mark.parametrize("form", STATELESS)
def test_each_verb_reports_a_query_without_state(written: Written, tmp_path: Path, form: str) -> None:
    root = written(form)
    before = files(root)
    scratch = str(tmp_path / "scratch")
    plainly = "continuous processing" if form == "continuous" else "the query has no stateful operator"
    told = [
        output_of(root, "audit", "--deep", "--scratch", scratch),
        output_of(root, "inspect"),
        output_of(root, "snapshot", "--at-head", "--confirm-stopped", "--mode", "full", "--scratch", scratch),
        output_of(root, "gc"),
        output_of(root, "gc", "--apply", "--mode", "full", "--retain", "1", "--grace", "0s"),
        output_of(root, "gc", "--orphans", "--apply", "--confirm-stopped", "--mode", "full"),
    ]
    assert [plainly in one for one in told] == [True] * len(told), told
    assert not any("HDFS" in one for one in told)
    assert "nothing to repair" in output_of(root, "repair")
    assert "0 rows" in output_of(root, "dump")
    if form != "stateless-v2":
        assert "the checkpoint has no state" in output_of(root, "switch", "--to", "v2", exit_code=3)
    assert json.loads(output_of(root, "inspect", "--output", "json"))["stores"] == []
    assert files(root) == before


@pytest.mark.parametrize("form", UNCOMMITTED)
def test_a_query_without_a_committed_batch_needs_no_maintenance(written: Written, tmp_path: Path, form: str) -> None:
    root = written(form)
    before = files(root)
    for verb in (["audit", "--deep"], ["inspect"], ["snapshot", "--dry-run"], ["gc", "--apply", "--mode", "full"]):
        assert "no batch is committed yet" in output_of(root, *verb), verb
    assert "nothing to repair" in output_of(root, "repair")
    assert files(root) == before


@pytest.mark.parametrize("form", STORES)
def test_an_ordinary_stateful_query_gets_its_snapshots_and_is_cleaned_up(
    written: Written, tmp_path: Path, form: str
) -> None:
    root, scratch = written(form), str(tmp_path / "scratch")
    inspected = json.loads(output_of(root, "inspect", "--output", "json"))
    assert (len(inspected["stores"]), inspected["stateless"]) == (STORES[form], None)
    rows = output_of(root, "dump", "--output", "jsonl")
    output_of(root, "snapshot", "--at-head", "--confirm-stopped", "--mode", "full", "--scratch", scratch)
    output_of(root, "gc", "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    output_of(root, "audit", "--deep", "--retain", "1", "--scratch", scratch)
    assert output_of(root, "dump", "--output", "jsonl") == rows


def test_a_live_query_of_structure_v1_whose_settled_version_retention_deleted_has_no_broken_head(
    written: Written, tmp_path: Path
) -> None:
    """Whoever keeps two versions has a snapshot at the head or one below it, and nothing two below the head."""
    root, scratch = written("v1-available-now"), str(tmp_path / "scratch")
    output_of(root, "snapshot", "--at-head", "--confirm-stopped", "--mode", "full", "--scratch", scratch)
    output_of(root, "gc", "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    assert not (root / "state/0/0/1.changelog").exists()
    told = json.loads(output_of(root, "snapshot", "--mode", "full", "--output", "json", "--scratch", scratch))
    assert told["take"] == []
    assert {one["reason"] for one in told["leave"]} == {"at_head"}
    output_of(root, "inspect")
    output_of(root, "audit", "--retain", "1")


def test_a_live_query_whose_settled_version_is_lost_without_a_newer_snapshot_is_still_reported(
    written: Written, tmp_path: Path
) -> None:
    root = written("v1-available-now")
    (root / "state/0/0/1.changelog").unlink()
    output_of(root, "snapshot", "--dry-run", exit_code=3)


def test_a_gap_in_the_logs_of_a_query_with_state_is_still_an_error(written: Written) -> None:
    root = written("v1-available-now")
    for log in ("commits", "offsets"):
        (root / log / "1").unlink()
        (root / log / ".1.crc").unlink()
    assert FindingKind.COMMIT_MISSING in {one.kind for one in judge(gather(open_storage(str(root)))).findings}


def test_damaged_newest_logs_of_a_query_without_state_are_still_errors(written: Written) -> None:
    root = written("asynchronous")
    newest = max(int(path.name) for path in (root / "commits").glob("[0-9]*"))
    (root / "commits" / str(newest)).write_bytes(b"v1\n{")
    (root / "offsets" / str(newest)).write_bytes(b"v1\n{")
    found = {one.kind for one in judge(gather(open_storage(str(root)))).findings}
    assert found == {FindingKind.COMMIT_UNREADABLE, FindingKind.OFFSETS_UNREADABLE}


def test_a_query_with_state_in_the_default_state_store_is_not_stateless(written: Written) -> None:
    """Spark 3.5 writes no operator metadata. Only the file names show the store."""
    root = written("stateless")
    store = root / "state/0/0"
    store.mkdir(parents=True)
    (store / "1.delta").write_bytes(b"a delta")
    assert gather(open_storage(str(root))).stateless is None
    heads = catalog.heads(open_storage(str(root)))
    assert heads is not None
    assert [(found.folder, found.provider) for found in heads.heads] == [("state/0/0", Provider.HDFS_BACKED)]
    with pytest.raises(UnsupportedProvider, match="HDFSBackedStateStoreProvider"):
        catalog.state_conf(open_storage(str(root)), heads)


def test_deleting_the_whole_state_of_a_v2_query_is_a_finding(written: Written) -> None:
    root = written("v2-union")
    shutil.rmtree(root / "state")
    audit = judge(gather(open_storage(str(root))))
    assert audit.stateless is None
    assert audit.findings
