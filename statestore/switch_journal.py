"""What a switchover has written down of itself, so that whoever comes after a crash can finish it, or take it back.

    _statekeeper/switchover/00000001/begun.json                  where it starts from, and what is to be called what
                                     cleared.json                what would be in the way of a snapshot is quarantined
                                     made-0-3-default.json       a store's snapshot stands, read back and compared
                                     ended.json                  switched, or taken back

A journal that has begun and not ended is open; there is one at most, since each number is created once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from statestore.errors import AlreadyExists, CorruptFile, HalfSwitched, RootHeld, UnknownFormatVersion
from statestore.format import names
from statestore.format.json_object import json_object
from statestore.format.names import StorePath, VersionId, parse_store_file
from statestore.format.structure import Structure
from statestore.format.untrusted import BAD_VALUES, checkpoint_id, plain_number, store_name, table_name
from statestore.storage import Storage

_FORMAT = 1


class Ending(Enum):
    """How a switchover ended."""

    SWITCHED = "switched"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Begun:
    """Where a switchover starts from, and what each store's snapshot is to be called, in the commit log's order.

    `run` names the folder in which files are quarantined; `commit` is the newest commit's file as it was; `header` that of
    the snapshots; `reused`: the stores of which the snapshot at the head is used as it is.
    """

    number: int
    run: str
    to: Structure
    batch: int
    header: str
    commit: str
    stores: Mapping[StorePath, VersionId]
    reused: frozenset[StorePath]


@dataclass(frozen=True)
class Made:
    """A snapshot that stands: the digest of its keys and values, and the tables that were sent for it."""

    digest: str
    tables: tuple[str, ...]


@dataclass(frozen=True)
class OpenJournal:
    """An open journal. `made`: the snapshots that stand, by store."""

    begun: Begun
    made: Mapping[StorePath, Made]
    is_cleared: bool = False


def standing(storage: Storage, paths: Iterable[str] | None = None) -> OpenJournal | None:
    """The switchover that is half done; None when there is none. A listing, unless `paths` are one in which the journals
    are, and a request for each file of an open one.

    Raises `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    number, parts = _newest(_listed(storage) if paths is None else paths)
    if number is None or "ended" in parts:
        return None
    if "begun" not in parts:
        path = names.switchover(number, "begun")
        raise CorruptFile("is missing, and others of its journal are there", path=path, hint="restore the file")
    begun = _parse_begun(storage.read(parts["begun"]), number, parts["begun"])
    by_name = {_made(store): store for store in begun.stores}
    made = {}
    for name, path in parts.items():
        if name in by_name:
            made[by_name[name]] = _parse_made(storage.read(path), path)
    return OpenJournal(begun, made, "cleared" in parts)


def require_none(storage: Storage) -> None:
    """Raises `HalfSwitched` when a switchover is half done, and as `standing`."""
    found = standing(storage)
    if found is not None:
        begun = found.begun
        raise HalfSwitched(
            f"a switchover to structure {begun.to.value} is half done",
            path=names.switchover(begun.number, "begun"),
            hint=f"statekeeper switch ROOT --to {begun.to.value} --apply finishes it, statekeeper switch ROOT --abort "
            f"takes it back",
        )


def newest_switched(storage: Storage, paths: Iterable[str]) -> int | None:
    """The version with which the newest switchover begins that was not taken back; None when there is none. `paths`: a
    listing in which the journals are; two requests for each that is looked at. Raises as `standing`."""
    parts = {place: path for path in paths if (place := names.parse_switchover(path))}
    for number in sorted({number for number, _ in parts}, reverse=True):
        ended = parts.get((number, "ended"))
        is_aborted = ended and json_object(storage.read(ended), ended).get("how") == Ending.ABORTED.value
        if (path := parts.get((number, "begun"))) and not is_aborted:
            return _parse_begun(storage.read(path), number, path).batch + 1
    return None


def next_number(storage: Storage) -> int:
    """What the next switchover is called."""
    number, _ = _newest(_listed(storage))
    return 1 if number is None else number + 1


def begin(storage: Storage, begun: Begun) -> None:
    """Open the journal. Raises `RootHeld` when somebody else did at the same moment."""
    body = {
        "format": _FORMAT,
        "run": begun.run,
        "to": begun.to.value,
        "batch": begun.batch,
        "header": begun.header,
        "commit": begun.commit,
        "stores": [
            {
                "operator": store.operator,
                "partition": store.partition,
                "store": store.store,
                "snapshot": names.snapshot(version),
                "digest": version.digest,
                "reused": store in begun.reused,
            }
            for store, version in begun.stores.items()
        ],
    }
    path = names.switchover(begun.number, "begun")
    try:
        storage.create(path, json.dumps(body, indent=1).encode())
    except AlreadyExists as error:
        raise RootHeld("another switchover has just begun", path=path, hint="run this again: it shows which") from error


def note_cleared(storage: Storage, begun: Begun) -> None:
    """From here on each file of the names in the journal is this switchover's."""
    storage.create(names.switchover(begun.number, "cleared"), b"{}")


def note_made(storage: Storage, begun: Begun, store: StorePath, made: Made) -> None:
    """A store's snapshot stands, and holds what it should."""
    body = json.dumps({"store": str(store), "digest": made.digest, "tables": made.tables}).encode()
    # Not created if absent: who resumes after a lost lease may have made it as well, and is as right.
    storage.replace(names.switchover(begun.number, _made(store)), body)


def end(storage: Storage, begun: Begun, ending: Ending) -> None:
    """Close the journal."""
    storage.create(names.switchover(begun.number, "ended"), json.dumps({"how": ending.value}).encode())


def ending(storage: Storage, begun: Begun) -> Ending | None:
    """How a switchover ended; None while its journal is open. One request, two when it has ended."""
    path = names.switchover(begun.number, "ended")
    if storage.stat(path) is None:
        return None
    try:
        return Ending(json_object(storage.read(path), path).get("how"))
    except BAD_VALUES as error:
        raise CorruptFile("lacks what a switchover's journal holds", path=path) from error


def _listed(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list(names.SWITCHOVERS)]


def _newest(paths: Iterable[str]) -> tuple[int | None, dict[str, str]]:
    """The number of the newest journal, and its parts' paths."""
    found = [(place, path) for path in paths if (place := names.parse_switchover(path))]
    number = max((place[0] for place, _ in found), default=None)
    return number, {place[1]: path for place, path in found if place[0] == number}


def _made(store: StorePath) -> str:
    return f"made-{store.operator}-{store.partition}-{store.store}"


def _parse_made(data: bytes, path: str) -> Made:
    body = json_object(data, path)
    try:
        return Made(str(body["digest"]), tuple(table_name(name) for name in body["tables"]))
    except BAD_VALUES as error:
        raise CorruptFile("lacks what a switchover's journal holds", path=path) from error


def _parse_begun(data: bytes, number: int, path: str) -> Begun:
    body = json_object(data, path)
    if body.get("format") != _FORMAT:
        raise UnknownFormatVersion(f"journal format {body.get('format')!r}: known is {_FORMAT}", path=path)
    try:
        stores = {}
        reused = set()
        for one in body["stores"]:
            store = StorePath(
                plain_number(str(one["operator"])), plain_number(str(one["partition"])), store_name(one["store"])
            )
            file = parse_store_file(str(one["snapshot"]))
            if file is None:
                raise CorruptFile(f"names a snapshot {one['snapshot']!r}", path=path)
            digest = one["digest"]
            stores[store] = file.version if digest is None else replace(file.version, digest=checkpoint_id(digest))
            if one["reused"]:
                reused.add(store)
        return Begun(
            number,
            checkpoint_id(body["run"]),
            Structure(body["to"]),
            int(body["batch"]),
            str(body["header"]),
            str(body["commit"]),
            stores,
            frozenset(reused),
        )
    except BAD_VALUES as error:
        raise CorruptFile("lacks what a switchover's journal holds", path=path) from error
