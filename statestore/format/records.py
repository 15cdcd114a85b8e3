"""The records of a changelog or snapshot file, by the provider that wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from statekeeper.statestore.format import hdfs_backed
from statekeeper.statestore.format.changelog import Changes, read_changelog
from statekeeper.statestore.format.changelog_header import Header, read_header
from statekeeper.statestore.format.compression import Readable
from statekeeper.statestore.format.limits import MOST_RECORD_BYTES
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.replay import Window
from statekeeper.statestore.format.row_checksum import verified
from statekeeper.statestore.format.state_conf import StateConf

_NO_HEADER = Header(lineage=None)


def header_of(data: Readable, path: str, conf: StateConf) -> Header:
    """Read the header of a changelog. Those of Spark's default provider have none. Raises as `read_header`."""
    return _NO_HEADER if conf.provider is Provider.HDFS_BACKED else read_header(data, path)


def changes_of(
    data: Readable, path: str, conf: StateConf, *, most_record_bytes: int = MOST_RECORD_BYTES
) -> tuple[Header, Iterator[Changes]]:
    """Read a changelog: its header, and its records in pieces, as a database stores them. Verifies row checksums. Raises as
    `read_changelog`, also while the pieces are read."""
    if conf.provider is Provider.HDFS_BACKED:
        pieces = hdfs_backed.read_delta(
            data, path, row_checksums=conf.row_checksums, most_record_bytes=most_record_bytes
        )
        return _NO_HEADER, pieces
    header, pieces = read_changelog(data, path, most_record_bytes=most_record_bytes)
    return header, (verified(piece, path) for piece in pieces) if conf.row_checksums else pieces


def windows(pieces: Iterable[Changes], memory_bytes: int) -> Iterator[Changes]:
    """Merge puts and deletions into windows of bounded size, oldest first.

    A window has the last record of each key, in key order. No window is empty.
    """
    window = Window(memory_bytes)
    for changes in pieces:
        window.add(changes)
        if window.is_full:
            yield window.survivors()
    if window:
        yield window.survivors()
