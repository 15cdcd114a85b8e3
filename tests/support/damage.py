"""Damage: bit patterns of each important byte of a small file, each prefix, and lost or edited logs of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind

T = TypeVar("T")
Damage = Callable[[Path], None]


def flips(data: bytes) -> Iterator[bytes]:
    """The bytes with one of them changed: all its bits, its lowest, its highest."""
    for position in range(len(data)):
        for mask in (0xFF, 0x01, 0x80):
            yield data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]


def prefixes(data: bytes) -> Iterator[bytes]:
    """All that is left when the end is cut off, the empty file first."""
    for length in range(len(data)):
        yield data[:length]


def value_or_error(act: Callable[[bytes], T], data: bytes, *, names: str) -> T | StatekeeperError:
    """Return the result of `act` on the bytes, or the library's error, which must name the file. Other exceptions
    are raised."""
    try:
        return act(data)
    except StatekeeperError as error:
        if names not in str(error):
            raise AssertionError(f"an error that does not name {names}") from error
        return error


def deleted(path: str) -> Damage:
    """Delete a file of a checkpoint on local disk, and its hidden checksum."""

    def delete(checkpoint: Path) -> None:
        file = checkpoint / path
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    return delete


def cut(path: str, left: int) -> Damage:
    """Keep only the first bytes of a file."""

    def cut(checkpoint: Path) -> None:
        file = checkpoint / path
        file.write_bytes(file.read_bytes()[:left])
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    return cut


def _with_setting(conf: str, value: str) -> Damage:
    """Edit a setting in the offsets of batch 2."""

    def edit(checkpoint: Path) -> None:
        file = checkpoint / "offsets/2"
        lines = file.read_text().split("\n")
        header = json.loads(lines[1])
        header["conf"][conf] = value
        lines[1] = json.dumps(header)
        file.write_text("\n".join(lines))
        file.with_name(".2.crc").unlink(missing_ok=True)

    return edit


_DEFAULT_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
REPAIRED, REWOUND = "repair", "rewind"
LOST_LOGS: Mapping[str, tuple[Damage, FindingKind, str]] = {
    "offsets before the newest": (deleted("offsets/1"), FindingKind.OFFSETS_MISSING, REPAIRED),
    "offsets before the newest empty": (cut("offsets/1", 0), FindingKind.OFFSETS_UNREADABLE, REPAIRED),
    "newest offsets torn": (cut("offsets/2", 40), FindingKind.OFFSETS_UNREADABLE, REWOUND),
    "newest commit torn": (cut("commits/2", 4), FindingKind.COMMIT_UNREADABLE, REWOUND),
    "entry of a source": (deleted("sources/0/2"), FindingKind.SOURCE_LOG_DAMAGED, REWOUND),
    "entry of a source empty": (cut("sources/0/2", 0), FindingKind.SOURCE_LOG_DAMAGED, REWOUND),
    "more partitions": (_with_setting("spark.sql.shuffle.partitions", "7"), FindingKind.OFFSETS_AT_ODDS, REWOUND),
    "fewer partitions": (_with_setting("spark.sql.shuffle.partitions", "1"), FindingKind.OFFSETS_AT_ODDS, REWOUND),
    "provider": (
        _with_setting("spark.sql.streaming.stateStore.providerClass", _DEFAULT_PROVIDER),
        FindingKind.OFFSETS_AT_ODDS,
        REWOUND,
    ),
    "codec": (
        _with_setting("spark.sql.streaming.stateStore.compression.codec", "zstd"),
        FindingKind.OFFSETS_AT_ODDS,
        REWOUND,
    ),
}
"""Damage to the logs of a checkpoint with batches 0 to 2, with which Spark does not start: the finding, and the verb that
leads to a start."""
