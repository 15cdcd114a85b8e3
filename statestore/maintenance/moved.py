"""Detect moved or copied checkpoints: metadata of operators with column families contains absolute URIs of state schemas,
which Spark reads. Facts for audit and repair.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.format import names
from statestore.format.operators import OperatorMetadata
from statestore.storage.urls import Locality, locality


@dataclass(frozen=True)
class Moved:
    """Metadata at `path` refers to a schema outside its root. `location`: the URL of the former root; None if the URI is
    not that of a schema of this checkpoint."""

    path: str
    uri: str
    location: str | None
    locality: Locality


def moved(root: str, path: str, metadata: OperatorMetadata) -> Moved | None:
    """Return the first schema URI outside the root; None if there is none."""
    place = names.parse_operator_metadata(path)
    operator = metadata.operator if place is None else place[0]
    for store in metadata.stores:
        for file, uri in zip(store.schema_files, store.schema_uris, strict=True):
            inside = f"/{names.family_schemas(operator, store.name, file)}"
            if not uri.endswith(inside):
                return Moved(path, uri, None, Locality.ELSEWHERE)
            location = uri.removesuffix(inside)
            found = locality(root, location)
            if found is not Locality.HERE:
                return Moved(path, uri, location, found)
    return None
