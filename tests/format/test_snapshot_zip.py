"""A snapshot's zip: as Spark writes it, forged, and damaged."""

from __future__ import annotations

import io
import json
import resource
import zipfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.snapshot import (
    MAX_UNPACKED_BYTES,
    Snapshot,
    SnapshotMetadata,
    TableFile,
    encode_snapshot,
    read_snapshot,
)
from tests.support.damage import flips, prefixes, value_or_error

TABLE: dict[str, Any] = {"localFileName": "000008.sst", "dfsSstFileName": "000008-6ad1c2f0-0000.sst", "sizeBytes": 1317}
LOG: dict[str, Any] = {"localFileName": "000003.log", "dfsLogFileName": "000003-6ad1c2f0-0000.log", "sizeBytes": 17}
SMALL_FILES = {
    "CURRENT": b"MANIFEST-000005\n",
    "MANIFEST-000005": b"edits" * 20,
    "OPTIONS-000007": b"[DB]",
    "000004.log": b"",
}


def fields(**changes: Any) -> dict[str, Any]:
    """The metadata that Spark 4.2 writes for a store without column families."""
    return {
        "sstFiles": [TABLE],
        "numKeys": 2,
        "numInternalKeys": 0,
        "columnFamilyMapping": {},
        "columnFamilyTypeMap": {},
        "maxColumnFamilyId": 0,
        **changes,
    }


def metadata(body: Any, header: str = "v1") -> bytes:
    return f"{header}\n{body if isinstance(body, str) else json.dumps(body)}".encode()


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    return out.getvalue()


def whole(**changes: Any) -> bytes:
    return zipped({**SMALL_FILES, "metadata": metadata(fields(**changes))})


def read(data: bytes) -> Snapshot:
    return read_snapshot(data, "5.zip")


def test_sparks_snapshot_is_read() -> None:
    snapshot = read(whole())
    assert snapshot.files == SMALL_FILES
    assert snapshot.metadata.tables == (TableFile("000008.sst", "000008-6ad1c2f0-0000.sst", 1317),)
    assert snapshot.metadata.key_count == 2
    assert snapshot.metadata.column_families == {}


def test_an_encoded_snapshot_is_read_and_equal_snapshots_give_equal_bytes() -> None:
    families = {"default": 1, "list": 2, "$ttl": 3}
    metadata_of_families = SnapshotMetadata(
        header="v1",
        tables=(TableFile("000008.sst", "000008-6ad1c2f0-0000.sst", 1317),),
        key_count=7,
        column_families=families,
        internal_key_count=2,
        internal_families={"default": False},
        largest_family_id=3,
    )
    for body in (metadata_of_families, SnapshotMetadata(header="v1", tables=(), key_count=-1, column_families={})):
        snapshot = Snapshot(SMALL_FILES, body)
        assert read(encode_snapshot(snapshot)) == snapshot
        assert encode_snapshot(snapshot) == encode_snapshot(Snapshot(dict(reversed(SMALL_FILES.items())), body))


def test_a_snapshot_may_have_a_digest_that_identifies_its_version() -> None:
    mine, other = (VersionId(3, digest=f"{n}ad1c2f0-1111-4222-8333-444455556666") for n in (1, 2))
    body = SnapshotMetadata(header="v1", tables=(), key_count=2, column_families={})
    told = read_snapshot(encode_snapshot(Snapshot(SMALL_FILES, body, digest=mine.digest)), "3.zip")
    untold = read_snapshot(encode_snapshot(Snapshot(SMALL_FILES, body)), "3.zip")
    assert (told.digest, untold.digest) == (mine.digest, None)
    assert [told.is_of(version) for version in (mine, other, VersionId(3))] == [True, False, True]
    assert [untold.is_of(version) for version in (mine, other, VersionId(3))] == [True, True, True]


def test_the_metadata_equals_that_of_spark_4_2() -> None:
    table = TableFile(TABLE["localFileName"], TABLE["dfsSstFileName"], TABLE["sizeBytes"])
    data = encode_snapshot(
        Snapshot(SMALL_FILES, SnapshotMetadata(header="v1", tables=(table,), key_count=2, column_families={}))
    )
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        header, _, body = archive.read("metadata").decode().partition("\n")
    assert (header, json.loads(body)) == ("v1", fields())


def test_fields_that_older_spark_releases_omit_have_defaults() -> None:
    data = zipped({**SMALL_FILES, "metadata": metadata({"sstFiles": [], "numKeys": -1})})
    assert read(data).metadata.key_count == -1


