"""Native checkpoints with known kinds of damage: the result of the audit, compared with Spark's.

If the audit reports that Spark cannot load a version, Spark's reader fails. After the action that the audit names, the
reader shows the same rows as before the damage.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statekeeper.statestore.cli import main
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.maintenance.upkeep.audit import Audit, Finding, FindingKind, Severity, gather, judge
from statekeeper.statestore.storage import open_storage
from tests.support.native import CHANGELOGS, FORMAT, OPERATORS, NativeQuery, state
from tests.support.quick_spark import as_users_have_it
from tests.support.twins import statekeeper

pytestmark = pytest.mark.spark

SOME_ID = "0badc0de-0000-4000-8000-000000000000"
State = dict[str, Counter[str]]


class Made:
    """A query with snapshots of versions 1 and 2 and changelogs of 3 to 5, and its state."""

    def __init__(self, query: NativeQuery, batches: int = 3) -> None:
        self.query = query
        query.confs[CHANGELOGS] = "false"
        query.run(2)
        query.confs[CHANGELOGS] = "true"
        query.run(batches)
        query.saved("made")
        self.state = state(query)
        self.store = query.checkpoint / "state" / "0" / "0"

    def file(self, pattern: str) -> Path:
        [found] = self.store.glob(pattern)
        return found

    def files(self) -> dict[str, bytes]:
        """Return all files of the stores except Hadoop's hidden checksums."""
        state = self.query.checkpoint / "state"
        files = [path for path in state.rglob("*") if path.is_file() and not path.name.startswith(".")]
        return {str(path.relative_to(state)): path.read_bytes() for path in files}

    def audited(self, scratch: Path | None = None) -> Audit:
        return judge(gather(open_storage(str(self.query.checkpoint)), scratch=scratch))

    def the_finding(self, scratch: Path | None = None) -> Finding:
        found = self.audited(scratch).findings
        assert len(found) == 1, found
        return found[0]

    def assert_spark_fails(self, why: str) -> None:
        with pytest.raises(Exception, match="CANNOT_LOAD_STATE_STORE") as failed:
            state(self.query)
        assert why in str(failed.value)

    def assert_spark_reads_it(self) -> None:
        assert state(self.query) == self.state


@pytest.fixture(scope="module")
def queries(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Made]]:
    folder = tmp_path_factory.mktemp("damaged")
    with as_users_have_it(spark):
        yield {
            structure: Made(NativeQuery(spark, folder / structure, OPERATORS["aggregation"], {FORMAT: structure}))
            for structure in ("1", "2")
        }


@pytest.fixture
def v1(queries: dict[str, Made]) -> Made:
    return as_made(queries["1"])


@pytest.fixture
def v2(queries: dict[str, Made]) -> Made:
    return as_made(queries["2"])


def as_made(made: Made) -> Made:
    """Restore the checkpoint as it was when its state was read, without later input."""
    made.query.restored("made")
    for path in made.query.folder.glob(f"*/{made.query.batches:05}.parquet"):
        path.unlink()
    return made


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Other bytes under the same name, without Hadoop's hidden checksum of the old ones."""
    path.write_bytes(change(path.read_bytes()))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def test_a_deep_audit_of_a_native_checkpoint_is_clean(v1: Made, v2: Made, tmp_path: Path) -> None:
    for made in (v1, v2):
        audit = made.audited(tmp_path / "scratch")
        assert audit.findings == ()
        assert all(one.changelogs == 3 for one in audit.decoded.values())
        assert all(one.base is not None and one.base.version == 2 for one in audit.stores)
    assert len(list(v2.store.glob("[0-9]*.crc"))) == 5
    assert list(v1.store.glob("[0-9]*.crc")) == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("4_*.changelog", "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"), ("2_*.zip", "AUTO_SNAPSHOT_REPAIR_FAILED")],
)
def test_spark_rejects_an_intact_file_with_a_wrong_sidecar_and_reads_it_without_one(
    v2: Made, tmp_path: Path, pattern: str, why: str
) -> None:
    sidecar = v2.file(f"{pattern}.crc")
    rewritten(sidecar, lambda body: json.dumps({**json.loads(body), "value": 7}).encode())
    finding = v2.the_finding(tmp_path / "scratch")
    assert (finding.kind, finding.severity, finding.file.rpartition("/")[2]) == (
        FindingKind.SIDECAR_AT_ODDS,
        Severity.ERROR,
        sidecar.name,
    )
    v2.assert_spark_fails(why)
    assert sidecar.name in finding.action
    sidecar.unlink()
    assert v2.audited(tmp_path / "scratch").findings == ()
    v2.assert_spark_reads_it()


