"""Describes the data that the sources of a query must still have after a rewind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from statestore.format import file_source
from statestore.format.logs import OffsetLog
from statestore.format.untrusted import BAD_VALUES, parsed_json
from statestore.maintenance.rewind.facts import SourceNeed
from statestore.storage import Storage, read_or_none


def needs(storage: Storage, offsets: OffsetLog, newest: OffsetLog, files: Collection[str]) -> tuple[SourceNeed, ...]:
    """Describe the needs of each source from its offset at the target. `newest`: the offsets of the newest batch that has
    begun; `files`: the paths of the checkpoint.

    Of a file source on this machine, the files that later batches have read are looked up. One request for each later entry
    of a file source. Raises `StorageError`.
    """
    found = []
    for source, offset in offsets.by_source.items():
        entry = file_source.position(offset)
        if entry is None:
            found.append(SourceNeed(source, _described(offset), None))
        else:
            folder = file_source.folder_of(source, offsets, newest, files)
            found.append(_of_files(storage, source, entry, folder, files))
    return tuple(found)


def _of_files(storage: Storage, source: str, entry: int, folder: str | None, files: Collection[str]) -> SourceNeed:
    if folder is None:
        return SourceNeed(source, "the files that later batches have read; the folder of its log is unknown", None)
    read = list(dict.fromkeys(_read_after(storage, folder, entry, files)))
    needs = f"the {'file' if len(read) == 1 else f'{len(read):,} files'} that later batches have read"
    try:
        urls = {path: urlsplit(path) for path in read}
        are_local = all(url.scheme in ("", "file") for url in urls.values())
        missing = tuple(path for path, url in urls.items() if not Path(unquote(url.path)).exists())
    except (ValueError, OSError):  # invalid names
        are_local, missing = False, ()
    return SourceNeed(source, needs, missing if are_local else None)


def _described(offset: str) -> str:
    """Describe an offset of Kafka or Delta; any other offset as it is."""
    if offset == "-":
        return "all of its data"
    try:
        body = parsed_json(offset.encode())
        if "reservoirVersion" in body:
            return f"version {int(body['reservoirVersion'])} of the Delta table and all later versions"
        return _of_kafka(body) or f"the data after {offset}"
    except BAD_VALUES:
        return f"the data after {offset}"


def _of_kafka(body: Mapping[str, Any]) -> str:
    found = [
        f"topic {topic}, partition {int(partition)}: offset {int(offset):,} and later"
        for topic, partitions in body.items()
        for partition, offset in (partitions.items() if isinstance(partitions, dict) else ())
    ]
    return ", ".join(found)


def _read_after(storage: Storage, folder: str, newest: int, files: Collection[str]) -> Iterator[str]:
    """Yield the URLs of the files in the later entries of a file source."""
    for path in sorted(files):
        parsed = file_source.parse(path)
        if parsed is None or parsed[0] != folder or parsed[1] <= newest:
            continue
        data = read_or_none(storage, path)
        for line in (data or b"").decode(errors="replace").splitlines()[1:]:
            try:
                body = parsed_json(line)
                # A merged entry also has the files of earlier ones.
                if int(body["batchId"]) > newest:
                    yield str(body["path"])
            except BAD_VALUES:
                continue  # Spark rejects the entry; the rewind moves it away
