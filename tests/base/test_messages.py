"""Commands in messages."""

from __future__ import annotations

import pytest

from statekeeper.statestore.base.messages import with_name, with_root, without_root

URL = "file:///a root/x"
TEXT = "restore it, or roll back to batch 1: statekeeper rewind ROOT --to-batch 1. Or run: statekeeper audit ROOT"


def test_a_command_with_the_url_gets_the_name_that_its_reader_uses() -> None:
    named = with_name(without_root(with_root(TEXT, URL), URL), "orders", before=("--config", "f.toml"))
    assert named == (
        "restore it, or roll back to batch 1: statekeeper --config f.toml rewind orders --to-batch 1. "
        "Or run: statekeeper --config f.toml audit orders"
    )


@pytest.mark.parametrize(
    "text",
    [
        "'file:///a root/x' is damaged",
        "statekeeper audit 'file:///a root/x'/state",
        "statekeeper audit 'file:///a root/x'.bak",
        "statekeeper audit 'file:///a root/xy'",
    ],
)
def test_other_texts_with_the_url_stay(text: str) -> None:
    assert without_root(text, URL) == text
