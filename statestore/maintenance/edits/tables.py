"""Tables that a person gives: Parquet, Arrow and CSV files, and the folders of Delta tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from statekeeper.statestore.errors import SchemaMismatch
from statekeeper.statestore.maintenance.edits.delta_table import LOG, read_delta_table
from statekeeper.statestore.maintenance.edits.goal import Edit

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