def test_the_header_of_spark_4_0_is_read_and_an_unknown_one_rejected() -> None:
    assert read(zipped({**SMALL_FILES, "metadata": metadata(fields(), "v2")})).metadata.header == "v2"
    for header in ("v3", "", "V1"):
        with pytest.raises(UnknownFormatVersion, match=r"5\.zip"):
            read(zipped({**SMALL_FILES, "metadata": metadata(fields(), header)}))


def test_archived_logs_are_read_and_rewritten_unchanged() -> None:
    snapshot = read(whole(logFiles=[LOG]))
    log = TableFile("000003.log", "000003-6ad1c2f0-0000.log", 17)
    assert snapshot.metadata.archived_logs == (log,)
    assert snapshot.metadata.named_files == (*snapshot.metadata.tables, log)
    with zipfile.ZipFile(io.BytesIO(encode_snapshot(snapshot))) as archive:
        said = json.loads(archive.read("metadata").decode().partition("\n")[2])
    assert said == fields(logFiles=[LOG])


@pytest.mark.parametrize(
    "log",
    [
        {"localFileName": "000008.sst"},
        {"localFileName": "archive/000003.log"},
        {"dfsLogFileName": "../logs/000003-6ad1.log"},
        {"dfsLogFileName": "000003-6ad1.sst"},
        {"dfsLogFileName": None},
        {"sizeBytes": -1},
    ],
)
def test_an_archived_log_with_an_unsafe_or_impossible_name_is_rejected(log: dict[str, Any]) -> None:
    with pytest.raises(CorruptFile, match=r"5\.zip"):
        read(whole(logFiles=[{**LOG, **log}]))


def test_each_flipped_byte_is_detected_or_harmless() -> None:
    data = whole()
    good = read(data)
    found = 0
    for damaged in flips(data):
        outcome = value_or_error(read, damaged, names="5.zip")
        found += isinstance(outcome, StatekeeperError)
        assert isinstance(outcome, StatekeeperError) or outcome == good
    assert found > len(data)


def test_each_truncation_is_detected() -> None:
    for damaged in prefixes(whole()):
        with pytest.raises(CorruptFile, match=r"5\.zip"):
            read(damaged)


@pytest.mark.parametrize(
    "name",
    [
        "../CURRENT",
        "/etc/passwd",
        "a/CURRENT",
        "CURRENT/",
        "..",
        "000008.sst",
        "MANIFEST-5\n",
        "C:\\x",
        "rocksdict-config.json",
    ],
)
def test_a_file_name_outside_of_the_folder_is_rejected(name: str) -> None:
    with pytest.raises(CorruptFile, match="not part of a snapshot"):
        read(zipped({**SMALL_FILES, "metadata": metadata(fields()), name: b"x"}))


@pytest.mark.parametrize(
    "table",
    [
        {"localFileName": "../000008.sst"},
        {"localFileName": "CURRENT"},
        {"localFileName": "/000008.sst"},
        {"dfsSstFileName": "../../1/000008-6ad1.sst"},
        {"dfsSstFileName": "000008.sst/"},
        {"sizeBytes": -1},
        {"sizeBytes": "many"},
        {"sizeBytes": 1e999},
        {"localFileName": None},
    ],
)
def test_a_table_with_an_unsafe_or_impossible_name_is_rejected(table: dict[str, Any]) -> None:
    with pytest.raises(CorruptFile, match=r"5\.zip"):
        read(whole(sstFiles=[{**TABLE, **table}]))


def test_two_tables_or_files_with_the_same_name_are_rejected() -> None:
    with pytest.raises(CorruptFile, match=r"5\.zip"):
        read(whole(sstFiles=[TABLE, {**TABLE, "dfsSstFileName": "000008-other.sst"}]))
    out = io.BytesIO(whole())
    with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("CURRENT", b"MANIFEST-000009\n")
    with pytest.raises(CorruptFile, match="two files"):
        read(out.getvalue())


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", "null", "[" * 100_000, '{"sstFiles":[1],"numKeys":0}', '{"sstFiles":[],"numKeys":1e999}']
)
def test_invalid_metadata_is_rejected(body: str) -> None:
    with pytest.raises(CorruptFile, match=r"5\.zip"):
        read(zipped({**SMALL_FILES, "metadata": metadata(body)}))


