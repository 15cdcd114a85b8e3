"""The files of a migrated checkpoint besides its snapshots: schemas, the progress of sources, and offsets. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import moved
from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import SHUFFLE_PARTITIONS, parse_offsets
from statekeeper.statestore.format.operators import encode_schema, parse_operator, with_partitions, with_schema_uris
from statekeeper.statestore.maintenance.rewrites.migration.model import MigrationFacts, NewFile, SourceMap
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.state_root import operator_metadata
from statekeeper.statestore.storage.urls import as_spark_writes_it

_NO_POSITION = "-"
"""What Spark writes for a source without a position: it starts at its beginning."""


def files(
    facts: MigrationFacts, sources: SourceMap, partitions: int, location: str | None, binding: Binding | None
) -> Iterator[NewFile]:
    """Yield the files in the order in which they are written. `binding`: of a job root, whose own file names its id and is
    not among them. Raises `RefusedAsUnsafe` if the URL of the destination in Spark's form is unknown."""
    if binding is not None:
        yield from (NewFile(path=path, body=body) for path, body in operator_metadata(binding))
        for operator, store in enumerate(binding.stores):
            yield NewFile(path=names.state_schema(operator), body=encode_schema(store.key_json, store.value_json))
    for path, body in sorted(facts.described.items()):
        yield NewFile(path=_first(path), body=_metadata(facts, path, body, partitions, location))
    taken = {old: new for new, old in sources.sources.items() if old is not None}
    for path, entry in sorted(facts.sources.items()):
        _, folder, name = path.split("/", 2)
        # The folder is the id of the source, or its name if offset logs of v1 do not contain it: see `match`.
        if folder in taken or not (folder.isdecimal() or sources.dropped):
            yield NewFile(path=f"{names.SOURCES}/{taken.get(folder, folder)}/{name}", copied=entry)
    batch = facts.old.facts.stopped.batch
    assert batch is not None
    if facts.before is not None:
        yield NewFile(path=names.offsets(batch - 1), body=_offsets(facts, facts.before, batch - 1, sources, partitions))
    yield NewFile(path=names.offsets(batch), body=_offsets(facts, facts.old.facts.offsets, batch, sources, partitions))


def _first(path: str) -> str:
    """The path of an operator's metadata in a checkpoint whose first batch has it."""
    place = names.parse_operator_metadata(path)
    if place is None or place[1] < 0:
        return path
    return f"{names.operator_metadata_by_batch(place[0])}/0"


def _metadata(facts: MigrationFacts, path: str, body: bytes, partitions: int, location: str | None) -> bytes:
    if names.parse_operator_metadata(path) is None:
        return body
    body = with_partitions(body, path, partitions)
    former = moved.location_of(path, parse_operator(body, path))
    if former is None:
        return body
    where = location or as_spark_writes_it(facts.destination, former)
    if where is None:
        raise RefusedAsUnsafe(
            "contains URLs of state schemas, and the URL that Spark will use for the destination is unknown",
            path=path,
            hint="add --location with the checkpoint location of the changed query, for example hdfs://namenode/folder",
        )
    return with_schema_uris(body, path, partial(moved.schema_uri, where.rstrip("/"), path))


def _offsets(facts: MigrationFacts, text: str, batch: int, sources: SourceMap, partitions: int) -> bytes:
    """Return the offsets of a batch of the old query in the form and with the settings of the changed query."""
    old = parse_offsets(text.encode(), names.offsets(batch))
    header, head, *_ = facts.blueprint.facts.offsets.split("\n")
    body = json.loads(head)
    body["batchWatermarkMs"], body["batchTimestampMs"] = old.watermark_ms, old.timestamp_ms
    body["conf"] = {**body["conf"], SHUFFLE_PARTITIONS: str(partitions)}
    positions = old.by_source
    lines = []
    for new, before in sources.sources.items():
        position = _NO_POSITION if before is None else positions.get(before, _NO_POSITION)
        lines.append(position if header == "v1" else f"{new}:{position}")
    return "\n".join([header, json.dumps(body, separators=(",", ":"), ensure_ascii=False), *lines]).encode()
