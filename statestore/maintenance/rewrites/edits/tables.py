"""Tables that a person gives: Parquet, Arrow and CSV files, and the folders of Delta tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from statekeeper.statestore.base.errors import SchemaMismatch, UnsupportedEnvironment
from statekeeper.statestore.base.extras import how_to_install
from statekeeper.statestore.maintenance.rewrites.edits.goal import Edit

LOG = "_delta_log"
_READABLE_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""The features that `deltalake` reads without loss. It rejects some others only after it has read some rows."""


def read_delta_table(folder: Path) -> pa.Table:
    """Read the newest version of a Delta table on local disk.

    Raises `SchemaMismatch` for a table with other features and for a damaged table; `UnsupportedEnvironment` if
    `deltalake` is not installed.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise UnsupportedEnvironment(
            "is a Delta table, and the package deltalake is not installed; nothing was changed",
            path=str(folder),
            hint=f"run: {how_to_install('delta')}; or write its rows to a Parquet file",
        ) from error
    try:
        table = DeltaTable(str(folder))
        protocol = table.protocol()
        features = set(protocol.reader_features or ())
        if protocol.min_reader_version == 2:
            features.add("columnMapping")
        if missing := sorted(features - _READABLE_FEATURES):
            raise SchemaMismatch(
                f"is a Delta table with features that this command cannot read: {', '.join(missing)}; nothing was changed",
                path=str(folder),
                hint="write its rows to a Parquet file with Spark, and give this file",
            )
        return table.to_pyarrow_table()
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise SchemaMismatch(
            f"cannot be read as a Delta table: {str(error).splitlines()[0]}; nothing was changed",
            path=str(folder),
            hint="give the folder of a complete Delta table, or write its rows to a Parquet file with Spark",
        ) from error


_HINT = "give a .parquet, .arrow, .feather or .csv file, or the folder of a Delta table"


def read_table(path: str) -> pa.Table:
    """Read a table. The columns of a CSV file are texts; an empty text without quotes is null.

    Raises `SchemaMismatch` for a file that is missing, damaged or of another format; as `read_delta_table`.
    """
    place = Path(path)
    try:
        if (place / LOG).is_dir():
            return read_delta_table(place)
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
    raise SchemaMismatch("is a table of an unknown format; nothing was changed", path=path, hint=_HINT)


def _csv(place: Path) -> pa.Table:
    with pyarrow.csv.open_csv(place) as reader:
        names = reader.schema.names
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return pyarrow.csv.read_csv(place, convert_options=convert)


def edit_of(operator: int, texts: Mapping[str, str], keys: str | None, upserts: str | None) -> Edit:
    """Return the edit that a command or a launch states. `keys` and `upserts` are paths of tables.

    Raises as `read_table`.
    """
    options = ["--operator", str(operator)]
    for name, value in texts.items():
        options += ["--delete", f"{name}={value}"]
    options += [] if keys is None else ["--delete-keys", keys]
    options += [] if upserts is None else ["--upsert", upserts]
    return Edit(
        operator=operator,
        texts=texts,
        keys=None if keys is None else read_table(keys),
        upserts=None if upserts is None else read_table(upserts),
        options=tuple(options),
    )