def test_spark_rejects_a_table_with_a_wrong_hidden_checksum_and_reads_it_without_one(v2: Made, tmp_path: Path) -> None:
    zipped = v2.file("2_*.zip")
    [table] = read_snapshot(zipped.read_bytes(), zipped.name).metadata.tables[-1:]
    hidden = v2.store / "SSTs" / f".{table.dfs_name}.crc"
    for path in (hidden, v2.store / f".{zipped.name}.crc", v2.store / f".{v2.file('5_*.changelog').name}.crc"):
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    finding = v2.the_finding(tmp_path / "scratch")
    assert (finding.kind, finding.severity) == (FindingKind.HIDDEN_CHECKSUM_AT_ODDS, Severity.ERROR)
    assert finding.file.endswith(hidden.name)
    v2.assert_spark_fails("CANNOT_LOAD_STATE_STORE")
    hidden.unlink()
    v2.assert_spark_reads_it()


@pytest.mark.parametrize("name", ["foo.zip", ".24.zip", f"2_{SOME_ID}.zip"])
def test_a_name_keeps_spark_from_loading_structure_v1(v1: Made, v2: Made, name: str) -> None:
    for made in (v1, v2):
        shutil.copy(made.file("2*.zip"), made.store / name)
    finding = v1.the_finding()
    assert (finding.kind, finding.file) == (FindingKind.NAME_STOPS_LOADS, f"state/0/0/{name}")
    v1.assert_spark_fails("CANNOT_LOAD_STATE_STORE")
    (v1.store / name).unlink()
    v1.assert_spark_reads_it()
    assert [one.kind for one in v2.audited().findings] == ([] if SOME_ID in name else [FindingKind.NAME_STOPS_CLEANUP])
    v2.assert_spark_reads_it()


def test_after_a_start_with_the_wrong_structure_spark_continues_as_the_audit_advises(v1: Made) -> None:
    v1.query.confs[FORMAT] = "2"
    try:
        with pytest.raises(Exception, match=r"None\.get"):
            v1.query.run(1)
    finally:
        v1.query.confs[FORMAT] = "1"
    finding = v1.the_finding()
    assert (finding.kind, finding.severity, finding.file) == (
        FindingKind.FORMAT_FLIPPED,
        Severity.WARNING,
        "state/0/0/6.changelog",
    )
    v1.query.run(0)
    audit = v1.audited()
    assert (audit.batch, audit.findings) == (5, ())


def test_a_query_in_structure_v2_needs_the_setting_that_inspect_prints(v2: Made) -> None:
    v2.query.confs[FORMAT] = "1"
    try:
        with pytest.raises(Exception, match="CANNOT_LOAD_STATE_STORE"):
            v2.query.run(1)
    finally:
        del v2.query.confs[FORMAT]
    assert v2.audited().findings == ()
    printed = CliRunner().invoke(main, ["inspect", str(v2.query.checkpoint)]).stdout
    name, value = re.findall(r"each start of the query needs: --conf (\S+)=(\S+)", printed)[0]
    v2.query.confs[name] = value
    v2.query.run(0)
    audit = v2.audited()
    assert (audit.batch, audit.findings) == (5, ())


def taken_back(made: Made, *, hidden: bool = True) -> None:
    """Back to batch 1, by hand, in the logs alone."""
    for log in ("commits", "offsets", "sources/0"):
        for batch in (2, 3, 4):
            (made.query.checkpoint / log / str(batch)).unlink()
            if hidden or log == "sources/0":
                (made.query.checkpoint / log / f".{batch}.crc").unlink()


def test_spark_loads_a_snapshot_of_rolled_back_batches_and_the_audit_warns_before(v1: Made) -> None:
    shutil.copy(v1.file("2.zip"), v1.store / "4.zip")
    taken_back(v1)
    finding = next(one for one in v1.audited().findings if one.store is not None and one.store.partition == 0)
    assert (finding.kind, finding.severity, finding.file) == (
        FindingKind.ROLLED_BACK_FILES,
        Severity.ERROR,
        "state/0/0/4.zip",
    )
    v1.query.run(0)
    assert state(v1.query) != v1.state, "the same batches again, and another state: it was loaded"
    v1.query.restored("made")
    taken_back(v1)
    root = str(v1.query.checkpoint)
    before = v1.files()
    told = statekeeper("repair", root, "--apply", "--confirm-stopped")
    [run] = re.findall(r"--undo ([0-9a-f-]{36})", told)
    assert v1.audited().findings == ()
    statekeeper("repair", root, "--undo", run, "--confirm-stopped")
    assert v1.files() == before
    [run] = re.findall(r"--undo ([0-9a-f-]{36})", statekeeper("repair", root, "--apply", "--confirm-stopped"))
    v1.query.run(0)
    v1.assert_spark_reads_it()
    statekeeper("repair", root, "--undo", run, "--confirm-stopped", exit_code=13)
    v1.assert_spark_reads_it()


