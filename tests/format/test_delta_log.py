"""The log of a Delta table: commits add up to a table, and a checkpoint of the log has the same table."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import delta_log
from statekeeper.statestore.format.deletion_vectors import Descriptor, encode, encode_file
from statekeeper.statestore.format.delta_log import DataFile, DeltaTable, TableHistory

NOW_MS = 1_800_000_000_000
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us"))])


def file(name: str, rows: int = 10, **how: object) -> DataFile:
    return DataFile(path=f"part {name}.parquet", size_bytes=7, rows=rows, modified_ms=1, **how)  # type: ignore[arg-type]


def grown() -> DeltaTable:
    """A table whose first file has lost rows, and whose second file was removed."""
    _, [vector] = encode_file([np.array([1, 3])], uuid.uuid4())
    first, second = file("1", values={"k": "a/b c"}, stats={"nullCount": {"k": 0}}), file("2", values={"k": None})
    marked = DataFile(**{**vars(first), "vector": vector})
    commits = [
        [
            delta_log.protocol_action(SCHEMA, vectors=True),
            {
                "metaData": {
                    "id": "an id",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": "{}",
                    "partitionColumns": ["k"],
                    "configuration": {"a": "b"},
                    "createdTime": 3,
                }
            },
            {"txn": {"appId": "x", "version": 4, "lastUpdated": 5}},
            {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
            first.add(changes_data=True),
            second.add(changes_data=True),
        ],
        # In any order: an action replaces the vector of a file.
        [marked.add(changes_data=True), first.remove(NOW_MS, changes_data=True), {"txn": {"appId": "x", "version": 9}}],
        [second.remove(NOW_MS, changes_data=True), {"commitInfo": {"operation": "MERGE"}}],
    ]
    table = DeltaTable()
    for number, actions in enumerate(commits):
        data = delta_log.encode_commit(actions)
        path = delta_log.commit_path(number)
        table = table.after(delta_log.parse_commit(data, path), path)
    return table


def test_commits_add_up_to_a_table() -> None:
    table = grown()
    assert (table.version, table.live_rows, table.transaction("x"), table.transaction("y")) == (2, 8, 9, None)
    [left] = table.files.values()
    assert (left.path, left.values, left.stats) == ("part 1.parquet", {"k": "a/b c"}, {"nullCount": {"k": 0}})
    assert len(table.tombstones) == 2
    assert table.operations[-1] == (2, "MERGE")


def test_a_checkpoint_of_the_log_has_the_same_table() -> None:
    table = grown()
    data, pointer = delta_log.encode_checkpoint(table, NOW_MS)
    assert delta_log.parse_last_checkpoint(pointer) == 2
    again = delta_log.parse_checkpoint(data, 2)
    assert (again.version, again.files, again.domains) == (table.version, table.files, table.domains)
    assert again.transaction("x") == 9
    assert again.tombstones.keys() == table.tombstones.keys()
    assert {name: again.metadata[name] for name in table.metadata} == table.metadata
    later, _ = delta_log.encode_checkpoint(table, NOW_MS + delta_log.TOMBSTONE_MS)
    assert delta_log.parse_checkpoint(later, 2).tombstones == {}


def test_the_names_of_the_log_are_parsed() -> None:
    assert delta_log.parse_log_file(delta_log.commit_path(12)) == 12
    assert delta_log.parse_log_file(delta_log.checkpoint_path(12)) == 12
    for other in (delta_log.LAST_CHECKPOINT, "_delta_log/1.json", f"{12:020}.json", "_delta_log/x.crc"):
        assert delta_log.parse_log_file(other) is None


def test_damage_is_an_error_of_the_file() -> None:
    for data in (b"{", b"[1]\n", b'"x"\n'):
        with pytest.raises(CorruptFile, match="is not a commit"):
            delta_log.parse_commit(data, "a commit")
    with pytest.raises(CorruptFile, match="invalid action"):
        DeltaTable().after([{"add": {"path": "x"}}], "a commit")
    with pytest.raises(CorruptFile):
        delta_log.parse_checkpoint(b"PAR1", 3)
    with pytest.raises(CorruptFile):
        delta_log.parse_last_checkpoint(b"[]")
    assert delta_log.parse_last_checkpoint(b'{"version": 3, "parts": 2}') is None


def inline(*positions: int) -> dict[str, Any]:
    vector = encode(np.array(positions))
    return Descriptor(file=None, offset=0, size_bytes=len(vector), rows=len(positions), inline=vector).as_json()


def history(*commits: list[dict[str, Any]]) -> TableHistory:
    made = TableHistory(len(commits) - 1)
    for version in reversed(range(len(commits))):
        made.add(commits[version], version, delta_log.commit_path(version))
    return made


def action(kind: str, vector: dict[str, Any] | None = None) -> dict[str, Any]:
    of_file = {"path": "part-1.parquet", "size": 1, "modificationTime": 1, "dataChange": True}
    return {kind: {**of_file, **({"deletionVector": vector} if vector else {})}}


def test_a_file_whose_vector_in_the_action_was_replaced_is_live() -> None:
    """Both vectors are in the actions, so only their text tells them apart."""
    first, second = inline(1), inline(1, 2)
    found = history([action("add", first)], [action("remove", first), action("add", second)])
    [live] = found.files.values()
    assert live.file.vector is not None
    assert (live.file.vector.rows, found.last_versions) == (2, {"part-1.parquet": 1})
    table = DeltaTable()
    for actions in ([action("add", first)], [action("add", second), action("remove", first)]):
        table = table.after(actions, "a commit")
    assert table.files.keys() == {"part-1.parquet"}


def test_a_file_that_one_commit_removes_and_adds_is_live() -> None:
    found = history([action("add")], [action("remove"), action("add")])
    assert (len(found.files), found.last_versions) == (1, {"part-1.parquet": 1})


def test_a_file_is_removed_with_the_vector_that_the_log_has() -> None:
    """The offset is optional, and Spark has it in the identity of a file only if the log does."""
    _, [vector] = encode_file([np.array([1])], uuid.uuid4())
    raw = {name: value for name, value in vector.as_json().items() if name != "offset"}
    [live] = history([action("add", raw)]).files.values()
    assert live.remove(NOW_MS)["remove"]["deletionVector"] == raw
    assert live.file.vector is not None
    assert live.file.vector.unique_id == f"u{raw['pathOrInlineDv']}"
    assert vector.unique_id == f"u{raw['pathOrInlineDv']}@1"
    [of_checkpoint] = history([action("add", {**raw, "offset": None})]).files.values()
    assert of_checkpoint.remove(NOW_MS)["remove"]["deletionVector"] == raw
