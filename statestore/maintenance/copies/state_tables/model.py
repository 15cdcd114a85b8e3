"""What a table of state holds, what a person asks for, and what the table records about its root."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum

from statekeeper.statestore.checkpoint.commit_log import Heads
from statekeeper.statestore.format import json_records
from statekeeper.statestore.format.json_records import About, Count, Number
from statekeeper.statestore.format.names import StorePath

DOMAIN = "statekeeper.state-table"
"""The metadata domain of the table with its record."""
_FORMAT = 1
_ABOUT = About("record of a table of state", hint="publish the state to another location")

Kind = tuple[int, str]
"""An operator, and the name of one of its stores."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asks for. None, or empty: as the table records it, else the default.

    operator, store, family  the rows to publish; by default those of the only operator, store and column family
    columns       of the state that the table has; by default all. A name is that of the state, or key.NAME or value.NAME
    renamed       names of columns in the table, by their names in the state
    partition_by  partition columns of the table, by their names in the table
    where         conditions on columns of the table; a row must meet all
    vectors       whether the table may have deletion vectors; None: yes
    """

    operator: int | None = None
    store: str | None = None
    family: str | None = None
    columns: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    vectors: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Position:
    """The state of a root at a batch. Two histories of a root with the same batch have different positions.

    state     a digest of the versions of all stores with their ids
    offsets   a digest of the offset log of the batch, which has the time of its execution; "" for a job root
    rewrites  a digest of the journals of rewrites: an edit replaces a version, which then keeps its name
    """

    batch: Count
    state: str
    offsets: str = ""
    rewrites: str = ""


def state_of(heads: Heads) -> str:
    """Return the digest of the versions that a batch committed."""
    text = "\n".join(f"{store.folder} {head.version} {head.mark}" for store, head in sorted(heads.heads.items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def offsets_of(data: bytes | None) -> str:
    """Return the digest of an offset log."""
    return "" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The rows and columns of a table.

    columns       names in the table by those in the state, such as "value.count": the latter are unique
    partition_by, where  as in `Request`
    """

    operator: Number
    store: str
    family: str | None
    columns: dict[str, str]
    partition_by: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    vectors: bool = True

    @property
    def kind(self) -> Kind:
        return self.operator, self.store


@dataclass(frozen=True, kw_only=True)
class TableRecord:
    """What a table records.

    query, root  the root whose state it shows
    position     the batch that it shows
    chosen       the rows and columns
    schema       the columns that the state gives, as JSON of Spark
    version      the version of the table with this record; another program has committed each later one
    """

    query: str
    root: str
    position: Position
    chosen: Chosen
    schema: str
    version: Count

    def encoded(self) -> str:
        """Encode the record."""
        return json_records.encoded({"format": _FORMAT, **asdict(self)}, sort_keys=True).decode().strip()


def parse_record(domains: Mapping[str, str], path: str) -> TableRecord | None:
    """Parse the record of a table; None if it has none. Raises `CorruptFile`, `UnknownFormatVersion`."""
    text = domains.get(DOMAIN)
    if text is None:
        return None
    return json_records.decoded(TableRecord, text.encode(), path, _ABOUT, only_format=_FORMAT)


def application(query: str) -> str:
    """Return the application id of a query in the transactions of its tables."""
    return f"statekeeper-state-{query}"


class Way(Enum):
    """How a run brings a table to the newest batch."""

    LOAD = "load"
    """All rows of a new table, from the newest snapshots."""
    CHANGES = "changes"
    """The last write of each key after the published batch, from the changelogs."""
    COMPARISON = "comparison"
    """All rows of the state, compared with those of the table."""
    RELOAD = "reload"
    """All rows again, in place of those of the table."""
    NOTHING = "nothing"
    """The table already shows the batch."""


def stores_of(heads: Mapping[StorePath, object], chosen: Chosen) -> list[StorePath]:
    """Return the stores that hold the rows of a table."""
    return sorted(store for store in heads if (store.operator, store.store) == chosen.kind)
