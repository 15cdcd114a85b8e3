"""A root to rewind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statekeeper.statestore.storage import Storage


@pytest.fixture
def root(new_root: Callable[[str], Storage]) -> Storage:
    return new_root("root")
