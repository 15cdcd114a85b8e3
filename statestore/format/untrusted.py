"""What reading JSON from a file that may be damaged or forged can raise, and the ids in it.

An id becomes part of a path: one that is no id could lead out of the store's folder, and is refused here.
"""

from __future__ import annotations

from statestore.format.names import is_checkpoint_id

BAD_VALUES: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,  # int() of 1e999
    RecursionError,  # a text of nothing but brackets
)
"""Raised by `json.loads`, and by picking fields from what it gives."""


def checkpoint_id(value: object) -> str:
    """The value itself. Raises `ValueError` when it is no checkpoint id."""
    if not isinstance(value, str) or not is_checkpoint_id(value):
        raise ValueError(f"{value!r} is no checkpoint id")
    return value


def version_number(value: object) -> int:
    """The value itself. Raises `ValueError` when it is no number of a version that has a file."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is no version")
    return value
