"""Delta tables that a person gives. The package `deltalake` reads them: it is optional, and is imported only here."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from statekeeper.statestore.errors import SchemaMismatch, UnsupportedEnvironment

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
            hint="run: pip install 'statekeeper[delta]'; or write its rows to a Parquet file",
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
