"""The sizes above which Statekeeper does not read a part of a checkpoint, and therefore does not write it.

The contents of a checkpoint are untrusted: a few forged bytes can declare gigabytes. So every reader has a limit, and the
writer of the same bytes enforces it before the commit. `SizeLimits` has the limits that a root can change; see
docs/reference/limits.md for all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from statekeeper.statestore.base.errors import TooLarge
from statekeeper.statestore.format.untrusted import require_parsable

_MIB = 1024 * 1024

WINDOW_BYTES = 8 * _MIB
"""Number of uncompressed record bytes in memory at a time. A smaller record needs no further memory."""

MOST_RECORD_BYTES = 64 * _MIB
"""Default of `SizeLimits.record_bytes`."""

MOST_READ_BYTES = 64 * _MIB
"""Default of `SizeLimits.object_bytes`. Larger objects are downloaded or read by range."""

LARGEST_RECORD_BYTES = 2**31 - 8
"""Spark reads keys and values into arrays of Java, which cannot be larger."""

UNKNOWN_ROOT = "URL"
"""In the place of the URL of a root in an action."""

RECORD_HEAD_BYTES = 8
"""The lengths of a key and a value, which count to a record."""


@dataclass(frozen=True, kw_only=True)
class SizeLimits:
    """The sizes of a root that its readers and writers accept. Give the job and its maintenance the same limits.

    record_bytes   largest record of a changelog: a key, its value and 8 bytes. Reading one takes about four times its size;
                   8 MiB to 2 GiB
    object_bytes   largest object that is read as a whole: a commit, an offset log, a record of a batch, the zip of a
                   snapshot; 64 MiB to 2 GiB

    Raises `ValueError` for a limit out of its range.
    """

    record_bytes: int = MOST_RECORD_BYTES
    object_bytes: int = MOST_READ_BYTES

    def __post_init__(self) -> None:
        for name, least in (("record_bytes", WINDOW_BYTES), ("object_bytes", MOST_READ_BYTES)):
            value = getattr(self, name)
            if not least <= value <= LARGEST_RECORD_BYTES:
                raise ValueError(f"{name} is {value:,}; it must be from {least:,} to {LARGEST_RECORD_BYTES:,}")


DEFAULT_LIMITS = SizeLimits()


def how_to_read(needed_bytes: int, limit: str = "record", *, root: str | None = None) -> str:
    """Return the action that makes a record, or an object, of this size readable.

    limit  "record" or "object"
    root   the URL of the root; None if it is unknown
    """
    mib = next((2**power for power in range(3, 12) if 2**power * _MIB >= needed_bytes), None)
    if mib is None or needed_bytes > LARGEST_RECORD_BYTES:
        return f"no limit can be raised above {LARGEST_RECORD_BYTES:,} bytes"
    # The largest limit is a few bytes below 2,048 MiB.
    size = f"{mib} * 1024**2" if mib * _MIB <= LARGEST_RECORD_BYTES else str(LARGEST_RECORD_BYTES)
    spec = f"StorageSpec({UNKNOWN_ROOT if root is None else json.dumps(root)}, limits=SizeLimits({limit}_bytes={size}))"
    return (
        f"raise the limit to {mib:,} MiB. On the command line: --{limit}-mib {mib}. In statekeeper.toml: limits = "
        f"{{ {limit}_mib = {mib} }}. In a job: root={spec}"
    )


def require_json(path: str, data: bytes) -> None:
    """Raise `TooLarge` for a JSON text that `parsed_json` would reject because of its number of values."""
    try:
        require_parsable(data)
    except ValueError as error:
        raise TooLarge(
            f"could not be read again: {error}; it was not written",
            path=path,
            hint="use fewer partitions, stores or files in one run of this command, or in one batch",
        ) from error


def require_object(path: str, size_bytes: int, limits: SizeLimits) -> None:
    """Raise `TooLarge` for an object that `Storage.read` would reject."""
    if size_bytes > limits.object_bytes:
        raise TooLarge(
            f"would have {size_bytes:,} bytes, above the limit of {limits.object_bytes:,} bytes, and could not be read "
            "again; it was not written",
            path=path,
            hint=how_to_read(size_bytes, "object"),
        )