def test_the_hidden_checksum_of_a_deleted_log_stops_spark(v2: Made) -> None:
    taken_back(v2, hidden=False)
    found = [one for one in v2.audited().findings if one.kind is FindingKind.LOG_IN_THE_WAY]
    assert [one.file for one in found] == [f"{log}/.{n}.crc" for log in ("commits", "offsets") for n in (2, 3, 4)]
    assert all(one.severity is Severity.ERROR for one in found)
    with pytest.raises(Exception, match="Multiple streaming queries are concurrently using"):
        v2.query.run(0)
    for one in found:
        (v2.query.checkpoint / one.file).unlink(missing_ok=True)
    v2.query.run(0)
    v2.assert_spark_reads_it()


def test_spark_and_the_audit_ignore_uncommitted_files(v2: Made, tmp_path: Path) -> None:
    """SPARK-51714, SPARK-42353: the late snapshot of a dead attempt, a table that nothing names, half a file."""
    shutil.copy(v2.file("1_*.zip"), v2.store / f"5_{SOME_ID}.zip")
    table = next((v2.store / "SSTs").glob("*.sst"))
    shutil.copy(table, table.with_name(f"000042-{SOME_ID}.sst"))
    (v2.store / f".5_{SOME_ID}.zip.{SOME_ID}.tmp").write_bytes(b"half")
    audit = v2.audited(tmp_path / "scratch")
    assert audit.findings == ()
    assert audit.stores[0].base is not None
    assert audit.stores[0].base.version == 2
    v2.assert_spark_reads_it()


def test_a_missing_table_of_two_snapshots(v2: Made) -> None:
    """SPARK-55892: reused tables deleted by another executor."""
    older, newer = (v2.file(f"{version}_*.zip") for version in (1, 2))
    held = [{one.dfs_name for one in read_snapshot(path.read_bytes(), "").metadata.tables} for path in (older, newer)]
    [shared] = held[0] & held[1]
    (v2.store / "SSTs" / shared).unlink()
    finding = v2.the_finding()
    assert (finding.kind, finding.severity) == (FindingKind.TABLE_MISSING, Severity.ERROR)
    assert older.name in finding.problem
    assert newer.name in finding.problem
    assert finding.meaning.startswith(f"batches 0 to 4 of store {finding.store} cannot be restored")
    v2.assert_spark_fails("CANNOT_LOAD_STATE_STORE")


def test_a_table_that_differs_from_the_one_in_the_manifest(v1: Made, tmp_path: Path) -> None:
    """SPARK-51717: Sst file size mismatch. Spark compares the size with the snapshot's word for it first."""
    zipped = v1.file("2.zip")
    snapshot = read_snapshot(zipped.read_bytes(), "2.zip")
    last = snapshot.metadata.tables[-1]
    path = v1.store / "SSTs" / last.dfs_name
    rewritten(path, lambda body: body + b"longer")
    assert v1.the_finding().kind is FindingKind.TABLE_WRONG_SIZE
    tables = (*snapshot.metadata.tables[:-1], replace(last, size_bytes=path.stat().st_size))
    body = encode_snapshot(replace(snapshot, metadata=replace(snapshot.metadata, tables=tables)))
    rewritten(zipped, lambda _: body)
    assert v1.audited().findings == ()
    finding = v1.the_finding(tmp_path / "scratch")
    assert (finding.kind, finding.severity, finding.file) == (
        FindingKind.TABLE_WRONG_SIZE,
        Severity.ERROR,
        f"state/0/0/SSTs/{last.dfs_name}",
    )
    v1.assert_spark_fails("CANNOT_LOAD_STATE_STORE")


def test_spark_4_2_rejects_a_snapshot_of_spark_4_0(v2: Made) -> None:
    zipped = v2.file("2_*.zip")
    snapshot = read_snapshot(zipped.read_bytes(), zipped.name)
    body = encode_snapshot(replace(snapshot, metadata=replace(snapshot.metadata, header="v2")))
    rewritten(zipped, lambda _: body)
    v2.file("2_*.zip.crc").unlink()
    finding = v2.the_finding()
    assert (finding.kind, finding.file) == (FindingKind.SNAPSHOT_OF_SPARK_4_0, f"state/0/0/{zipped.name}")
    v2.assert_spark_fails("CANNOT_LOAD_STATE_STORE")