@pytest.mark.parametrize(
    "more",
    [
        {"columnFamilyMapping": {"values": 2**15}},
        {"columnFamilyMapping": {"values": -1}},
        {"maxColumnFamilyId": 2**15},
        {"numKeys": 2**63},
        {"numInternalKeys": -2},
    ],
)
def test_numbers_out_of_sparks_range_are_rejected(more: dict[str, Any]) -> None:
    body = json.dumps({"sstFiles": [], "numKeys": 0, **more})
    with pytest.raises(CorruptFile, match=r"5\.zip"):
        read(zipped({**SMALL_FILES, "metadata": metadata(body)}))


def test_a_snapshot_without_metadata_or_current_is_rejected() -> None:
    for missing in ("metadata", "CURRENT"):
        files = {**SMALL_FILES, "metadata": metadata(fields())}
        del files[missing]
        with pytest.raises(CorruptFile, match=missing):
            read(zipped(files))


def test_other_compression_methods_are_rejected_before_they_take_memory() -> None:
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(CorruptFile, match="compression method"):
            read(zipped({**SMALL_FILES, "metadata": metadata(fields())}, method))


@pytest.mark.parametrize(("flag", "method"), [(1 << 0, zipfile.ZIP_DEFLATED), (1 << 3, zipfile.ZIP_STORED)])
def test_flags_that_java_cannot_read_are_rejected(flag: int, method: int) -> None:
    """An encrypted file, and one of unknown size that is not compressed."""
    data = bytearray(zipped({**SMALL_FILES, "metadata": metadata(fields())}, method))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        data[archive.infolist()[0].header_offset + 6] |= flag
        data[archive.start_dir + 8] |= flag
    with pytest.raises(CorruptFile, match="flags that Java cannot read"):
        read(bytes(data))


def test_a_file_that_only_a_reader_from_the_first_byte_on_finds_is_rejected() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, body in {**SMALL_FILES, "metadata": metadata(fields()), "other": b"hidden"}.items():
            archive.writestr(name, body)
        archive.filelist.pop()
    with pytest.raises(CorruptFile, match="between its files and its directory"):
        read(out.getvalue())


def test_a_zip_bomb_is_rejected_before_it_is_unpacked() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("MANIFEST-000005", "w") as member:
        for _ in range(MAX_UNPACKED_BYTES // (16 * 1024 * 1024) + 1):
            member.write(bytes(16 * 1024 * 1024))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptFile, match="unpacks to more"):
        read(out.getvalue())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_a_file_larger_than_its_declared_size_is_rejected() -> None:
    """The size in the directory is trusted and is never exceeded."""
    data = zipped({**SMALL_FILES, "MANIFEST-000006": bytes(1_000_000), "metadata": metadata(fields())})
    claimed = (1_000_000).to_bytes(4, "little")
    assert data.count(claimed) == 2
    with pytest.raises(CorruptFile, match=r"5\.zip"):
        read(data.replace(claimed, (10).to_bytes(4, "little")))


def test_a_file_larger_than_its_declared_size_takes_no_extra_memory() -> None:
    """Python's `ZipFile.read` would unpack up to 2 GiB before it checks the size in the directory."""
    size_bytes = 256 * 1024 * 1024
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("MANIFEST-000005", "w") as member:
            for _ in range(size_bytes // (16 * 1024 * 1024)):
                member.write(bytes(16 * 1024 * 1024))
        archive.writestr("metadata", metadata(fields()))
        archive.writestr("CURRENT", "MANIFEST-000005\n")
    data = out.getvalue().replace(size_bytes.to_bytes(4, "little"), (10).to_bytes(4, "little"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptFile, match=r"5\.zip"):
        read(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_a_zip_of_too_many_files_is_rejected_before_its_directory_is_read() -> None:
    with pytest.raises(CorruptFile, match="more than 1,000 files"):
        read(zipped({f"{number:06}.log": b"" for number in range(1001)}))


def test_metadata_above_the_limit_is_rejected_before_it_is_parsed() -> None:
    with pytest.raises(CorruptFile, match=r"metadata of 16,777,2\d\d bytes"):
        read(zipped({**SMALL_FILES, "metadata": b"v1\n" + b"[" * (16 * 1024 * 1024)}))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_typed_errors_or_values(data: bytes) -> None:
    for damaged in (data, b"PK\3\4" + data, data + whole()[-60:]):
        with pytest.raises(StatekeeperError):
            read(damaged)
