"""Tables that a person gives: Parquet, Arrow and CSV files, and the folders of Delta tables.

The library has no Delta reader as a dependency. It reads the JSON commits of plain tables: those without partition
columns, deletion vectors and column mapping. Source: the Delta transaction log protocol.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from statestore.errors import SchemaMismatch
from statestore.format.untrusted import BAD_VALUES, parsed_json

_HINT = "give a .parquet, .arrow, .feather or .csv file, or the folder of a Delta table"
_LOG = "_delta_log"
_READER_FEATURES = {"timestampNtz"}


def read_table(path: str) -> pa.Table:
    """Read a table. The columns of a CSV file are texts; an empty text without quotes is null.

    Raises `SchemaMismatch` for a file that is missing, damaged or of another format, and for a Delta table that only a
    Delta reader can read.
    """
    place = Path(path)
    try:
        if (place / _LOG).is_dir():
            return _delta(place)
        match place.suffix.lower():
            case ".csv":
                return _csv(place)
            case ".arrow" | ".feather" | ".ipc":
                return pyarrow.feather.read_table(place)
            case ".parquet":
                # A partitioned data set would add columns for the names of folders.
                return pyarrow.parquet.read_table(place, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise SchemaMismatch(f"cannot be read as a table: {error}", path=path, hint=_HINT) from error
    except BAD_VALUES as error:
        raise SchemaMismatch("is not a valid Delta table", path=path, hint=_HINT) from error
    raise SchemaMismatch("is a table of an unknown format; nothing was changed", path=path, hint=_HINT)


def _csv(place: Path) -> pa.Table:
    with pyarrow.csv.open_csv(place) as reader:
        names = reader.schema.names
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return pyarrow.csv.read_csv(place, convert_options=convert)


def _delta(place: Path) -> pa.Table:
    files: dict[str, None] = {}
    commits = sorted(path for path in (place / _LOG).glob("*.json") if path.stem.isdigit())
    if not commits or [int(path.stem) for path in commits] != list(range(len(commits))):
        raise _only_delta(place, "its log starts with a checkpoint")
    for commit in commits:
        for line in commit.read_bytes().splitlines():
            _replay(place, parsed_json(line), files)
    tables = [pyarrow.parquet.read_table(place / unquote(path), partitioning=None) for path in files]
    if not tables:
        raise SchemaMismatch("is an empty table; nothing was changed", path=str(place), hint=_HINT)
    return pa.concat_tables(tables)


def _replay(place: Path, action: dict[str, Any], files: dict[str, None]) -> None:
    if "metaData" in action and action["metaData"]["partitionColumns"]:
        raise _only_delta(place, "it has partition columns")
    if "protocol" in action:
        features = set(action["protocol"].get("readerFeatures", ()))
        if action["protocol"]["minReaderVersion"] == 2 or features - _READER_FEATURES:
            raise _only_delta(place, f"it has the features {sorted(features) or 'of reader version 2'}")
    if "remove" in action:
        files.pop(str(action["remove"]["path"]), None)
    if "add" in action:
        files[str(action["add"]["path"])] = None


def _only_delta(place: Path, reason: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"is a Delta table that this command cannot read: {reason}; nothing was changed",
        path=str(place),
        hint="write its rows to a Parquet file with Spark, and give this file",
    )
