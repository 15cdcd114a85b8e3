"""JSON of a checkpoint is validated and limited in size."""

from __future__ import annotations

import pytest

from statekeeper.statestore.format.untrusted import parsed_json


@pytest.mark.parametrize("half", ["\\ud800", "\\uDFFF", "a\\ud83d\\u0020b"])
def test_half_of_a_surrogate_pair_is_rejected(half: str) -> None:
    text = f'{{"operatorName": ["{half}"]}}'
    for given in (text, text.encode()):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            parsed_json(given)


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert parsed_json(b'{"name": "\\ud83d\\ude00", "path": "C:\\\\users\\\\data"}') == {
        "name": "😀",
        "path": "C:\\users\\data",
    }
