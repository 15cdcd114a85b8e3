"""The plan of a rewind shows which data of its sources a query needs, and which of it no longer exists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from statekeeper.statestore.base.errors import (
    BadConfiguration,
    CorruptFile,
    StorageError,
    WrongOption,
)
from statekeeper.statestore.format.logs import OffsetLog
from statekeeper.statestore.maintenance.rollback.rewind import SourceLocations, SourceNeed, client_properties, look_up
from statekeeper.statestore.maintenance.rollback.rewind.sources import kafka
from statekeeper.statestore.maintenance.rollback.rewind.sources.data import (
    DeltaVersions,
    Files,
    KafkaOffsets,
    OtherData,
    read,
)
from statekeeper.statestore.storage import Storage, open_storage


def need(data: object, *folders: Storage) -> SourceNeed:
    (found,) = look_up({"0": data}, SourceLocations(folders=folders))  # type: ignore[dict-item]
    return found


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_in_a_bucket_are_looked_up_below_the_given_folder_only(new_root: Callable[[str], Storage]) -> None:
    folder = new_root("clicks of today")
    folder.create("day=1/a file.json", b"{}")
    url = folder.url.replace("s3://", "s3a://")
    url = url if url.startswith("file:") else url.replace(" ", "%20")
    files = Files((f"{url}/day=1/a%20file.json", f"{url}/day=1/gone.json", "s3a://another-bucket/x/file.json"))
    found = need(files, folder)
    assert found.missing == (files.urls[1],)
    assert found.unchecked is not None
    assert found.unchecked.endswith("add --source s3a://another-bucket/x")
    assert need(Files(files.urls[:1]), folder) == SourceNeed("0", "the file that later batches have read", ())


def test_files_elsewhere_are_not_looked_up_without_a_location() -> None:
    found = need(Files(("s3a://bucket/clicks/1.json",)))
    assert found.missing is None
    assert found.unchecked == (
        "1 not checked. To check files below s3a://bucket/clicks, add --source s3a://bucket/clicks"
    )


def test_the_suggested_location_is_quoted_for_the_shell() -> None:
    found = need(Files(("s3a://bucket/$(id);x/1.json",)))
    assert str(found.unchecked).endswith("add --source 's3a://bucket/$(id);x'")


@pytest.mark.parametrize("url", ["s3://[x", "s3a://bucket/clicks/../../secret", "s3a://bucket/clicks//x"])
def test_invalid_urls_are_not_looked_up(tmp_path: Path, url: str) -> None:
    found = need(Files((url,)))
    assert found.missing is None
    assert found.unchecked is not None


def test_a_path_out_of_the_given_folder_is_not_looked_up(tmp_path: Path) -> None:
    folder = open_storage(str(tmp_path / "clicks"))
    folder.create("a.json", b"{}")
    found = need(Files((f"{folder.url}/%2e%2e/secret", f"{folder.url}/a.json")), folder)
    assert found.missing is None


def test_folders_in_each_other_both_have_the_files(tmp_path: Path) -> None:
    outer, inner = open_storage(str(tmp_path / "clicks")), open_storage(str(tmp_path / "clicks" / "today"))
    inner.create("a.json", b"{}")
    for folders in ((outer, inner), (inner, outer)):
        assert need(Files((f"{inner.url}/a.json",)), *folders).missing == ()


def test_a_location_of_no_source_is_a_wrong_option_and_the_error_names_those_that_fit(tmp_path: Path) -> None:
    other = open_storage(str(tmp_path / "other"))
    with pytest.raises(WrongOption, match="is no Delta table that the query reads") as raised:
        need(Files(("s3a://bucket/clicks/day=1/1.json", "s3a://bucket/clicks/day=2/1.json")), other)
    assert (raised.value.path, raised.value.exit_code) == (other.url, 2)
    assert str(raised.value.hint).startswith(
        "choose from: --source s3a://bucket/clicks (source 0). Or run this command"
    )
    with pytest.raises(WrongOption, match="have read no file and no Delta table"):
        need(Files(()), other)
    with pytest.raises(WrongOption, match="Delta table whose id is 7c01"):
        need(DeltaVersions(table_id="7c01", version=1, index=0, is_snapshot=False), other)


# -- Delta -------------------------------------------------------------------------------------------------------------


class _Table:
    """A Delta table with one file a version."""

    def __init__(self, folder: Path, versions: int) -> None:
        self.folder, self.storage = folder, open_storage(str(folder))
        for number in range(versions):
            deltalake.write_deltalake(str(folder), pa.table({"number": [number]}), mode="append")
        self.id = str(self.table.metadata().id)

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self.folder))

    def data(self, version: int, *, index: int = -1, is_snapshot: bool = False) -> DeltaVersions:
        return DeltaVersions(table_id=self.id, version=version, index=index, is_snapshot=is_snapshot)

    def commit(self, version: int) -> Path:
        return self.folder / "_delta_log" / f"{version:020}.json"

    def added(self, version: int) -> Path:
        (path,) = [
            json.loads(line)["add"]["path"] for line in self.commit(version).read_text().splitlines() if '"add"' in line
        ]
        return self.folder / path


def test_a_complete_delta_table_has_all_that_a_query_needs(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 4)
    assert need(table.data(1), table.storage).missing == ()
    assert need(table.data(4), table.storage) == SourceNeed(
        "0", "version 4 of the Delta table and all later versions", ()
    )


def test_vacuumed_files_of_later_versions_are_missing(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 4)
    names = [table.added(version).name for version in range(4)]
    table.table.optimize.compact()
    assert need(table.data(0), table.storage).missing == ()
    table.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert need(table.data(2), table.storage).missing == tuple(sorted(names[2:]))
    # The query has read the only file of version 2.
    assert need(table.data(2, index=0), table.storage).missing == (names[3],)
    assert need(table.data(4), table.storage).missing == ()


def test_deleted_versions_are_missing_and_the_id_comes_from_the_checkpoint(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 5)
    needed = table.data(1)
    table.table.create_checkpoint()
    for version in range(4):
        table.commit(version).unlink()
    found = need(needed, table.storage)
    assert found.missing == ("version 1 to 3",)
    assert found.unchecked is None
    table.commit(4).unlink()
    # The checkpoint still shows the newest version.
    assert need(needed, table.storage) == replace(found, missing=("version 1 to 4",))


def test_what_cannot_be_looked_up_is_named(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 2)
    reading = need(table.data(1, is_snapshot=True), table.storage)
    assert reading.missing is None
    assert "the query still reads the whole table as of version 1" in str(reading.unchecked)
    assert need(table.data(0, is_snapshot=True), table.storage).missing is None
    table.added(1).rename(tmp_path / "moved")
    assert need(table.data(0, is_snapshot=True), table.storage).missing == (table.added(1).name,)
    assert need(table.data(1, is_snapshot=True), table.storage).missing is None
    (tmp_path / "moved").rename(table.added(1))
    with table.commit(1).open("a") as commit:
        commit.write('\n{"add":{"path":"s3://elsewhere/x.parquet","dataChange":true}}\n')
    assert "1 file is outside of the table" in str(need(table.data(1), table.storage).unchecked)
    staged = tmp_path / "table" / "_delta_log" / "_staged_commits"
    staged.mkdir()
    (staged / f"{2:020}.0.json").write_text("{}")
    assert "a catalog manages" in str(need(table.data(1), table.storage).unchecked)


@pytest.mark.parametrize(
    ("path", "note"),
    [
        ("file:/elsewhere/x.parquet", "1 file is outside of the table"),
        ("dbfs:/mnt/x.parquet", "1 file is outside of the table"),
        ("%2Fetc%2Fpasswd", "1 file is outside of the table"),
        ("../../x.parquet", "1 file has an invalid path: '../../x.parquet'"),
        ("x//y.parquet", "1 file has an invalid path"),
        ("x" * 5_000, f"1 file has an invalid path: '{'x' * 80}'"),
        ("x" * 300, "1 file has an invalid path"),
        ("\u00e9/" * 400 + "x", "1 file has an invalid path"),
        ("a%00b", "1 file has an invalid path"),
        ("", "1 file has an invalid path"),
    ],
)
def test_paths_that_are_not_looked_up_are_not_missing(tmp_path: Path, path: str, note: str) -> None:
    table = _Table(tmp_path / "table", 2)
    with table.commit(1).open("a") as commit:
        commit.write(f'\n{{"add":{{"path":"{path}","dataChange":true}}}}\n')
    found = need(table.data(1), table.storage)
    assert found.missing is None
    assert note in str(found.unchecked)


def test_deletion_vectors_are_not_looked_up_and_named(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 2)
    add = {"path": table.added(1).name, "dataChange": True, "deletionVector": {"storageType": "u"}}
    table.commit(1).write_text(json.dumps({"add": add}))
    found = need(table.data(1), table.storage)
    assert found.missing is None
    assert "1 deletion vector" in str(found.unchecked)


def test_files_of_a_change_data_feed_are_not_looked_up_and_named(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 2)
    with table.commit(1).open("a") as commit:
        commit.write('\n{"cdc":{"path":"_change_data/gone.parquet","dataChange":false}}\n')
    found = need(table.data(1), table.storage)
    assert (found.missing, found.unchecked) == (None, "not all was checked: 1 file of the change data feed")


def test_two_locations_with_one_table_id_are_rejected(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 2)
    shutil.copytree(table.folder, tmp_path / "copy")
    with pytest.raises(WrongOption, match="one of the two is a copy"):
        need(table.data(1), table.storage, open_storage(str(tmp_path / "copy")))


def test_a_location_that_is_given_twice_is_looked_up(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 2)
    assert need(table.data(1), table.storage, table.storage).missing == ()


def test_another_table_is_rejected(tmp_path: Path) -> None:
    table, other = _Table(tmp_path / "table", 2), _Table(tmp_path / "other", 2)
    assert need(table.data(1)).missing is None
    with pytest.raises(WrongOption, match=f"whose id is {table.id}"):
        need(table.data(1), other.storage)


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"ad',
        "{}",
        "7",
        '{"add":{"path":',
        '{"add":7}',
        '{"add":{"size":1}}',
        '{"metaData":{"id":7}}',
        '{"metaData":[[]]}',
        "\udcff",
    ],
)
def test_a_damaged_commit_raises_a_typed_error(tmp_path: Path, line: str) -> None:
    table = _Table(tmp_path / "table", 2)
    needed = table.data(0)
    table.commit(1).write_bytes(line.encode(errors="surrogateescape"))
    with pytest.raises(CorruptFile, match="cannot be parsed"):
        need(needed, table.storage)


def test_a_damaged_checkpoint_and_a_log_without_an_id_raise_typed_errors(tmp_path: Path) -> None:
    table = _Table(tmp_path / "table", 2)
    needed = table.data(0)
    table.table.create_checkpoint()
    (checkpoint,) = (tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet")
    whole = checkpoint.read_bytes()
    for damaged in (b"", whole[:40], whole[:-4] + b"PAR2", b"PAR1" + b"\xff" * 40 + b"PAR1"):
        checkpoint.write_bytes(damaged)
        with pytest.raises(CorruptFile, match="cannot be parsed"):
            need(needed, table.storage)
    checkpoint.unlink()
    table.commit(0).unlink()
    with pytest.raises(WrongOption, match="without the id of the table"):
        need(needed, table.storage)


# -- offsets -----------------------------------------------------------------------------------------------------------


def _read(tmp_path: Path, offset: str) -> Any:
    log = OffsetLog(watermark_ms=0, timestamp_ms=0, conf={}, sources=(offset,))
    return read(open_storage(str(tmp_path)), log, log, ())["0"]


def test_the_offsets_of_delta_and_kafka_are_read(tmp_path: Path) -> None:
    delta = '{"sourceVersion":1,"reservoirId":"an id","reservoirVersion":7,"index":3,"isStartingVersion":false}'
    assert _read(tmp_path, delta) == DeltaVersions(table_id="an id", version=7, index=3, is_snapshot=False)
    offsets = _read(tmp_path, '{"clicks":{"0":50,"1":7},"orders":{"0":1}}')
    assert offsets == KafkaOffsets({"clicks": {0: 50, 1: 7}, "orders": {0: 1}})
    assert str(offsets).startswith("topic clicks, partition 0: offset 50 and later, topic clicks, partition 1: ")
    assert str(KafkaOffsets({"t": dict.fromkeys(range(200), 1)})).endswith("offset 1 and later, 192 more partitions")


@pytest.mark.parametrize(
    "offset",
    [
        "12",
        "{",
        "{}",
        '{"a topic":{"0":1}}',
        '{"t":{"-1":1}}',
        '{"t":{"0":-2}}',
        '{"t":{"4294967296":1}}',
        '{"t":{"0":1e30}}',
        '{"reservoirVersion":7}',
        '{"reservoirVersion":-7,"reservoirId":"x","index":1}',
        "[" * 100_000,
    ],
)
def test_other_offsets_are_shown_and_not_looked_up(tmp_path: Path, offset: str) -> None:
    data = _read(tmp_path, offset)
    assert data == OtherData(f"the data after {offset[:200]}")
    assert need(data).unchecked == "Statekeeper cannot check this kind of source"


def _of(*offsets: str) -> OffsetLog:
    return OffsetLog(watermark_ms=0, timestamp_ms=0, conf={}, sources=offsets)


def test_partitions_and_topics_that_a_query_got_later_are_needed_from_their_beginning(tmp_path: Path) -> None:
    target, newest = _of('{"t":{"0":5}}'), _of('{"t":{"0":9,"1":7},"u":{"0":3}}')
    found = read(open_storage(str(tmp_path)), target, newest, ())
    assert found == {"0": KafkaOffsets({"t": {1: 0, 0: 5}, "u": {0: 0}})}


def test_a_file_source_that_a_query_got_later_is_needed_from_its_beginning(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.create("sources/0/0", b'v1\n{"path":"file:///a.json","timestamp":1,"batchId":0}')
    found = read(storage, _of("-"), _of('{"logOffset":0}'), ("sources/0/0",))
    assert found == {"0": Files(("file:///a.json",))}


def test_topics_that_match_the_pattern_of_a_query_later_are_needed_from_their_beginning(tmp_path: Path) -> None:
    found = read(open_storage(str(tmp_path)), _of("{}"), _of('{"t":{"0":3}}'), ())
    assert found == {"0": KafkaOffsets({"t": {0: 0}})}


def test_all_data_of_a_topic_without_partitions_is_needed_and_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _read(tmp_path, '{"t":{},"u":{"0":5}}')
    assert str(data) == "topic u, partition 0: offset 5 and later, topic t: all of its data"
    monkeypatch.setattr(kafka, "missing", lambda properties, data: [])
    (found,) = look_up({"0": data}, SourceLocations(kafka={}))
    assert (found.missing, found.unchecked) == (None, "not all was checked: the offsets name no partition of topic t")
    assert str(_read(tmp_path, '{"t":{}}')) == "topic t: all of its data"


def test_later_partitions_are_unknown_if_the_offset_logs_have_different_versions(tmp_path: Path) -> None:
    newest = replace(_of('clicks:{"t":{"0":9,"1":7}}'), source_metadata={})
    (found,) = read(open_storage(str(tmp_path)), _of('{"t":{"0":5}}'), newest, ()).values()
    assert isinstance(found, KafkaOffsets)
    assert "partitions that the query got later are unknown" in str(found.unread)


@pytest.mark.parametrize("damage", ["cut", "cut after the first line", "path of another type", "empty", "lost"])
def test_a_damaged_entry_of_a_file_source_is_named_and_nothing_counts_as_complete(tmp_path: Path, damage: str) -> None:
    storage = open_storage(str(tmp_path))
    exists = tmp_path / "a.json"
    exists.write_text("{}")
    paths = []
    for entry in range(4):
        paths.append(f"sources/0/{entry}")
        body = b'v1\n{"path":"%s","timestamp":1,"batchId":%d}' % (exists.as_uri().encode(), entry)
        storage.create(paths[-1], body)
    (whole,) = read(storage, _of('{"logOffset":1}'), _of('{"logOffset":3}'), paths).values()
    assert need(whole) == SourceNeed("0", "the file that later batches have read", ())
    if damage == "lost":
        del paths[2]
    else:
        contents = {
            "cut": storage.read(paths[2])[:-9],
            "cut after the first line": b"v1\n",
            "path of another type": b'v1\n{"path":null,"timestamp":1,"batchId":2}',
            "empty": b"",
        }
        storage.replace(paths[2], contents[damage])
    (damaged,) = read(storage, _of('{"logOffset":1}'), _of('{"logOffset":3}'), paths).values()
    found = need(damaged)
    assert found.missing is None
    assert "not all files are known" in str(found.unchecked)
    assert str(Files((), found.unchecked)) == "the files that later batches have read"


def test_a_merged_entry_of_a_file_source_that_lacks_an_earlier_one_is_named(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    exists = tmp_path / "a.json"
    exists.write_text("{}")
    lines = [b'{"path":"%s","timestamp":1,"batchId":%d}' % (exists.as_uri().encode(), entry) for entry in range(4)]
    path = "sources/0/3.compact"
    storage.create(path, b"\n".join([b"v1", *lines]))
    (whole,) = read(storage, _of('{"logOffset":1}'), _of('{"logOffset":3}'), [path]).values()
    assert need(whole).missing == ()
    storage.replace(path, b"\n".join([b"v1", *lines[:2], lines[3]]))
    (damaged,) = read(storage, _of('{"logOffset":1}'), _of('{"logOffset":3}'), [path]).values()
    found = need(damaged)
    assert found.missing is None
    assert "later entries in sources/0 are lost" in str(found.unchecked)


# -- Kafka without a broker --------------------------------------------------------------------------------------------


def test_topics_are_not_looked_up_without_properties() -> None:
    found = need(KafkaOffsets({"clicks": {0: 50}}))
    assert found.missing is None
    assert found.unchecked == "not checked. To check it, add --kafka-config FILE"


AMBIGUOUS = [
    "bootstrap.servers=a:1\n  password=x\n",
    "bootstrap.servers=a:1\n[other]\nsecurity.protocol=SSL\n",
    "bootstrap.servers=a:1\n[DEFAULT]\nbootstrap.servers=b:1\n",
]
"""The value would have two lines, and the section would be ignored."""


@pytest.mark.parametrize(
    "text", ["", "security.protocol=SSL\n", "[", "a line\n", "a=1\na=2\n", "[client]\n", b"\xff=", *AMBIGUOUS]
)
def test_invalid_properties_are_rejected(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadConfiguration) as caught:
        client_properties(file)
    assert caught.value.path == str(file)
    assert caught.value.hint


def test_properties_are_read_as_kafka_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# ours\nbootstrap.servers = one:9092,two:9092\nsasl.password=a=b%c\n")
    assert client_properties(file) == {"bootstrap.servers": "one:9092,two:9092", "sasl.password": "a=b%c"}


def test_a_property_that_the_client_rejects_is_named() -> None:
    with pytest.raises(BadConfiguration, match="JAAS configuration is not supported"):
        kafka.missing({"bootstrap.servers": "127.0.0.1:1", "sasl.jaas.config": "x"}, KafkaOffsets({"t": {0: 1}}))


def test_a_silent_broker_raises_a_typed_error_without_secrets() -> None:
    with pytest.raises(StorageError, match="Kafka does not answer") as caught:
        kafka.missing({"bootstrap.servers": "user:secret@127.0.0.1:1"}, KafkaOffsets({"t": {0: 1}}), seconds=1)
    assert "secret" not in str(caught.value)
