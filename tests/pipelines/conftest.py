"""One small stream, in the structures in turn."""

from __future__ import annotations

import pytest

from statestore.format.structure import Structure
from tests.support.adding_operator import ROWS
from tests.support.streams import Stream


@pytest.fixture(params=[Structure.V2, pytest.param(Structure.V1, marks=pytest.mark.slow)], ids=lambda s: s.value)
def stream(delta_session, tmp_path, request):
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.structure = request.param
    return stream
