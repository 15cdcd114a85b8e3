"""Detect moved or copied checkpoints: metadata of operators with column families contains absolute URIs of state schemas,
which Spark reads. Facts for audit and repair.
"""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.format import names
from statekeeper.statestore.format.operators import OperatorMetadata
from statekeeper.statestore.storage.urls import Locality, locality


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


def schema_uri(location: str, path: str, store: str, file: str) -> str:
    """Return the URI of a schema file in a root at `location`, for the operator whose metadata is at `path`."""
    place = names.parse_operator_metadata(path)
    assert place is not None
    return f"{location}/{names.family_schemas(place[0], store, file)}"


def location_of(path: str, metadata: OperatorMetadata) -> str | None:
    """Return the URL that the schema URIs of an operator's metadata give its root; None if it has none."""
    for store in metadata.stores:
        for file, uri in zip(store.schema_files, store.schema_uris, strict=True):
            return uri.removesuffix(schema_uri("", path, store.name, file))
    return None
