"""The query's logs: encoded and decoded, Spark's own logs, and damaged logs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.format.logs import (
    CommitLog,
    OffsetLog,
    encode_commit,
    encode_metadata,
    encode_offsets,
    parse_commit,
    parse_metadata,
    parse_offsets,
)
from tests.support.damage import flips, prefixes, value_or_error

ID = "6ad1c2f0-1111-4222-8333-444455556666"
COMMIT = CommitLog(0, {0: ((ID,), (ID,))})
OFFSETS = OffsetLog(
    watermark_ms=0,
    timestamp_ms=1_767_225_600_000,
    conf={"spark.sql.shuffle.partitions": "2"},
    sources=('{"logOffset":0}',),
)

ids = st.uuids().map(str)
by_store = st.dictionaries(
    st.integers(0, 9), st.lists(st.lists(ids, min_size=1, max_size=4).map(tuple), max_size=4).map(tuple)
)
commits = st.builds(CommitLog, st.integers(0, 2**62), st.none() | by_store) | st.builds(
    CommitLog, st.integers(0, 2**62), st.none(), by_store
)
lines = st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), max_size=30)
offsets = st.builds(
    OffsetLog,
    watermark_ms=st.integers(0, 2**62),
    timestamp_ms=st.integers(0, 2**62),
    conf=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4),
    sources=st.lists(lines, max_size=4).map(tuple),
)


@given(commits)
def test_a_commit_is_read_as_it_was_written(log: CommitLog) -> None:
    assert parse_commit(encode_commit(log), "commits/3") == log


@given(offsets)
def test_offsets_are_read_as_they_were_written(log: OffsetLog) -> None:
    assert parse_offsets(encode_offsets(log), "offsets/3") == log


def test_the_metadata_names_the_query() -> None:
    assert parse_metadata(encode_metadata(ID), "metadata") == ID
    assert parse_metadata(b'{"id":"%s"}' % ID.encode(), "metadata") == ID


def test_sparks_own_texts_are_read() -> None:
    v1 = b'v1\n{"nextBatchWatermarkMs":1500}'
    v2 = b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["%s"],["%s"]]}}' % (ID.encode(), ID.encode())
    assert parse_commit(v1, "commits/0") == CommitLog(1500, None)
    assert parse_commit(v2, "commits/0") == COMMIT
    assert encode_commit(COMMIT) == v2


def test_commits_with_named_sinks_are_read_and_rewritten_unchanged() -> None:
    sinks = b'"sinkMetadataMap":{"a":{"sinkName":"a","commitOffset":"-","isActive":true}}}'
    of_v1 = b'v3\n{"nextBatchWatermarkMs":7,' + sinks
    of_v2 = b'v3\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["%s"]]},' % ID.encode() + sinks
    for data, ids in ((of_v1, None), (of_v2, {0: ((ID,),)})):
        log = parse_commit(data, "commits/0")
        assert log.ids == ids
        assert encode_commit(log) == data
    # In the other structure they are named as before.
    assert encode_commit(replace(parse_commit(of_v2, "commits/0"), ids=None)) == of_v1
    with pytest.raises(CorruptFile, match="commits/0: has no valid stateUniqueIds or sinkMetadataMap"):
        parse_commit(b'v3\n{"nextBatchWatermarkMs":7}', "commits/0")


@pytest.mark.parametrize("header", ["v4", "v10"])
def test_a_later_version_is_rejected_with_its_name(header: str) -> None:
    with pytest.raises(UnknownFormatVersion, match=f"commits/3: has log version {header}"):
        parse_commit(f"{header}\n{{}}".encode(), "commits/3")
    with pytest.raises(UnknownFormatVersion, match=f"offsets/3: has log version {header}"):
        parse_offsets(f"{header}\n{{}}".encode(), "offsets/3")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"nextBatchWatermarkMs":1e999,"stateUniqueIds":{}}',
        '{"stateUniqueIds":[]}',
        '{"stateUniqueIds":{"x":[]}}',
        '{"stateUniqueIds":{"0":[[1]]}}',
        '{"stateUniqueIds":{"0":[["../../../outside"]]}}',
    ],
)
def test_an_invalid_commit_or_id_is_rejected(body: str) -> None:
    with pytest.raises(CorruptFile, match="commits/3"):
        parse_commit(f"v2\n{body}".encode(), "commits/3")


@pytest.mark.parametrize("body", ['{"statekeeperDigests":[]}', '{"statekeeperDigests":{"0":[["../outside"]]}}'])
def test_invalid_digests_are_rejected(body: str) -> None:
    with pytest.raises(CorruptFile, match="commits/3: has no valid statekeeperDigests"):
        parse_commit(f"v1\n{body}".encode(), "commits/3")


@pytest.mark.parametrize(
    "data", [b"", b"v1", b"v1\n", b"v1\n[]", b"v1\n{}", b"x", b"\xff\xfe", b"v1\n" + b"[" * 100_000]
)
def test_invalid_offsets_are_rejected(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="offsets/3"):
        parse_offsets(data, "offsets/3")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_invalid_metadata_is_rejected(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="metadata"):
        parse_metadata(data, "metadata")


def test_each_truncation_of_a_commit_is_detected() -> None:
    for damaged in prefixes(encode_commit(COMMIT)):
        with pytest.raises(StatekeeperError, match="commits/3"):
            parse_commit(damaged, "commits/3")


def test_each_flipped_byte_gives_a_typed_error_or_a_log() -> None:
    """Logs have no checksum: a flipped digit gives another id, whose files do not exist."""
    for damaged in flips(encode_commit(COMMIT)):
        value_or_error(lambda data: parse_commit(data, "commits/3"), damaged, names="commits/3")
    for damaged in (*flips(encode_offsets(OFFSETS)), *prefixes(encode_offsets(OFFSETS))):
        value_or_error(lambda data: parse_offsets(data, "offsets/3"), damaged, names="offsets/3")
