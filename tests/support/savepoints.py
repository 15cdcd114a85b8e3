"""Reads the tables of a savepoint with rows, without Statekeeper's own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.statestore.format.plain_values import plain_rows
from statekeeper.statestore.maintenance.copies.savepoints.write import digest_of, digest_sum
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import Storage
from tests.support import verbs
from tests.support.clones import FULL
from tests.support.dumped import Row
from tests.support.maintainers import MAINTAINER


def kept(
    source: Storage,
    destination: Storage,
    scratch: Path,
    label: str = "before",
    *,
    by: Maintainer = MAINTAINER,
    **how: Any,
) -> verbs.Seen:
    """Plan a savepoint with files and make it."""
    policies = how.pop("policies", FULL)
    prepared = verbs.savepoint.plan_files(source, destination, policies, by, label=label, **how)
    verbs.savepoint.execute_files(source, destination, prepared, by, scratch=scratch)
    return prepared


def remove(source: Storage, destination: Storage, label: str = "before") -> None:
    planned = verbs.savepoint.plan_removal(source, destination, verbs.savepoint.find(source, label), FULL, MAINTAINER)
    verbs.savepoint.execute_removal(source, destination, planned)


def saved(
    source: Storage, destination: Storage, scratch: Path, *, by: Maintainer = MAINTAINER, **how: Any
) -> verbs.Seen:
    """Plan a savepoint with rows and make it."""
    prepared = verbs.savepoint.plan_rows(source, destination, by, **how)
    verbs.savepoint.execute_rows(source, destination, prepared, by, FULL, scratch=scratch)
    return prepared


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "savepoint.json").read_text())
    return found


def table(folder: Path, path: str) -> pa.Table:
    """All files of a table."""
    return pa.concat_tables([pq.read_table(file) for file in sorted((folder / path).glob("*.parquet"))])


def as_model(folder: Path, path: str = "rows/0/default") -> list[dict[bytes, bytes]]:
    """The pairs of each partition in a table of bytes."""
    found: list[dict[bytes, bytes]] = [{}, {}]
    for row in table(folder, path).to_pylist():
        assert row["key_bytes"] not in found[row["partition"]]
        found[row["partition"]][row["key_bytes"]] = row["value_bytes"]
    return found


def rows_of(folder: Path) -> list[Row]:
    """The rows of all tables in the form of `statekeeper dump`, in the order of the tables."""
    found = []
    for described in manifest(folder)["tables"]:
        whole = table(folder, described["path"])
        parts = {
            part: whole.select([c for c, name in described["columns"].items() if name.startswith(f"{part}.")])
            for part in ("key", "value")
        }
        named: dict[str, list[Any]] = {
            part: plain_rows(
                columns.rename_columns([described["columns"][c].partition(".")[2] for c in columns.column_names])
            )
            if columns.column_names
            else [{} for _ in range(whole.num_rows)]
            for part, columns in parts.items()
        }
        for place, key, value in zip(
            whole.select(["partition"]).to_pylist(), named["key"], named["value"], strict=True
        ):
            store = "" if described["store"] == "default" else f"/{described['store']}"
            name = f"state/{described['operator_id']}/{place['partition']}{store}"
            found.append({"store": name, "family": described["family"], "key": key, "value": value})
    return found


def recomputed(folder: Path) -> str:
    """The digest of the rows that are in the files."""
    paths = [described["path"] for described in manifest(folder)["tables"]]
    digests = [digest_of(batch) for path in paths for batch in table(folder, path).to_batches()]
    return f"{digest_sum(digests):032x}"
