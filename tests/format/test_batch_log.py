"""Batch logs: both ways, and damaged in every place."""

from __future__ import annotations

import json

import pytest

from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.format.names import StorePath, VersionId
from tests.support.damage import flips, prefixes, value_or_error

ATTEMPT = "6ad1f0c2-11aa-4c3d-9abc-0123456789ab"
TAG = batch_log.tag_of(ATTEMPT)
PATH = names.batch_log(17, TAG)
RECORD = {"attempt": ATTEMPT, "batch": 16}
STORES = [StorePath(0, 0), StorePath(0, 1), StorePath(1, 0)]
PLACES = [
    (store, VersionId(17, batch_log.id_with(TAG, f"00000000-0000-4000-8000-00000000000{n}")))
    for n, store in enumerate(STORES)
]
CHANGELOGS = dict(zip(PLACES, [b"first changelog", b"", b"third"], strict=True))
DATA = batch_log.encode(17, TAG, RECORD, CHANGELOGS)


def members(data: bytes) -> dict[object, bytes]:
    log = batch_log.parse_head(data, PATH)
    return {
        place: batch_log.member_bytes(log, place, data[member.start : member.start + member.length], PATH)
        for place, member in log.members.items()
    }


def with_head(change: object, *, path: str = PATH) -> batch_log.BatchLog:
    """Parse a log whose index was changed, and whose checksum matches the change."""
    end = batch_log.head_bytes(DATA, PATH)
    body = json.loads(DATA[batch_log.FRONT_BYTES : end])
    change(body)  # type: ignore[operator]
    head = json.dumps(body).encode()
    front = batch_log._FRONT.pack(b"SKLOG001", len(head), batch_log.google_crc32c.value(head))
    return batch_log.parse_head(front + head + DATA[end:], path)


def test_a_log_gives_back_its_record_and_its_members() -> None:
    log = batch_log.parse_head(DATA, PATH)
    assert (log.version, log.tag, log.record, log.size_bytes) == (17, TAG, RECORD, len(DATA))
    assert members(DATA) == CHANGELOGS


def test_the_id_of_a_version_names_its_batch_log() -> None:
    assert {batch_log.path_of(version) for _, version in PLACES} == {PATH}
    assert names.parse_batch_log(PATH) == (17, TAG)
    assert batch_log.path_of(VersionId(17, ATTEMPT)) is None, "a random UUID is an own file"
    assert batch_log.path_of(VersionId(17)) is None
    assert names.parse_batch_log(names.commits(17)) is None


def test_a_log_without_members_holds_the_record() -> None:
    data = batch_log.encode(17, TAG, RECORD, {})
    assert batch_log.parse_head(data, PATH).record == RECORD


def test_equal_arguments_give_equal_bytes() -> None:
    assert batch_log.encode(17, TAG, RECORD, dict(reversed(CHANGELOGS.items()))) == DATA


def test_a_damaged_byte_is_never_read_as_a_changelog() -> None:
    for damaged in flips(DATA):
        found = value_or_error(members, damaged, names=PATH)
        assert isinstance(found, StatekeeperError), "each byte is covered by a checksum"


def test_a_truncated_log_is_an_error_that_names_the_file() -> None:
    for truncated in prefixes(DATA):
        found = value_or_error(members, truncated, names=PATH)
        assert isinstance(found, CorruptFile), len(truncated)


def test_the_members_of_two_stores_cannot_be_exchanged() -> None:
    def exchange(body: dict[str, list[list[object]]]) -> None:
        first, _, third = body["members"]
        first[0:2], third[0:2] = third[0:2], first[0:2]

    log = with_head(exchange)
    for place, member in log.members.items():
        if place[0] != STORES[1]:
            data = batch_log.encode(17, TAG, RECORD, CHANGELOGS)
            with pytest.raises(CorruptFile, match="fails its checksum"):
                batch_log.member_bytes(log, place, data[member.start : member.start + member.length], PATH)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, -1),
        (0, True),
        (0, 2**40),
        (1, 10**6),
        (2, "../../x"),
        (3, ATTEMPT),
        (3, "../x"),
        (4, -5),
        (4, 2**70),
        (4, "7"),
    ],
    ids=str,
)
def test_an_index_that_no_driver_writes_is_rejected(field: int, value: object) -> None:
    def change(body: dict[str, list[list[object]]]) -> None:
        body["members"][0][field] = value

    with pytest.raises(CorruptFile, match="invalid index"):
        with_head(change)


def test_a_member_twice_is_rejected() -> None:
    with pytest.raises(CorruptFile, match="occurs twice"):
        with_head(lambda body: body["members"].append(body["members"][0]))


def test_a_log_under_another_name_is_rejected() -> None:
    for other in (names.batch_log(18, TAG), names.batch_log(17, batch_log.tag_of(ATTEMPT.replace("6", "7")))):
        with pytest.raises(CorruptFile, match="copied or renamed"):
            batch_log.parse_head(DATA, other)


def test_a_later_format_asks_for_an_upgrade_and_a_foreign_file_is_corrupt() -> None:
    with pytest.raises(UnknownFormatVersion, match="002"):
        batch_log.parse_head(DATA.replace(b"SKLOG001", b"SKLOG002"), PATH)
    with pytest.raises(CorruptFile, match="not a batch log"):
        batch_log.parse_head(b"PK\3\4" + bytes(100), PATH)


def test_an_index_of_gigabytes_is_rejected_before_it_is_read() -> None:
    front = batch_log._FRONT.pack(b"SKLOG001", 2**31, 0)
    with pytest.raises(CorruptFile, match="limit"):
        batch_log.head_bytes(front, PATH)
