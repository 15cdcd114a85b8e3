"""How Spark interprets the file names in a store's folder. A name that it does not expect can stop loads or cleanup."""

from __future__ import annotations

from statekeeper.statestore.format.names import LARGEST_VERSION, parse_store_file
from statekeeper.statestore.format.provider import Provider

_ZIP = ".zip"
_PARSED = (_ZIP, ".changelog")
_SNAPSHOT = ".snapshot"


def stops_loads(name: str, provider: Provider = Provider.ROCKSDB) -> bool:
    """Return whether a file with this name in a V1 store's folder makes Spark unable to load the store.

    Spark parses each name that ends in `.zip`, hidden or not, as the number of a version. With the default provider, it
    does so since 4.2 for each name that ends in `.snapshot`.
    """
    if "/" in name or not name.endswith(_SNAPSHOT if provider is Provider.HDFS_BACKED else _ZIP):
        return False
    parsed = parse_store_file(name, provider)
    return parsed is None or parsed.version.id is not None


def counted_as(name: str, provider: Provider = Provider.ROCKSDB) -> int | None:
    """Return the version that Spark's cleanup assigns to a file with this name; None if it does not count it as a
    snapshot."""
    if provider is Provider.HDFS_BACKED:
        return None  # only files with its own names
    number = name.removesuffix(_ZIP).partition("_")[0]
    is_taken = name.endswith(_ZIP) and "/" not in name and not stops_cleanup(name)
    return int(number) if is_taken else None


def stops_cleanup(name: str, provider: Provider = Provider.ROCKSDB) -> bool:
    """Return whether a file with this name in a store's folder makes Spark's cleanup of the store fail, silently and
    each time.

    Spark expects a number, optionally followed by one word. With the default provider, it expects a number before the dot
    of each name with exactly one dot.
    """
    if "/" in name:
        return False
    if provider is Provider.HDFS_BACKED:
        return name.count(".") == 1 and not _is_version(name.partition(".")[0])
    base, dot, kind = name.rpartition(".")
    number, *words = base.split("_")
    return f"{dot}{kind}" in _PARSED and (len(words) > 1 or not _is_version(number))


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) <= LARGEST_VERSION
