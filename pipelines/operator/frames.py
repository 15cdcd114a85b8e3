"""Conversion of Arrow tables to pandas frames without loss.

pandas' default dtypes lose values: int64 with a null becomes float64 and is rounded beyond 2**53, NaN and null become the
same, nested columns become objects. So each column gets a dtype with a mask of its own:

    integers, floats, bool      pandas' nullable dtypes (Int64, Float64, boolean)
    string                      pandas' string dtype on Arrow
    all others                  pandas.ArrowDtype

`results` converts in the other direction.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pyarrow as pa


def to_pandas(table: pa.Table) -> Any:
    """Return the table as a DataFrame whose columns keep each value, with NaN and null apart."""
    return table.to_pandas(types_mapper=_dtype, ignore_metadata=True)


def _dtype(kind: pa.DataType) -> Any:
    import pandas as pd

    return _nullable_dtypes().get(kind) or pd.ArrowDtype(kind)


@functools.cache
def _nullable_dtypes() -> Mapping[pa.DataType, Any]:
    # Imported by the first frame: a job with Arrow tables does not need pandas.
    import pandas as pd

    text = pd.StringDtype("pyarrow")
    return {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.float32(): pd.Float32Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
        pa.string(): text,
        pa.large_string(): text,
    }
