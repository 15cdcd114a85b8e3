"""Every file name, built and parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.format import names, sparks
from statekeeper.statestore.format.names import StoreFile, StoreFileKind, StorePath, VersionId
from statekeeper.statestore.format.provider import Provider

ID = "6ad1c2f0-1111-4222-8333-444455556666"
versions = st.builds(VersionId, st.integers(0, 10**9), st.none() | st.uuids().map(str))


@given(st.builds(StoreFile, st.sampled_from(StoreFileKind), versions))
def test_a_built_name_is_parsed_back(file: StoreFile) -> None:
    assert names.parse_store_file(file.name) == file


def test_the_names_are_sparks() -> None:
    assert names.store_schema(2, "default") == "state/2/0/_metadata/schema"
    assert names.store_schema(2, "left-keyToNumValues") == "state/2/0/left-keyToNumValues/_metadata/schema"
    assert names.family_schemas(2, "default", "0_a") == "state/2/_stateSchema/default/0_a"
    store = StorePath(0, 3)
    assert store.changelog(VersionId(17, ID)) == f"state/0/3/17_{ID}.changelog"
    assert store.snapshot(VersionId(17, ID)) == f"state/0/3/17_{ID}.zip"
    assert store.changelog(VersionId(17)) == "state/0/3/17.changelog"
    assert store.snapshot(VersionId(17)) == "state/0/3/17.zip"
    assert store.table_file(f"000008-{ID}.sst") == f"state/0/3/SSTs/000008-{ID}.sst"
    assert store.table_file(f"000003-{ID}.log") == f"state/0/3/logs/000003-{ID}.log"
    assert StorePath(1, 0, "left-keyToNumValues").folder == "state/1/0/left-keyToNumValues"


@pytest.mark.parametrize(
    "name",
    [
        "foo.zip",
        ".24.zip",
        "024.zip",
        "24.zip.tmp",
        f".24_{ID}.zip.1.tmp",
        "-1.changelog",
        f"24_{ID.upper()}.zip",
        f"24_{ID}",
        "24_.zip",
        "24.changelog.crc",
        f"24_{ID}.changelog\n",
        "24_../../x.zip",
        "\u0661.zip",
        "",
    ],
)
def test_a_name_that_spark_does_not_write_is_not_parsed(name: str) -> None:
    assert names.parse_store_file(name) is None


@given(st.text(max_size=60))
def test_arbitrary_names_are_parsed_or_ignored(name: str) -> None:
    parsed = names.parse_store_file(name)
    assert parsed is None or parsed.name == name


@given(st.integers(0, 10**9), st.uuids().map(str))
def test_batches_and_pending_attempts_are_parsed(batch: int, attempt: str) -> None:
    assert names.parse_batch(names.commits(batch)) == batch
    assert names.parse_batch(names.offsets(batch)) == batch
    assert names.parse_batch(str(batch)) == batch
    assert names.parse_pending(names.pending(batch, attempt)) == (batch, attempt)


@pytest.mark.parametrize("name", ["01", "-1", "1.tmp", ".1.crc", "", "1\n"])
def test_foreign_names_in_log_folders_are_not_batches(name: str) -> None:
    assert names.parse_batch(name) is None
    assert names.parse_batch(f"{names.COMMITS}/{name}") is None
    assert names.parse_pending(f"{name}-{ID}.json") is None or name == ""


@pytest.mark.parametrize("text", ["", "../..", ID[:-1], ID + "0", ID.replace("-", "/"), ID + "\n"])
def test_invalid_ids_are_rejected(text: str) -> None:
    assert names.is_checkpoint_id(ID)
    assert not names.is_checkpoint_id(text)


@pytest.mark.parametrize(
    ("name", "stops_loads", "stops_cleanup", "counted_as"),
    [
        ("24.zip", False, False, 24),
        (f"24_{ID}.zip", True, False, 24),
        ("24_x.zip", True, False, 24),
        ("007.zip", True, False, 7),
        ("foo.zip", True, True, None),
        (".24.zip", True, True, None),
        ("24_x_y.zip", True, True, None),
        (f"{2**63 - 1}.zip", False, False, 2**63 - 1),
        (f"{2**63}.zip", True, True, None),
        ("24.changelog", False, False, None),
        ("24_x.changelog", False, False, None),
        ("24_x_y.changelog", False, True, None),
        ("foo.changelog", False, True, None),
        ("foo.crc", False, False, None),
        ("foo.zip.crc", False, False, None),
        ("foo.zip.tmp", False, False, None),
        ("SSTs/foo.zip", False, False, None),
        ("\u0661.zip", True, True, None),
    ],
)
def test_names_that_break_loads_or_cleanup_of_spark_4_2_are_recognized(
    name: str, stops_loads: bool, stops_cleanup: bool, counted_as: int | None
) -> None:
    assert sparks.stops_loads(name) == stops_loads
    assert sparks.stops_cleanup(name) == stops_cleanup
    assert sparks.counted_as(name) == counted_as


@pytest.mark.parametrize(
    ("name", "stops_loads", "stops_cleanup"),
    [
        ("24.snapshot", False, False),
        ("24.delta", False, False),
        ("foo.snapshot", True, True),
        ("foo.delta", False, True),
        (".DS_Store", False, True),
        (".24.delta.crc", False, False),
        ("24.snapshot.crc", False, False),
        (".24.delta.0a1b.tmp", False, False),
        ("foo", False, False),
        ("_metadata/a.b", False, False),
        (f"{2**63}.snapshot", True, True),
    ],
)
def test_names_that_break_sparks_default_provider_are_recognized(
    name: str, stops_loads: bool, stops_cleanup: bool
) -> None:
    assert sparks.stops_loads(name, Provider.HDFS_BACKED) == stops_loads
    assert sparks.stops_cleanup(name, Provider.HDFS_BACKED) == stops_cleanup
    assert sparks.counted_as(name, Provider.HDFS_BACKED) is None


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("SSTs/8-a.sst", "8-a.sst"),
        ("logs/3-a.log", "3-a.log"),
        ("SSTs/3-a.log", None),
        ("logs/8-a.sst", None),
        ("logs/notes", None),
        ("3-a.log", None),
        ("8-a.sst", None),
    ],
)
def test_tables_and_archived_logs_are_recognized_in_their_folders(name: str, shared: str | None) -> None:
    assert names.parse_shared_file(name) == shared
    assert shared is None or StorePath(0, 0).table_file(shared) == f"state/0/0/{name}"


@pytest.mark.parametrize(
    ("path", "hidden"),
    [("offsets/7", "offsets/.7.crc"), ("metadata", ".metadata.crc"), ("a/b/c.zip", "a/b/.c.zip.crc")],
)
def test_hadoops_checksum_lies_beside_its_file(path: str, hidden: str) -> None:
    assert names.hidden_checksum(path) == hidden
