"""Publishes the state of roots as Delta tables, and reads the tables with `deltalake`, which shares no code with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from statekeeper.statestore.maintenance.copies.state_tables import Published
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Prepared, perform, prepare
from statekeeper.statestore.maintenance.verbs.publish import Publish
from statekeeper.statestore.storage import Storage
from tests.support import verbs
from tests.support.maintainers import MAINTAINER

TIMES = ("batch", "committed_at")
Row = dict[str, Any]


def planned(
    source: Storage, table: Storage, scratch: Path, *, by: Maintainer = MAINTAINER, stopped: bool = False, **how: Any
) -> Prepared[Any, Any, Published]:
    """Plan a run. `how`: the options of the verb."""
    run = verbs.a_run(source, by=by, scratch=scratch, stopped=stopped, other=table)
    return prepare(Publish(destination=table.url, **how), run)


def published(source: Storage, table: Storage, scratch: Path, **how: Any) -> Published:
    """Publish the newest batch. Raises the first refusal."""
    made = perform(planned(source, table, scratch, **how)).made
    assert made is not None
    return made


def opened(table: Storage, options: dict[str, str] | None = None) -> DeltaTable:
    return DeltaTable(table.url.removeprefix("file://"), storage_options=options)


def rows_of(table: Storage, options: dict[str, str] | None = None) -> list[Row]:
    """The rows of a table, which `deltalake` reads with its deletion vectors."""
    found = QueryBuilder().register("t", opened(table, options)).execute("select * from t").read_all()
    rows: list[Row] = pa.table(found).to_pylist()
    return rows


def feed_of(table: Storage, first: int, last: int | None = None) -> list[Row]:
    """The rows of the change data feed of these versions."""
    found = opened(table).load_cdf(starting_version=first, ending_version=last).read_all()
    rows: list[Row] = pa.table(found).to_pylist()
    return rows


def as_lines(rows: list[Row], without: tuple[str, ...] = TIMES) -> list[str]:
    """Rows without the times, in an order, to compare them."""
    plain = ({name: value for name, value in row.items() if name not in without} for row in rows)
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in plain)


def replayed(table: Storage, without: tuple[str, ...] = (), keys: tuple[str, ...] = ("key",)) -> list[str]:
    """The rows that a reader of the feed has who began with version 0, as `as_lines`.

    A key is inserted, replaced or deleted. `keys`: the columns of the key.
    """
    held: dict[Any, Row] = {}
    changes = feed_of(table, 0)
    for version in sorted({row["_commit_version"] for row in changes}):
        of_version = [row for row in changes if row["_commit_version"] == version]
        for row in sorted(of_version, key=lambda row: row["_change_type"] not in ("delete", "update_preimage")):
            change = row["_change_type"]
            key = json.dumps([row[name] for name in keys], default=str)
            plain = {name: value for name, value in row.items() if not name.startswith("_c")}
            if change == "delete":
                del held[key]
            elif change == "insert":
                assert key not in held, row
                held[key] = plain
            elif change == "update_postimage":
                assert key in held, row
                held[key] = plain
    return as_lines(list(held.values()), without)


def at_batch(checkpoint: Path, to: Path, batch: int) -> Path:
    """Copy a checkpoint as it was after a batch: its logs end there. In structure V1, later changelogs stay."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(checkpoint, to)
    for folder in ("commits", "offsets"):
        for file in (to / folder).iterdir():
            number = file.name.strip(".").removesuffix(".crc")
            if number.isdecimal() and int(number) > batch:
                file.unlink()
    return to
