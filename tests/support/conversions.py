"""Conversions of the checkpoints of real queries between Spark's state store providers."""

from __future__ import annotations

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.provider import PROVIDER, Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import HERE, NativeQuery
from tests.support.twins import statekeeper

ONLY_ROCKSDB = ("join 3", "join 4", "transformWithState")
BOTH = [name for name in HERE if name not in ONLY_ROCKSDB]
"""The operators that both providers support."""


def of(provider: Provider) -> dict[str, str]:
    """The confs of a query with this provider, in structure V1."""
    return {PROVIDER: provider.class_name, **Structure.V1.conf}


def convert(query: NativeQuery, to: Provider, structure: Structure = Structure.V1) -> int:
    """Convert the checkpoint, configure the query for it, and return the batch that the conversion appends."""
    options = ("--apply", "--confirm-stopped", "--scratch", str(query.folder), "--for-spark", "4.2")
    statekeeper("convert", query.root, "--to", to.option, "--structure", structure.value, *options)
    query.confs = {**query.confs, **of(to), **structure.conf}
    batch = catalog.newest_batch(open_storage(query.root))
    assert batch is not None
    return batch
