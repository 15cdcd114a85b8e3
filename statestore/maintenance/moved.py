"""Checkpoints that were moved or copied: the metadata of operators with column families names the state schemas by absolute
URIs, and Spark reads them there. Facts for the audit and for the repair.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.format import names
from statestore.format.operators import OperatorMetadata
from statestore.storage.urls import Locality, locality


@dataclass(frozen=True)
class Moved:
    """Metadata at `path` names a schema outside of its root. `location`: the root in its words, None where the URI has
    another form than those of this checkpoint."""

    path: str
    uri: str
    location: str | None
    locality: Locality


def moved(root: str, path: str, metadata: OperatorMetadata) -> Moved | None:
    """Whether an operator's metadata names places outside of the root; the first of them."""
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
