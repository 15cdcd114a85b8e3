"""Looks up whether the sources of a query still have the data that it reads again after a rewind.

The URLs of files come from the checkpoint, so they are not trusted: files on this machine are looked up, and others only in
the locations that the user has given.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from statekeeper.statestore.base.errors import UnsafePath, WrongOption
from statekeeper.statestore.contents import delta_logs
from statekeeper.statestore.maintenance.rollback.rewind.sources import delta, kafka
from statekeeper.statestore.maintenance.rollback.rewind.sources.data import (
    DeltaVersions,
    Files,
    KafkaOffsets,
    SourceData,
)
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.storage.urls import path_below

CANNOT = "Statekeeper cannot check this kind of source"
_PARENT = re.compile(r"[a-z0-9]+://[A-Za-z0-9@.:-]+(?:/[^/\s]+)*(?=/[^/\s]+$)")
"""The folder of a file in another storage."""
_WITHOUT_THE_OPTION = "run this command without this --source"


@dataclass(frozen=True)
class SourceNeed:
    """The data that a source must still have after a rewind, and the data that it no longer has.

    source     its name, or its number in the query from 0
    needs      in words, such as "topic clicks, partition 0: offset 12 and later"
    missing    files, versions or offsets that no longer exist; None if none is known, and not all were looked up
    unchecked  why not all were looked up; None if they were
    """

    source: str
    needs: str
    missing: tuple[str, ...] | None
    unchecked: str | None = None


@dataclass(frozen=True, kw_only=True)
class SourceLocations:
    """Where the user says that the sources have their data.

    folders  Delta tables, and folders of file sources
    kafka    properties of a Kafka client; None: topics are not looked up
    """

    folders: Sequence[Storage] = field(default=())
    kafka: Mapping[str, str] | None = None


def look_up(sources: Mapping[str, SourceData], where: SourceLocations) -> tuple[SourceNeed, ...]:
    """Look up the data of each source.

    Requests: one for each file; for a Delta table a listing of its log, its later commits and one for each of their files;
    for Kafka the list of topics, and two for each broker.

    Raises `WrongOption` for a location that is of no source; `CorruptFile`, `StorageError`, `BadConfiguration`,
    `UnsupportedEnvironment` without the package confluent-kafka.
    """
    tables, folders = _sorted(where.folders, sources)
    unused = {storage.url for storage in where.folders}
    found = []
    for source, data in sources.items():
        missing: Sequence[str] = ()
        unchecked: str | None = CANNOT
        if isinstance(data, Files):
            missing, unchecked, used = _of_files(data, folders)
            unused -= used
        elif isinstance(data, DeltaVersions):
            table = tables.get(data.table_id)
            unchecked = "not checked. To check it, add --source URL with the location of the table"
            if table is not None:
                unused.discard(table.url)
                missing, unchecked = delta.missing(table, data)
        elif isinstance(data, KafkaOffsets):
            unchecked = "not checked. To check it, add --kafka-config FILE"
            if where.kafka is not None:
                missing = kafka.missing(where.kafka, data)
                unchecked = None if data.unread is None else f"not all was checked: {data.unread}"
        known = tuple(missing) if missing or unchecked is None else None
        found.append(SourceNeed(source, str(data), known, unchecked))
    if unused:
        # A location that does not exist has no file below it, either: storages have no empty folders.
        raise _wrong(
            "is no Delta table that the query reads, and later batches have read no file below it",
            min(unused),
            sources,
        )
    return tuple(found)


def _wrong(problem: str, url: str, sources: Mapping[str, SourceData]) -> WrongOption:
    """The error about a location, which names those that fit."""
    fitting = list(_locations(sources))
    return WrongOption(
        f"{problem}; nothing was changed",
        path=url,
        hint=f"choose from: {'; '.join(fitting)}. Or {_WITHOUT_THE_OPTION}"
        if fitting
        else f"{_WITHOUT_THE_OPTION}: the later batches have read no file and no Delta table",
    )


def _locations(sources: Mapping[str, SourceData]) -> Iterator[str]:
    """Yield the locations of the sources as far as the checkpoint names them."""
    for source, data in sources.items():
        if isinstance(data, Files) and data.urls:
            yield f"--source {shlex.quote(_common_folder(data.urls))} (source {source})"
        elif isinstance(data, DeltaVersions):
            yield f"--source with the location of the Delta table whose id is {data.table_id} (source {source})"


def _common_folder(urls: Sequence[str]) -> str:
    """The innermost folder that contains all of these files. The first and the last one in order differ the most."""
    first, last = (url.split("/")[:-1] for url in (min(urls), max(urls)))
    return "/".join(
        one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    )


def _sorted(folders: Sequence[Storage], sources: Mapping[str, SourceData]) -> tuple[dict[str, Storage], list[Storage]]:
    """Divide the locations into Delta tables, by their id, and other folders."""
    tables: dict[str, Storage] = {}
    others = []
    for storage in folders:
        listed = storage.list(delta_logs.LOG)
        if not listed:
            others.append(storage)
            continue
        table = delta_logs.table_id(storage, listed, hint=_WITHOUT_THE_OPTION)
        if table is None:
            raise _wrong("has a Delta log without the id of the table", storage.url, sources)
        if table in tables and tables[table].url != storage.url:
            raise WrongOption(
                f"has the table id of {tables[table].url}: one of the two is a copy; nothing was changed",
                path=storage.url,
                hint="give only the table that the query reads",
            )
        tables[table] = storage
    return tables, others


def _of_files(data: Files, folders: Sequence[Storage]) -> tuple[list[str], str | None, set[str]]:
    """Return the missing files, why files were not looked up, and the URLs of the folders that have looked-up files."""
    exists: dict[str, bool | None] = {}
    used: set[str] = set()

    def check(url: str) -> None:
        try:
            below = [(folder, path) for folder in folders if (path := path_below(folder.url, url)) is not None]
            if below:
                folder, path = below[0]
                exists[url] = folder.stat(path) is not None
                used.update(one.url for one, _ in below)
                return
            parts = urlsplit(url)
            exists[url] = Path(unquote(parts.path)).exists() if parts.scheme in ("", "file") else None
        except (UnsafePath, ValueError, OSError):  # invalid names
            exists[url] = None

    at_once(check, data.urls)
    elsewhere = [url for url in data.urls if exists[url] is None]
    unchecked = f"{len(elsewhere):,} not checked" if elsewhere else None
    if data.has_more:
        more = f"only the first {len(data.urls):,} files were looked up"
        unchecked = more if unchecked is None else f"{more}; {unchecked}"
    if data.unread is not None:
        unchecked = data.unread if unchecked is None else f"{data.unread}; {unchecked}"
    if parents := [match[0] for url in elsewhere if (match := _PARENT.match(url))]:
        unchecked = f"{unchecked}. To check files below {min(parents)}, add --source {shlex.quote(min(parents))}"
    return [url for url in data.urls if exists[url] is False], unchecked, used
