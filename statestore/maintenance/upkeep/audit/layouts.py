"""Read the state schemas of a native checkpoint. Spark's state reader requires them, and a restart compares the query with
them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.format.families import (
    Family,
    hdfs_backed_family,
    parse_families,
    plain_family,
    undescribed_prefix,
)
from statekeeper.statestore.format.operators import OperatorMetadata, StoreInfo
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit.facts import Layout, StoreKind, attempt
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True)
class _Wanted:
    """A store whose layout is read. `is_described`: whether the operator has metadata."""

    operator: int
    info: StoreInfo
    is_described: bool
    provider: Provider


def layouts(
    storage: Storage,
    described: Mapping[int, OperatorMetadata | FileProblem],
    paths: Collection[str],
    provider: Provider,
) -> dict[StoreKind, Layout | FileProblem]:
    """Return the layout of each store, which is the same for all partitions. `paths`: the existing files. One request for
    each schema file. Raises `StorageError`."""
    found: dict[StoreKind, Layout | FileProblem] = {}
    for operator, metadata in described.items():
        for info in metadata.stores if isinstance(metadata, OperatorMetadata) else ():
            wanted = _Wanted(operator, info, bool(isinstance(metadata, OperatorMetadata) and metadata.name), provider)
            found[operator, info.name] = _layout(storage, wanted, paths)
    return found


def _layout(storage: Storage, wanted: _Wanted, paths: Collection[str]) -> Layout | FileProblem:
    info = wanted.info
    if not info.schema_files:
        path = names.store_schema(wanted.operator, info.name)
        return attempt(path, partial(_plain, storage, path, wanted)) if path in paths else _missing(path)
    every = [names.family_schemas(wanted.operator, info.name, file) for file in info.schema_files]
    read = [attempt(path, partial(_families, storage, path)) if path in paths else _missing(path) for path in every]
    # The newest schema describes all families; Spark reads the others for older batches.
    return next((one for one in read if isinstance(one, FileProblem)), read[-1])


def _missing(path: str) -> FileProblem:
    return FileProblem(path, Flaw.MISSING, "is missing")


def _families(storage: Storage, path: str) -> Layout:
    return Layout(path, {name: _lenient(family) for name, family in parse_families(storage.read(path), path).items()})


def _plain(storage: Storage, path: str, wanted: _Wanted) -> Layout:
    key_json, value_json = operators.parse_schema(storage.read(path), path)
    if wanted.provider is Provider.HDFS_BACKED:
        return Layout(path, {None: _lenient(hdfs_backed_family(key_json, value_json, path))})
    prefix = wanted.info.prefix_columns if wanted.is_described else undescribed_prefix(key_json, value_json)
    return Layout(path, {None: _lenient(plain_family(key_json, value_json, prefix, path))})


def _lenient(family: Family) -> Family:
    """Make all fields nullable: Spark does not enforce non-null fields, so a null is not corruption."""
    return replace(family, key=_nullable(family.key), value=_nullable(family.value))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])
