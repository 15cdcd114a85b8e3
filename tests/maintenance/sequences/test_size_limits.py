"""What a reader would reject as too large is not written, and a checkpoint that has it already has a way out."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.base.errors import (
    BadConfiguration,
    CorruptFile,
    LineageCeiling,
    RecordTooLarge,
    TooLarge,
    UnsupportedType,
    VersionNotLoadable,
)
from statekeeper.statestore.checkpoint import lineage as lineage_ceiling
from statekeeper.statestore.checkpoint.lineage import MOST_REPLAYED
from statekeeper.statestore.format import batch_log, limits, names, untrusted
from statekeeper.statestore.format import snapshot as snapshots
from statekeeper.statestore.format.limits import MOST_READ_BYTES
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.snapshot import Snapshot, SnapshotMetadata, TableFile
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.types import MOST_LEVELS, arrow_schema, spark_schema_json
from statekeeper.statestore.maintenance.rewrites.whole_stores.snapshots import NewFiles
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import judge
from statekeeper.statestore.maintenance.verbs.config import bytes_of_mib, load, with_options_of
from statekeeper.statestore.storage import SizeLimits, StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import run, statekeeper
from tests.support.hosts import Host, column

MIB = 1024 * 1024
LOW = SizeLimits(record_bytes=8 * MIB)
LARGE = os.urandom(9 * MIB)
"""Below the default limit, and above that of `LOW`."""

both_structures = pytest.mark.parametrize("structure", list(Structure))


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    """A checkpoint whose newest batch, 2, has a value that nobody reads with the limits `LOW`."""
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    made.grow(2)
    made.batch({b"key": LARGE}, {b"key": b"small"})
    return tmp_path / "root"


def low(root: Path) -> StorageSpec:
    return StorageSpec(str(root), limits=LOW)


def host(tmp_path: Path, limits: SizeLimits, name: str = "host") -> Host:
    return Host(open_storage(StorageSpec(str(tmp_path / "root"), limits=limits)), tmp_path / name)


@both_structures
def test_a_value_that_no_load_could_read_is_not_committed(tmp_path: Path, structure: Structure) -> None:
    here = Host(host(tmp_path, LOW).storage, tmp_path / "host", structure=structure)
    base = here.commit(EMPTY, {b"key": b"0" * (6 * MIB)})
    before = [entry.path for entry in here.storage.list("")]
    with here.load(base) as store, pytest.raises(TooLarge) as refused:
        store.put(column([b"a", b"key"]), column([b"1", b"0" * (12 * MIB)]))
    assert refused.value.key == b"key"
    assert "key 6b6579 has a value of 12,582,912 bytes" in refused.value.what
    assert "limit of 8,388,608 bytes" in refused.value.what
    assert str(refused.value.path).startswith("state/0/3/2")
    assert "--record-mib 16" in str(refused.value.hint)
    assert f'StorageSpec("{here.storage.url}", limits=SizeLimits(record_bytes=16 * 1024**2))' in str(refused.value.hint)
    assert [entry.path for entry in here.storage.list("")] == before


@pytest.mark.parametrize("rows", [1, 200], ids=["one by one", "at once"])
def test_the_largest_value_of_the_limit_is_committed_and_read(tmp_path: Path, rows: int) -> None:
    here = host(tmp_path, LOW)
    small = {b"%03d" % number: b"x" for number in range(rows - 1)}
    value = b"0" * (8 * MIB - limits.RECORD_HEAD_BYTES - len(b"key"))
    with here.load(EMPTY) as store, pytest.raises(TooLarge):
        store.put(column([*small, b"key"]), column([*small.values(), value + b"0"]))
    version = here.commit(EMPTY, {**small, b"key": value})
    assert host(tmp_path, LOW, "another").read(version) == {**small, b"key": value}


def test_many_values_that_are_large_only_together_are_committed(tmp_path: Path) -> None:
    here = host(tmp_path, LOW)
    state = {b"%03d" % number: b"0" * (6 * MIB) for number in range(3)}
    assert here.read(here.commit(EMPTY, state)) == state


@both_structures
def test_a_version_above_the_limit_loads_after_the_limit_is_raised(tmp_path: Path, structure: Structure) -> None:
    writer = Host(host(tmp_path, SizeLimits()).storage, tmp_path / "writer", structure=structure)
    base = writer.commit(EMPTY, {b"a": b"1"})
    version = writer.commit(base, {b"key": LARGE})
    reader = Host(host(tmp_path, LOW).storage, tmp_path / "reader", structure=structure)
    with pytest.raises(VersionNotLoadable) as failed:
        reader.read(version)
    assert isinstance(failed.value.__cause__, RecordTooLarge)
    assert "has a record of 9,437,195 bytes, above the limit of 8,388,608 bytes" in failed.value.what
    hint = str(failed.value.hint)
    assert "--record-mib 16" in hint
    assert f'root=StorageSpec("{reader.storage.url}", limits=SizeLimits(record_bytes=16 * 1024**2))' in hint
    assert f"statekeeper rewind {reader.storage.url} --to-batch 0" in hint
    assert "backup" not in hint
    assert reader.read(base) == {b"a": b"1"}
    raised = Host(host(tmp_path, SizeLimits()).storage, tmp_path / "reader", structure=structure)
    assert raised.read(version) == {b"a": b"1", b"key": LARGE}


@pytest.mark.parametrize("options", [(), ("--deep",)], ids=["shallow", "deep"])
def test_an_audit_reports_a_value_above_the_limit_with_both_ways_out(stuck: Path, options: tuple[str, ...]) -> None:
    result = run("audit", stuck, "--record-mib", 8, "--output", "json", *options)
    assert result.exit_code == 3, result.output
    shown = json.loads(result.stdout)
    [finding] = shown["findings"]
    assert finding["code"] == "changelog_too_large"
    assert "above the limit of 8,388,608 bytes" in finding["problem"]
    assert "--record-mib 16" in finding["action"]
    assert f"statekeeper rewind {stuck} --to-batch 1" in finding["action"]
    assert "backup" not in finding["action"]
    assert run("audit", stuck, *options).exit_code == 0, "the limit is the default again"


def test_a_shallow_audit_reads_no_small_changelog(tmp_path: Path) -> None:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    made.batch({b"key": os.urandom(MIB // 2)}, {b"key": b"small"})
    storage = open_storage(low(tmp_path / "root"))
    judge(audit.gather(storage))
    assert storage.requests.snapshot().bytes_read < MIB // 2


def test_a_snapshot_with_the_raised_limit_is_a_way_out(stuck: Path, tmp_path: Path) -> None:
    failed = run("snapshot", stuck, "--all", "--record-mib", 8, "--memory", 320)
    assert failed.exit_code == 4
    assert "--record-mib 16" in failed.output
    assert run("snapshot", stuck, "--all", "--record-mib", 16).exit_code == 0
    assert run("audit", stuck, "--record-mib", 8).exit_code == 0
    stores = judge(audit.gather(open_storage(low(stuck)))).stores
    for one in stores:
        here = Host(open_storage(low(stuck)), tmp_path / f"reader {one.store.partition}", store=one.store)
        assert here.read(one.head)[b"key"] == (b"small" if one.store.partition else LARGE)


def test_a_rewind_to_the_batch_before_is_a_way_out(stuck: Path) -> None:
    done = statekeeper(
        "rewind", stuck, "--to-batch", 1, "--apply", "--confirm-stopped", "--keep-query-id", "--record-mib", 8
    )
    assert done.exit_code == 0, done.output
    assert run("audit", stuck, "--deep", "--record-mib", 8).exit_code == 0


def test_a_root_in_statekeeper_toml_has_its_own_limits(tmp_path: Path) -> None:
    file = tmp_path / "statekeeper.toml"
    file.write_text(
        '[defaults]\nlimits = { record_mib = 128 }\n[roots.a]\nurl = "a"\n'
        '[roots.b]\nurl = "b"\nlimits = { object_mib = 2048 }\n[parents.c]\nurl = "c"\nlimits = { record_mib = 8 }\n'
    )
    configured = load(file)
    assert configured.find("a").spec.limits == SizeLimits(record_bytes=128 * MIB)
    assert configured.find("b").spec.limits == SizeLimits(
        record_bytes=128 * MIB, object_bytes=limits.LARGEST_RECORD_BYTES
    )
    assert configured.find("c.one").spec.limits == LOW
    assert configured.find(str(tmp_path / "other")).spec.limits == SizeLimits(record_bytes=128 * MIB)
    copy = with_options_of(configured.find("c.one").spec, StorageSpec(str(tmp_path / "copy")))
    assert copy.limits == LOW, "a copy has the limits of its source"


@pytest.mark.parametrize("value", ["1", "4096", '"64"', "true"])
def test_an_invalid_limit_is_bad_configuration(tmp_path: Path, value: str) -> None:
    file = tmp_path / "statekeeper.toml"
    file.write_text(f'[roots.a]\nurl = "a"\nlimits = {{ record_mib = {value} }}\n')
    with pytest.raises(BadConfiguration, match=r"roots\.a\.limits\.record_mib"):
        load(file).find("a")


@pytest.mark.parametrize("needed", [1, 8 * MIB, 8 * MIB + 1, 1500 * MIB, limits.LARGEST_RECORD_BYTES])
def test_the_advised_limit_suffices_and_is_valid(needed: int) -> None:
    action = limits.how_to_read(needed, root="s3://bucket/root")
    mib = int(action.partition("--record-mib ")[2].partition(".")[0])
    assert needed <= SizeLimits(record_bytes=bytes_of_mib(mib)).record_bytes
    spec = eval(action.partition("root=")[2], {"StorageSpec": StorageSpec, "SizeLimits": SizeLimits})
    assert spec.url == "s3://bucket/root"
    assert needed <= spec.limits.record_bytes


def test_limits_are_within_their_ranges() -> None:
    for one in fields(SizeLimits):
        with pytest.raises(ValueError, match=one.name):
            SizeLimits(**{one.name: limits.LARGEST_RECORD_BYTES + 1})
        with pytest.raises(ValueError, match=one.name):
            SizeLimits(**{one.name: 1})


def test_an_object_that_could_not_be_read_as_a_whole_is_not_written(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    data = bytes(MOST_READ_BYTES + 1)
    for write in (storage.create, storage.replace):
        with pytest.raises(TooLarge, match="limit of 67,108,864 bytes") as refused:
            write("offsets/0", data)
        assert "--object-mib 128" in str(refused.value.hint)
    assert storage.list("") == []
    raised = open_storage(StorageSpec(str(tmp_path), limits=SizeLimits(object_bytes=128 * MIB)))
    raised.create("offsets/0", data)
    with pytest.raises(CorruptFile, match="limit of 67,108,864 bytes") as failed:
        storage.read("offsets/0")
    assert "--object-mib 128" in str(failed.value.hint)
    assert raised.read("offsets/0") == data


@pytest.mark.parametrize("path", [names.pending(0, "a"), names.commits(0), names.VERIFIED, names.BINDING])
def test_json_with_more_values_than_its_parser_accepts_is_not_written(tmp_path: Path, path: str) -> None:
    storage = open_storage(str(tmp_path))
    data = b"[" + b"1," * untrusted.MOST_JSON_VALUES + b"1]"
    with pytest.raises(ValueError, match="the JSON text has about 2,000,001 values"):
        untrusted.parsed_json(data)
    for write in (storage.create, storage.replace):
        with pytest.raises(TooLarge, match="the JSON text has about 2,000,001 values"):
            write(path, data)
    assert storage.list("") == []


def test_a_list_of_many_files_is_written_and_parsed(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    files = {
        f"state/0/{number % 200}/SSTs/{number:06}-6ad1f0c2-11aa-8c3d-9f00-0123456789ab.sst": "x"
        for number in range(250_000)
    }
    data = json.dumps({"files": files}).encode()
    assert len(data) > 16 * MIB
    storage.create("_statekeeper/mirrored/1.json", data)
    assert untrusted.parsed_json(storage.read("_statekeeper/mirrored/1.json"))["files"] == files


def test_a_batch_log_whose_index_could_not_be_read_is_not_encoded() -> None:
    tag = batch_log.tag_of("6ad1f0c2-11aa-4c3d-9f00-0123456789ab")
    with pytest.raises(TooLarge, match="would have a head of 16,777,") as refused:
        batch_log.encode(1, tag, {"files": "x" * batch_log.MOST_HEAD_BYTES}, {})
    assert refused.value.path == names.batch_log(1, tag)
    assert batch_log.parse_head(batch_log.encode(1, tag, {"files": "x"}, {}), names.batch_log(1, tag)).record


@pytest.mark.parametrize(
    ("files", "tables", "problem"),
    [
        ({"CURRENT": b"", **{f"{n}.log": b"" for n in range(1000)}}, 0, "1,002 small files"),
        ({"CURRENT": b"", "MANIFEST-1": bytes(256 * MIB)}, 0, "small files have 268,435"),
        ({"CURRENT": b""}, 150_000, "metadata has"),
    ],
    ids=["files", "bytes", "SST files"],
)
def test_a_snapshot_that_could_not_be_read_is_not_encoded(files: dict[str, bytes], tables: int, problem: str) -> None:
    named = tuple(
        TableFile(f"{n:06}.sst", f"{n:06}-6ad1f0c2-11aa-4c3d-9f00-0123456789ab.sst", 1) for n in range(tables)
    )
    metadata = SnapshotMetadata(header="v1", tables=named, key_count=0, column_families={})
    with pytest.raises(TooLarge, match=problem) as refused:
        snapshots.encode_snapshot(Snapshot(files, metadata))
    assert "statekeeper rescale" in str(refused.value.hint)


def test_a_snapshot_file_of_the_default_provider_has_no_value_above_the_limit(tmp_path: Path) -> None:
    new = NewFiles(folder=tmp_path, codec="lz4", row_checksums=False, most_record_bytes=LOW.record_bytes)
    with pytest.raises(TooLarge) as refused:
        new.write(StorePath(0, 1), iter([(b"key", LARGE)]))
    assert refused.value.path == "state/0/1"


def test_a_type_that_could_not_be_parsed_is_not_described() -> None:
    def nested(levels: int) -> pa.Schema:
        kind = pa.int64()
        for _ in range(levels):
            kind = pa.list_(pa.field("element", kind))
        return pa.schema([("a", kind)])

    with pytest.raises(UnsupportedType, match="more than 100 levels"):
        spark_schema_json(nested(MOST_LEVELS + 1))
    assert arrow_schema(spark_schema_json(nested(MOST_LEVELS))) == nested(MOST_LEVELS)


def test_a_tail_that_no_load_would_replay_stops_the_batch() -> None:
    base = VersionId(MOST_REPLAYED, digest="d" * 36)
    with pytest.raises(LineageCeiling, match="1,000,001 changelogs"):
        lineage_ceiling.check_ceiling(StorePath(0, 0), base, (), 62_000)
    lineage_ceiling.check_ceiling(StorePath(0, 0), base, (), 62_000, [VersionId(MOST_REPLAYED - 5)])
