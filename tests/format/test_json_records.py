"""Records are decoded by their types, and bytes that are no such record are a typed error."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format import json_records, untrusted
from statekeeper.statestore.format.json_records import (
    About,
    CheckpointId,
    Count,
    Digest,
    PartitionCount,
    Record,
    StoreName,
    TableName,
    Text,
    UnixMs,
    UnixSeconds,
    Uuid,
)

ABOUT = About("hold of a batch", then="it is unknown")
PATH = "_statekeeper/holds/1.json"


@dataclass(frozen=True)
class Held:
    batch: Count
    holder: str = ""


class Figure(Record):
    seconds: float


def decoded(data: bytes, only_format: int | None = None) -> Held:
    return json_records.decoded(Held, data, PATH, ABOUT, only_format=only_format)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"\xef\xbb\xbf" + b'{"batch": 1}',
        '{"batch": 1}'.encode("utf-16"),
        b'{"batch": 1} {}',
        b'{"batch": "1"}',
        b'{"batch": 1.0}',
        b'{"batch": true}',
        b'{"batch": null}',
        b'{"batch": -1}',
        b'{"batch": 9223372036854775808}',
        b'{"batch": ' + b"9" * 5_000 + b"}",
        b'{"batch": NaN}',
        b'{"batch": 1, "other": NaN}',
        b'{"batch": 1, "other": Infinity}',
        b'{"batch": 1, "holder": 7}',
        b'{"batch": 1, "holder": "\\ud800"}',
        b'{"batch": 1, "holder": "\xed\xa0\x80"}',
        b'{"batch": 1, "other": "\\ud800"}',
        b'{"batch": 1, "other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"batch": 1, "other": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_bytes_that_are_no_such_record_are_a_typed_error(data: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"is not a valid hold of a batch: .*; it is unknown") as raised:
        decoded(data)
    assert (raised.value.path, len(str(raised.value)) < 400) == (PATH, True)


def test_a_text_of_more_values_than_the_limit_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MOST_JSON_VALUES", 10)
    with pytest.raises(CorruptFile, match="above the limit of 10"):
        decoded(b'{"batch": 1, "other": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}')


def test_an_error_names_the_field() -> None:
    with pytest.raises(CorruptFile, match=r"Expected `int`, got `str` - at `\$\.batch`"):
        decoded(b'{"batch": "x"}')


def test_an_unknown_field_is_ignored_and_the_last_of_two_equal_keys_counts() -> None:
    assert decoded(b'{"batch": 1, "new": {"a": [1]}, "batch": 2}') == Held(2)


def test_a_float_of_numpy_is_written_as_a_number() -> None:
    assert json_records.encoded(Figure(seconds=np.float64(1.5))) == b'{"seconds": 1.5}'
    assert json_records.encoded({"of": [Figure(seconds=np.float64(2))], "at": np.float64(3)}) == (
        b'{"of": [{"seconds": 2.0}], "at": 3.0}'
    )


def test_a_record_has_exactly_its_format() -> None:
    assert decoded(b'{"format": 1, "batch": 2}', only_format=1) == Held(2)
    for data in (b'{"batch": 2}', b'{"format": 2, "batch": 2}', b'{"format": "1", "batch": 2}'):
        with pytest.raises(CorruptFile, match="format"):
            decoded(data, only_format=1)


def test_a_record_of_a_later_format_asks_for_an_upgrade() -> None:
    json_records.require_format(b'{"format": 2}', PATH, ABOUT, (1, 2))
    with pytest.raises(UnknownFormatVersion, match="format 3, but this release only knows 1 and 2"):
        json_records.require_format(b'{"format": 3, "stores": 7}', PATH, ABOUT, (1, 2))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (PartitionCount, [1, 100_000], [0, 100_001, True]),
        (UnixMs, [0, 253_402_300_799_999], [-1, 253_402_300_800_000]),
        (UnixSeconds, [0, 1.5, 253_402_300_799], [-0.5, 253_402_300_800, 1e300, 10**400, True]),
        (Text, ["a"], [""]),
        (Digest, ["ab" * 16], ["AB" * 16, "ab" * 17, "ab" * 16 + "\n"]),
        (Uuid, ["0198c0de-0000-4000-8000-000000000001"], ["0198c0de0000-4000-8000-0000000000011", "-" * 36]),
        (CheckpointId, ["0198c0de-0000-4000-8000-000000000001"], ["../" * 12, "a" * 37, "a" * 36 + "\n"]),
        (StoreName, ["default", "left-keyToNumValues"], ["", "..", "a/b", "-a", "a\n"]),
        (TableName, ["000012-a.sst"], ["../1-a.sst", "1-a.sst\n", "1-.sst/", "a-1.sst"]),
    ],
    ids=lambda value: None,
)
def test_a_limit_holds(kind: type[object], good: list[object], bad: list[object]) -> None:
    for value in good:
        assert json_records.decoded(kind, json.dumps(value).encode(), PATH, ABOUT) == value
    for value in bad:
        with pytest.raises(CorruptFile):
            json_records.decoded(kind, json.dumps(value).encode(), PATH, ABOUT)
