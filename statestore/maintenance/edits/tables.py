"""Tables that a person gives: Parquet, Arrow and CSV files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from statestore.errors import SchemaMismatch

_HINT = "give a .parquet, .arrow, .feather or .csv file"


def read_table(path: str) -> pa.Table:
    """Read a table. The columns of a CSV file are texts; an empty text without quotes is null.

    Raises `SchemaMismatch` for a file that is missing, damaged or of another format.
    """
    place = Path(path)
    try:
        match place.suffix.lower():
            case ".csv":
                return _csv(place)
            case ".arrow" | ".feather" | ".ipc":
                return pyarrow.feather.read_table(place)
            case ".parquet":
                return pyarrow.parquet.read_table(place)
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
