"""Positions of file sources: the entries of their logs that a batch has read."""

from __future__ import annotations

import pytest

from statekeeper.statestore.format import file_source
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.logs import OffsetLog

KAFKA = '{"topic":{"0":7}}'


def log(*sources: int | str | None) -> OffsetLog:
    lines = tuple(one if isinstance(one, str) else "-" if one is None else f'{{"logOffset":{one}}}' for one in sources)
    return OffsetLog(watermark_ms=0, timestamp_ms=0, conf={}, sources=lines)


def paths(**newest: int) -> list[str]:
    return [f"sources/{folder}/{entry}" for folder, last in newest.items() for entry in range(last + 1)]


@pytest.mark.parametrize(
    ("then", "now", "folders", "found", "uncertain"),
    [
        ((1, 2), (1, 3), {"a": 3, "b": 1}, {"a": 2, "b": 1}, ()),
        ((2, 2), (4, 4), {"a": 4, "b": 4}, {"a": 2, "b": 2}, ()),
        ((2, None), (3, 0), {"a": 0, "b": 3}, {"a": -1, "b": 2}, ()),
        ((2, 3), (4, 4), {"a": 4, "b": 4}, {"a": 3, "b": 3}, ("a", "b")),
        # A batch that is not in the offsets yet has written entries.
        ((2, 3), (2, 3), {"a": 3, "b": 3}, {"a": 3, "b": 3}, ("a", "b")),
        ((KAFKA, 2), (KAFKA, 4), {"clicks": 4, "kafka": 0}, {"clicks": 2, "kafka": 0}, ()),
        # Entries are missing: no source can be this one.
        ((2, 3), (4, 6), {"a": 5, "b": 4}, {"a": 5, "b": 4}, ("a", "b")),
    ],
)
def test_sources_are_matched_with_the_folders_that_have_their_entries(
    then: tuple[int | str | None, ...],
    now: tuple[int | str | None, ...],
    folders: dict[str, int],
    found: dict[str, int],
    uncertain: tuple[str, ...],
) -> None:
    assert file_source.positions(log(*then), log(*now), paths(**folders)) == Positions(found, frozenset(uncertain))
