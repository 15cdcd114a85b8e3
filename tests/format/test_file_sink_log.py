"""The name of the next entry in the log of Spark's file sink, and the entries that it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, RefusedAsUnsafe, UnknownFormatVersion
from statekeeper.statestore.format.file_sink import (
    LOG,
    LogEntry,
    NextEntry,
    kept_entries,
    next_entry,
    parse_entry,
    require_entry,
)

URL = "s3://bucket/output"


def log(batches: int, interval: int = 10) -> Iterator[LogEntry]:
    """Yield the entries of this number of batches."""
    for batch in range(batches):
        yield LogEntry(batch, (batch + 1) % interval == 0)


def following(batches: int, interval: int = 10) -> NextEntry:
    return next_entry(log(batches, interval), batches, URL)


def test_a_path_is_an_entry_only_in_the_form_that_spark_writes() -> None:
    assert parse_entry(f"{LOG}/7") == LogEntry(7)
    assert parse_entry(f"{LOG}/9.compact") == LogEntry(9, is_compacted=True)
    for other in (
        "7",
        f"{LOG}/07",
        f"{LOG}/x",
        f"{LOG}/9.compact.tmp",
        f"{LOG}/.7.crc",
        f"a/{LOG}/7",
        f"{LOG}/.compact",
    ):
        assert parse_entry(other) is None, other


def test_the_entry_of_a_batch_between_compactions_is_plain_and_needs_all_since_the_newest_compaction() -> None:
    found = following(12)
    assert found.entry == LogEntry(12)
    assert found.needed == (LogEntry(9, is_compacted=True), LogEntry(10), LogEntry(11))
    assert found.sources == ()
    assert not found.sets_interval


def test_the_entry_of_a_compaction_repeats_all_since_the_one_before() -> None:
    found = following(19)
    assert found.entry.path == f"{LOG}/19.compact"
    assert found.sources == (LogEntry(9, is_compacted=True), *(LogEntry(batch) for batch in range(10, 19)))
    assert following(9).sources == tuple(LogEntry(batch) for batch in range(9))


def test_before_the_first_compaction_the_entry_is_compacted_and_sets_the_interval() -> None:
    for batch in (1, 2, 8, 9, 30):
        found = following(batch, interval=100)
        assert found.entry == LogEntry(batch, is_compacted=True)
        assert found.sources == tuple(log(batch, interval=100))
        assert found.interval == batch + 1
        assert found.sets_interval


@given(st.integers(1, 80), st.integers(1, 40))
def test_the_name_is_the_one_that_spark_expects_whatever_the_conf(batches: int, interval: int) -> None:
    """Spark derives the interval from compacted entries. Without one, a compacted entry defines it."""
    compacted = batches // interval
    if compacted == 1 and interval > 20:
        return  # see the test of an interval that cannot be known
    found = following(batches, interval)
    is_expected = found.entry.is_compacted == ((batches + 1) % interval == 0)
    assert is_expected or found.sets_interval
    assert found.sets_interval == (compacted == 0)


def test_an_interval_that_cannot_be_known_is_rejected() -> None:
    # The first compaction of 24 batches, or the only one that was not deleted of 12 batches each.
    with pytest.raises(RefusedAsUnsafe, match="do not show the compaction interval"):
        next_entry([LogEntry(23, is_compacted=True), *(LogEntry(n) for n in range(24, 35))], 35, URL)
    with pytest.raises(RefusedAsUnsafe, match="do not show the compaction interval"):
        next_entry([*log(10), LogEntry(12, is_compacted=True)], 13, URL)


@pytest.mark.parametrize("missing", [9, 10, 11])
def test_a_gap_is_an_error_that_names_the_entry(missing: int) -> None:
    entries = [entry for entry in log(12) if entry.batch != missing]
    with pytest.raises(ObjectMissing) as raised:
        next_entry(entries, 12, URL)
    assert str(raised.value).startswith(f"{URL}/{LOG}/")


def test_a_deleted_entry_before_the_newest_compaction_is_no_gap() -> None:
    entries = [entry for entry in log(22) if entry.batch >= 9 and entry.batch not in (10, 12)]
    assert next_entry(entries, 22, URL).entry == LogEntry(22)


def test_an_empty_log_is_an_error() -> None:
    with pytest.raises(ObjectMissing, match="--file-sink"):
        next_entry([], 3, URL)


def test_an_entry_of_another_version_or_without_its_end_is_rejected() -> None:
    require_entry(b"v1", b"1", "an entry")
    require_entry(b"v1\n", b"}", "an entry")
    for head in (b"v2\n", b"", b"v10"):
        with pytest.raises(UnknownFormatVersion):
            require_entry(head, b"}", "an entry")
    with pytest.raises(CorruptFile):
        require_entry(b"v1\n", b"x", "an entry")


@given(batches=st.integers(1, 60), interval=st.integers(2, 12), data=st.data())
def test_a_reader_needs_the_newest_compaction_up_to_a_batch_and_the_entries_after_it(
    batches: int, interval: int, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(0, batches - 1))
    needed = kept_entries(log(batches, interval), batch, URL)
    first = max((entry for entry in log(batch + 1, interval) if entry.is_compacted), default=LogEntry(0))
    assert needed == tuple(entry for entry in log(batch + 1, interval) if entry >= first)
    lost = data.draw(st.sampled_from(needed))
    if not lost.is_compacted:
        with pytest.raises(ObjectMissing, match=f"{LOG}/{lost.batch}: is missing"):
            kept_entries(set(log(batches, interval)) - {lost}, batch, URL)