def test_a_checkpoint_of_spark_3_5_describes_no_operator_and_is_clean(v1: Made, tmp_path: Path) -> None:
    shutil.rmtree(v1.query.checkpoint / "state" / "0" / "_metadata")
    # A conf that it did not have either, and that a query which it began never gets.
    for path in (v1.query.checkpoint / "offsets").glob("[0-9]*"):
        path.write_text(re.sub(rf'"{logs.ENCODING}":"[a-z]+",', "", path.read_text()))
        path.with_name(f".{path.name}.crc").unlink()
    audit = v1.audited(tmp_path / "scratch")
    assert audit.findings == ()
    assert len(audit.stores) == 2


def test_a_snapshot_at_the_head_helps_where_sparks_own_repair_fails(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SPARK-56216: the first snapshot of the lineage is missing, and Spark has purged older changelogs, as designed."""
    folder = tmp_path_factory.mktemp("repair")
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "2"})
    scratch = str(folder / "scratch")
    at_head = ["--at-head", "--confirm-stopped", "--mode", "snapshots", "--scratch", scratch]

    def snapshot() -> None:
        done = CliRunner().invoke(main, ["snapshot", str(query.checkpoint), *at_head])
        assert done.exit_code == 0, done.output

    for batches in (2, 2, 1):
        query.run(batches)
        if batches == 2:
            snapshot()
    before = state(query)
    for partition in ("0", "1"):
        for pattern in ("4_*.zip", "1_*.changelog*", "2_*.changelog*"):
            for path in (query.checkpoint / "state" / "0" / partition).glob(pattern):
                path.unlink()
    storage = open_storage(str(query.checkpoint))
    audit = judge(gather(storage))
    assert [(one.kind, one.severity) for one in audit.findings] == [(FindingKind.SNAPSHOT_MISSING, Severity.ERROR)] * 2
    assert "autoSnapshotRepair.maxChangeFileReplay" in audit.findings[0].meaning
    assert audit.restart.batch == 4
    with pytest.raises(Exception, match="CANNOT_LOAD_STATE_STORE"):
        state(query)
    assert f"statekeeper snapshot {storage.url} --at-head" in audit.findings[0].action
    snapshot()
    assert state(query) == before
    assert judge(gather(storage)).findings == ()


def test_spark_cannot_read_column_families_without_a_snapshot_that_names_them(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("families")
    query = NativeQuery(spark, folder / "query", OPERATORS["join 3"], {FORMAT: "1"})
    query.run(2)
    storage = open_storage(str(query.checkpoint))
    assert judge(gather(storage)).findings == ()
    storage.delete([names.StorePath(0, 0).folder + "/1.zip"])
    finding = next(one for one in judge(gather(storage)).findings)
    assert (finding.kind, finding.severity, finding.file) == (
        FindingKind.FAMILIES_LOST,
        Severity.ERROR,
        "state/0/0/1.zip",
    )
    with pytest.raises(Exception, match="CANNOT_LOAD_STATE_STORE"):
        state(query)


CLEANS_UP = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
    "spark.sql.streaming.stateStore.unloadOnCommit": "true",
    CHANGELOGS: "false",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what", "left"),
    [
        (None, None, {7, 8}),
        ("foo.crc", FindingKind.FOREIGN_FILE, {7, 8}),
        ("foo.zip", FindingKind.NAME_STOPS_CLEANUP, set(range(1, 9))),
        ("24_x_y.zip", FindingKind.NAME_STOPS_CLEANUP, set(range(1, 9))),
        (f"24_{SOME_ID}.zip", FindingKind.ROLLED_BACK_FILES, {8, 24}),
    ],
)
def test_sparks_cleanup_fails_on_an_invalid_name_and_deletes_too_much_on_a_wrong_number(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    name: str | None,
    what: FindingKind | None,
    left: set[int],
) -> None:
    folder = tmp_path_factory.mktemp("cleanup")
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "2", **CLEANS_UP})
    query.run(1)
    store = query.checkpoint / "state" / "0" / "0"
    if name is not None:
        shutil.copy(next(store.glob("1_*.zip")), store / name)
    found = judge(gather(open_storage(str(query.checkpoint)))).findings
    assert [one.kind for one in found] == ([] if what is None else [what])
    query.run(7)
    kept = {parsed.version.version for path in store.iterdir() if (parsed := names.parse_store_file(path.name))}
    assert kept == left
