"""Checksums of records, against Spark's own bytes."""

from __future__ import annotations

import pytest

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.changelog import Changes, Kind, read_changelog
from statekeeper.statestore.format.java_io import utf
from statekeeper.statestore.format.row_checksum import verified
from tests.support.changelogs import packed

# Written by Spark 4.2.0, behind the header: key `kk`, then a merge, a deletion of `zz`, a deleted range of `a` to `b`.
PUT = bytes.fromhex("01 00000004 02006b6b 0000000b d230ed24 03000000 767676")
MERGE = b"\x11" + PUT[1:]
DELETE = bytes.fromhex("10 00000008 a23372e8 02007a7a ffffffff")
DELETE_RANGE = bytes.fromhex("20 00000003 020061 0000000b 058cf2e2 03000000 020062")
KEPT = bytes.fromhex("d230ed24 03000000 767676")


def piece(*records: bytes) -> Changes:
    [found] = read_changelog(packed(utf("v2") + b"".join(records) + b"\0"), "a.changelog")[1]
    return found


def test_checksums_stay_in_values_and_are_cut_from_deleted_keys_and_range_ends() -> None:
    found = verified(piece(PUT, MERGE, DELETE, DELETE_RANGE), "a.changelog")
    assert list(found.pairs()) == [
        (b"\2\0kk", KEPT),
        (b"\2\0kk", KEPT),
        (b"\2\0zz", None),
        (b"\2\0a", b"\2\0b"),
    ]
    assert found.kinds is not None
    assert found.kinds.tolist() == [Kind.PUT, Kind.MERGE, Kind.DELETE, Kind.DELETE_RANGE]


@pytest.mark.parametrize("many", [1, 3])
def test_uniform_records_are_verified_like_mixed_records(many: int) -> None:
    ranges = verified(piece(*[DELETE_RANGE] * many), "a.changelog")
    assert list(ranges.pairs()) == [(b"\2\0a", b"\2\0b")] * many
    puts = verified(piece(*[PUT] * many), "a.changelog")
    assert list(puts.pairs()) == [(b"\2\0kk", KEPT)] * many


@pytest.mark.parametrize("record", [PUT, MERGE, DELETE, DELETE_RANGE])
def test_a_flipped_bit_in_any_record_is_detected(record: bytes) -> None:
    lengths = {0, *range(1, 5)}  # the kind, and the length of the key: other records come of them
    value_length_at = 5 + int.from_bytes(record[1:5], "big")
    lengths |= set(range(value_length_at, value_length_at + 4))
    # How long the value behind the checksum is said to be: Spark asks for it, and it covers nothing.
    lengths |= set(range(value_length_at + 8, value_length_at + 12))
    places = [place for place in range(len(record)) if place not in lengths]
    assert places
    for place in places:
        for bit in range(8):
            flipped = bytearray(record)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptFile, match=r"a\.changelog: has a record that does not match its checksum"):
                verified(piece(bytes(flipped)), "a.changelog")


def test_a_record_too_short_for_a_checksum_is_rejected() -> None:
    for record in (b"\x01" + bytes(4) + b"\0\0\0\1v", b"\x10\0\0\0\3abc\xff\xff\xff\xff"):
        with pytest.raises(CorruptFile):
            verified(piece(record), "a.changelog")
