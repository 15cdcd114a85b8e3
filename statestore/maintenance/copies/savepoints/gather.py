"""Gathers the facts of a savepoint with rows. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.contents.rows import Contents, Layout, contents_at, layout_or_bytes
from statekeeper.statestore.format import logs
from statekeeper.statestore.format import names as checkpoint_names
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.copies import clones
from statekeeper.statestore.maintenance.copies.clones import CloneFacts
from statekeeper.statestore.maintenance.copies.savepoints.record import (
    Begun,
    StoreRows,
    is_whole,
    read_begun,
    read_finished,
)
from statekeeper.statestore.storage import Storage, read_or_none

Kind = tuple[int, str]
"""An operator, and the name of one of its stores."""


@dataclass(frozen=True, kw_only=True)
class RowsFacts:
    """A source at one batch, its schemas, and the destination.

    copied     the facts as for a clone
    contents   the stores at the batch, and their encoding
    layouts    the layout of the rows
    operators  the names of the operators; "" if unknown
    begun      the record of an earlier run in the destination
    finished   the stores that an earlier run has finished
    is_whole   the destination has a manifest, and all its files
    watermark_ms   the watermark with which the query continues after the batch
    late_watermark_ms  the watermark of the batch: it decides which rows of the next batch are late
    """

    copied: CloneFacts
    contents: Contents
    layouts: Mapping[Kind, Layout]
    operators: Mapping[int, str]
    begun: Begun | None
    finished: Mapping[StorePath, StoreRows]
    is_whole: bool
    watermark_ms: int
    late_watermark_ms: int


def gather(source: Storage, destination: Storage, *, batch: int | None = None, stopped: bool = False) -> RowsFacts:
    """Gather the facts for a batch, by default that of an earlier run, else as `copies.gather` chooses it.

    Raises as `copies.gather`, `contents_at` and `layout_or_bytes`.
    """
    begun = read_begun(destination)
    if batch is None and begun is not None and begun.source == source.url:
        batch = begun.batch
    copied = clones.gather(source, destination, batch=batch, stopped=stopped)
    contents = contents_at(source, copied.batch, any_encoding=True)
    assert contents is not None
    layouts: dict[Kind, Layout] = {}
    for store in sorted(contents.stores):
        if (store.operator, store.store) not in layouts:
            layouts[store.operator, store.store] = layout_or_bytes(contents, store)
    described = {
        operator: catalog.operator_at(source, operator, copied.batch)
        for operator in sorted({operator for operator, _ in layouts})
    }
    commit, offsets = checkpoint_names.commits(copied.batch), checkpoint_names.offsets(copied.batch)
    manifest = read_or_none(destination, names.MANIFEST) if names.MANIFEST in copied.existing else None
    return RowsFacts(
        copied=copied,
        contents=contents,
        layouts=layouts,
        operators={operator: found.name if found else "" for operator, found in described.items()},
        begun=begun,
        finished=read_finished(destination, contents.stores, copied.existing),
        is_whole=manifest is not None and is_whole(manifest, copied.existing),
        watermark_ms=logs.parse_commit(source.read(commit), commit).next_watermark_ms,
        late_watermark_ms=logs.parse_offsets(source.read(offsets), offsets).watermark_ms,
    )
