"""The header of a changelog: its format version, and the lineage in structure V2. `changelog` reads the records.

Listings of a checkpoint read headers only, without NumPy and Arrow, so that a command starts quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format import compression
from statekeeper.statestore.format.compression import Readable
from statekeeper.statestore.format.java_io import UTF_LIMIT_BYTES, Reader, from_modified_utf8
from statekeeper.statestore.format.names import LARGEST_NUMBER, VersionId
from statekeeper.statestore.format.untrusted import BAD_VALUES, checkpoint_id, parsed_json, version_number

_LONGEST_VERSION_BYTES = 16
HINT = "restore the file from a backup, or load an older version"
UPGRADE = "nothing was changed; upgrade Statekeeper"


@dataclass(frozen=True)
class Header:
    """The header of a changelog. `lineage`: None in v1 and v2; in v3 and v4 the versions from the newest snapshot that
    the writer knew, inclusive, to the one before this changelog, ascending. `is_typed`: v2 and v4."""

    lineage: tuple[VersionId, ...] | None
    is_typed: bool = False


def read_header(data: Readable, path: str) -> Header:
    """Read the header of a compressed changelog. Decompresses only the blocks that contain it.

    Raises `CorruptFile`, or `UnknownFormatVersion` for formats of later Spark releases.
    """
    return header_of(compression.blocks(data, path), path)[0]


def header_of(blocks: Iterator[bytes], path: str) -> tuple[Header, bytes, int]:
    """Read the header from the first blocks. Return it, the bytes of these blocks, and the position after the header."""
    head = b""
    for block in blocks:
        head += block
        if len(head) < _LONGEST_VERSION_BYTES:
            continue
        reader = Reader(head, path)
        try:
            return _parse_header(reader), head, reader.position
        except CorruptFile:
            if len(head) > 2 * (UTF_LIMIT_BYTES + 2):
                raise
    if not head:
        # A codec without an end mark accepts a file that is cut after the codec's header.
        raise CorruptFile("is truncated: it has no records and no end mark", path=path, hint=HINT)
    reader = Reader(head, path)
    return _parse_header(reader), head, reader.position


def _parse_header(reader: Reader) -> Header:
    version = _sniff_version(reader)
    if version == 1:
        return Header(lineage=None)
    if version not in (2, 3, 4):
        raise UnknownFormatVersion(
            f"has changelog format v{version}, not one of the supported v1 to v4", path=reader.path, hint=UPGRADE
        )
    reader.utf("the format version")
    if version == 2:
        return Header(lineage=None, is_typed=True)
    text = reader.utf("the lineage")
    try:
        items = parsed_json(text)
        if not isinstance(items, list):
            raise ValueError("no array")
        lineage = tuple(_version(item["version"], item["checkpointUniqueId"]) for item in items)
    except BAD_VALUES as error:
        raise CorruptFile("has a lineage that is not valid JSON", path=reader.path, hint=HINT) from error
    return Header(lineage, is_typed=version == 4)


@lru_cache(maxsize=1024, typed=True)
def _version(number: object, unique_id: object) -> VersionId:
    # The lineages of a chain of changelogs have the same entries.
    return VersionId(version_number(number), checkpoint_id(unique_id))


def _sniff_version(reader: Reader) -> int:
    """Apply Spark's rule (SPARK-51922, SPARK-52553): a leading UTF text `v<number>` is the version; else it is 1."""
    start = reader.data[reader.position : reader.position + 2]
    length = int.from_bytes(start, "big")
    body = reader.data[reader.position + 2 : reader.position + 2 + length]
    if len(body) < length or not body.startswith(b"v"):
        return 1
    try:
        return int(from_modified_utf8(body[1:]))
    except ValueError:
        return 1


def lineage_json(lineage: Iterable[VersionId]) -> str:
    """Return the lineage as Spark writes it into the header of a changelog."""
    # Each commit of each store writes it, and `json.dumps` is slower. An id has no characters that JSON escapes.
    return f"[{','.join(map(_item, lineage))}]"


def _item(version: VersionId) -> str:
    quoted = "null" if version.id is None else f'"{version.id}"'
    return f'{{"version":{version.version},"checkpointUniqueId":{quoted}}}'


def lineage_bytes(lineage: Iterable[VersionId]) -> int:
    """Return the size of a lineage in the header. The limit is `UTF_LIMIT_BYTES`."""
    return len(lineage_json(lineage))


MOST_LINEAGE_ITEM_BYTES = lineage_bytes([VersionId(LARGEST_NUMBER, "0" * 36)])
"""At most this size has an item of a lineage in the header."""
