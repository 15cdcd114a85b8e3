"""Compares files of a source with the copies in its mirror. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from statekeeper.statestore.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format import mirror_names, names
from statekeeper.statestore.format.families import UnknownColumnType, parse_families
from statekeeper.statestore.format.operators import parse_operator, parse_schema
from statekeeper.statestore.maintenance.copies.copy_file import Part, mark, part_of
from statekeeper.statestore.maintenance.mirrors.record import Marks
from statekeeper.statestore.storage import Entry, Storage, at_once

_PIECE_BYTES = 8 * 1024 * 1024


def unchanged(
    source: Storage,
    destination: Storage,
    entries: Mapping[str, Entry],
    existing: Mapping[str, Entry],
    marks: Marks,
) -> Marks:
    """Return the present marks of copied files that were written again with the same bytes, as by an undone rewind.

    Only of files of state whose names do not identify their bytes. Reads these files in both roots. Raises `StorageError`.
    """
    found: dict[str, str] = {}

    def compare(path: str) -> None:
        if _is_same(source, destination, path, entries[path].size_bytes):
            found[path] = mark(entries[path])

    at_once(
        compare,
        [
            path
            for path in _marked_anew(entries, existing, marks)
            if path in marks
            and part_of(path) is Part.STATE
            and not mirror_names.is_final(path)
            and existing[path].size_bytes == entries[path].size_bytes
        ],
    )
    return found


def damaged_metadata(
    source: Storage, entries: Mapping[str, Entry], existing: Mapping[str, Entry], marks: Marks
) -> tuple[CorruptFile, ...]:
    """Return the errors of metadata that was replaced in the source and cannot be parsed: the mirror may have the last good
    copy. Reads the replaced files. Raises `StorageError`."""
    found: list[CorruptFile] = []

    def read(path: str) -> None:
        parse = _parser_of(path)
        try:
            if parse is not None:
                parse(source.read(path), path)
        except (UnknownFormatVersion, UnknownColumnType):
            return  # of a later Spark
        except CorruptFile as error:
            found.append(
                CorruptFile(
                    f"{error.what}; nothing was written, and the mirror keeps its copy of the file",
                    path=f"{source.url}/{path}",
                    hint="compare the two files. If the copy in the mirror is intact, copy it to the source",
                )
            )

    at_once(read, [path for path in _marked_anew(entries, existing, marks) if part_of(path) is Part.METADATA])
    return tuple(sorted(found, key=str))


def _marked_anew(entries: Mapping[str, Entry], existing: Mapping[str, Entry], marks: Marks) -> Iterator[str]:
    """Yield the files of both roots that were written in the source since they were copied."""
    return (path for path, entry in entries.items() if path in existing and marks.get(path) != mark(entry))


def _parser_of(path: str) -> Callable[[bytes, str], object] | None:
    """Return the parser of a file that no other step of a run reads."""
    if names.parse_operator_metadata(path) is not None:
        return parse_operator
    if "/_stateSchema/" in path:
        return parse_families
    return parse_schema if path.endswith("/_metadata/schema") else None


def _is_same(source: Storage, destination: Storage, path: str, size_bytes: int) -> bool:
    return all(
        source.read_range(path, start, _PIECE_BYTES) == destination.read_range(path, start, _PIECE_BYTES)
        for start in range(0, size_bytes, _PIECE_BYTES)
    )
