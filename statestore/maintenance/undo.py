"""Taking a repair back: what it has quarantined goes where it was, all of it or nothing.

    gather(storage, run)  ->  UndoFacts  ->  plan(gathered)  ->  list of PutBack  ->  execute(storage, run, plan)

Only while the query stands where it stood then. The losing schedule otherwise, in structure V1: a snapshot of batches that
were taken back is quarantined; the query goes on past their numbers; the snapshot is put back, and a restart takes it for
its own. And only whole: a snapshot whose tables are gone is no way back.

It is for a query that is stopped: who calls has to make sure of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from statestore import catalog
from statestore.errors import AlreadyExists, CorruptFile, RefusedAsUnsafe, UnknownFormatVersion
from statestore.format import names
from statestore.format.names import StoreFileKind
from statestore.format.operators import with_schema_uris
from statestore.format.snapshot import read_snapshot
from statestore.maintenance import quarantine
from statestore.maintenance.quarantine import QueryPosition
from statestore.storage import Entry, Storage, at_once, read_or_none

_WHICH_RUN = f"a repair tells its run when it ends, and {names.QUARANTINE}/ has a folder of that name"


class There(Enum):
    """What stands now where a file was that a repair has quarantined."""

    NOTHING = "nothing"
    SAME = "the same bytes"
    REWRITTEN = "the same file as the repair has rewritten it"
    OTHER = "something that was written since"


@dataclass(frozen=True)
class Kept:
    """A file that was quarantined. `lacks`: a table that it names and that is not there in its size, for a snapshot."""

    path: str
    there: There
    lacks: str | None = None


@dataclass(frozen=True)
class UndoFacts:
    """The facts. `stood`: where the query stood at the repair; `stands`: where it does now."""

    run: str
    url: str
    stood: QueryPosition | None
    stands: QueryPosition
    kept: tuple[Kept, ...]


@dataclass(frozen=True)
class PutBack:
    """Put a file where it was; `replaces`: in place of what the repair wrote there."""

    path: str
    replaces: bool


def gather(storage: Storage, run: str) -> UndoFacts:
    """The facts. Listings of `state/`, of the commit log and of what was quarantined; for each file of it two requests.

    Raises `RefusedAsUnsafe` for what is no run's id, `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion`,
    `StorageError`.
    """
    if not names.is_checkpoint_id(run):
        raise RefusedAsUnsafe(f"{run!r} is no run's id", path=storage.url, hint=_WHICH_RUN)
    heads = catalog.heads(storage)
    stands = QueryPosition.of(storage, heads)
    files = catalog.files(storage)
    tables = {entry.path: entry.size_bytes for of_store in files.values() for entry in of_store.tables.values()}
    found: dict[str, Kept] = {}

    def look(entry: Entry) -> None:
        path = _original(run, entry)
        body = storage.read(entry.path)
        found[path] = Kept(path, _there(storage, path, body), _lacks(path, body, tables))

    at_once(look, storage.list(names.quarantine(run, "").rstrip("/")))
    return UndoFacts(
        run, storage.url, quarantine.standing(storage, run), stands, tuple(found[path] for path in sorted(found))
    )


def plan(gathered: UndoFacts) -> tuple[PutBack, ...]:
    """What goes back where. Pure. Raises `RefusedAsUnsafe` when something speaks against any of it, with the file."""
    if not gathered.kept and gathered.stood is None:
        raise RefusedAsUnsafe(f"nothing is quarantined by run {gathered.run}", path=gathered.url, hint=_WHICH_RUN)
    if gathered.stood is None:
        raise RefusedAsUnsafe(
            "where the query stood at the repair is not known",
            path=names.quarantine_position(gathered.run),
            hint="a switchover put it aside, and `statekeeper switch` tells the way back; or it was old, and retention is "
            "taking it",
        )
    if gathered.stood != gathered.stands:
        then = f"after batch {gathered.stood.batch}" if gathered.stood.batch >= 0 else "before any batch"
        now = f"the newest batch is {gathered.stands.batch}" if gathered.stands.batch >= 0 else "no batch is committed"
        raise RefusedAsUnsafe(
            f"the repair was made {then}, and now {now}, or its commit is another one: what "
            "was quarantined is not of this time line",
            path=names.commits(max(gathered.stood.batch, gathered.stands.batch)),
            hint=f"if commits were restored since, take those from batch {gathered.stood.batch + 1} on away, run this, and "
            "put them back; if the query has gone on, leave what was quarantined where it is",
        )
    for one in gathered.kept:
        if one.there is There.OTHER:
            raise RefusedAsUnsafe(
                "was written again since it was quarantined: what was quarantined stays there",
                path=one.path,
                hint="the query has gone on; to go back all the same, delete the file and run this again",
            )
        if one.lacks is not None:
            raise RefusedAsUnsafe(
                f"cannot be put back whole: its table {one.lacks} is gone",
                path=one.path,
                hint=f"restore the table from a backup, or delete {names.quarantine(gathered.run, one.path)} "
                "to do without it",
            )
    return tuple(PutBack(one.path, one.there is There.REWRITTEN) for one in gathered.kept)


def execute(storage: Storage, run: str, planned: Sequence[PutBack]) -> Iterator[str]:
    """Put them back, and tell after each file which it was.

    *Guarantee*: what was quarantined goes only after it stands where it was, so that a crash at any request loses
    nothing and
    running it again finishes it. Raises `RefusedAsUnsafe` when something was written there meanwhile, `StorageError`.
    """
    for action in planned:
        kept = names.quarantine(run, action.path)
        body = storage.read(kept)
        if action.replaces:
            storage.replace(action.path, body, like=kept)
        else:
            _create(storage, action.path, body, like=kept)
        storage.delete([kept])
        yield action.path
    storage.delete([names.quarantine_position(run)])


def _original(run: str, entry: Entry) -> str:
    return entry.path.removeprefix(names.quarantine(run, ""))


def _there(storage: Storage, path: str, before: bytes) -> There:
    now = read_or_none(storage, path)
    if now is None:
        return There.NOTHING
    if now == before:
        return There.SAME
    if names.parse_operator_metadata(path) is not None:
        return There.REWRITTEN if _is_relocated(before, now, path) else There.OTHER
    try:
        old, new = read_snapshot(before, path), read_snapshot(now, path)
    except (CorruptFile, UnknownFormatVersion):
        return There.OTHER
    same = replace(new.metadata, header=old.metadata.header) == old.metadata and new.files == old.files
    return There.REWRITTEN if same else There.OTHER


def _is_relocated(before: bytes, now: bytes, path: str) -> bool:
    """Whether two metadata files of an operator differ in the places of its schemas alone."""
    try:
        return with_schema_uris(before, path, _anywhere) == with_schema_uris(now, path, _anywhere)
    except (CorruptFile, UnknownFormatVersion):
        return False


def _anywhere(store: str, file: str) -> str:
    return f"{store}/{file}"


def _lacks(path: str, body: bytes, tables: Mapping[str, int]) -> str | None:
    """A table that the snapshot names and that is not there; None for other files, and for one that cannot be read."""
    place = names.parse_store_path(path)
    if place is None or place[1].kind is not StoreFileKind.SNAPSHOT:
        return None
    try:
        metadata = read_snapshot(body, path).metadata
    except (CorruptFile, UnknownFormatVersion):
        return None
    named = {place[0].table_file(table.dfs_name): table.size_bytes for table in metadata.named_files}
    return next((table for table, size_bytes in named.items() if tables.get(table) != size_bytes), None)


def _create(storage: Storage, path: str, body: bytes, *, like: str) -> None:
    try:
        storage.create(path, body, like=like)
    except AlreadyExists as error:
        raise RefusedAsUnsafe(
            "was written while it was put back: the query runs",
            path=path,
            hint="stop the query, see that its application is gone, and run this again",
        ) from error
