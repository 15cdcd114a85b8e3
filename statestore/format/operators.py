"""What an operator says of itself: its metadata, and the schema file of its state.

state/<op>/_metadata/metadata     v1, then {operatorInfo, stateStoreInfo: [{storeName, ...}]}
state/<op>/_metadata/v2/<batch>   v2, the same with operatorPropertiesJson, and stateSchemaFilePaths for each store
                                  (absolute: wrong after a move; `families` reads the files)
state/<op>/0/_metadata/schema     UTF "v2", then key schema and value schema: int chunks, each chunk as UTF
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statestore.errors import CorruptFile, UnknownFormatVersion
from statestore.format.java_io import Reader, utf
from statestore.format.names import MOST_PARTITIONS, is_store_name
from statestore.format.untrusted import BAD_VALUES, parsed_json, plain_number

AGGREGATION = "stateStoreSave"
_LIMIT = "globalLimit"
_VERSION = re.compile(r"v[0-9]+")
_KNOW_IT = "a newer Statekeeper may know it; nothing was written"
_SCHEMA_FILE = re.compile(r"[0-9]+_[A-Za-z0-9-]+")
_CHUNK_CHARACTERS = 65_535 // 6
"""Each piece fits into `writeUTF` whatever its characters: those beyond U+FFFF take six bytes. Spark, which counts their
halves, cuts at twice as many; its reader joins pieces of any length."""


@dataclass(frozen=True)
class StoreInfo:
    """One store of an operator. `schema_files`: the names of the files that describe its column families, oldest first;
    `schema_uris`: where Spark looks for them."""

    name: str
    prefix_columns: int
    partitions: int
    schema_files: tuple[str, ...] = ()
    schema_uris: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorMetadata:
    """An operator and its stores."""

    operator: int
    name: str
    stores: tuple[StoreInfo, ...]


def encode_operator(metadata: OperatorMetadata) -> bytes:
    """The bytes of the metadata file, version 1."""
    body = {
        "operatorInfo": {"operatorId": metadata.operator, "operatorName": metadata.name},
        "stateStoreInfo": [
            {"storeName": s.name, "numColsPrefixKey": s.prefix_columns, "numPartitions": s.partitions}
            for s in metadata.stores
        ],
    }
    return b"v1\n" + json.dumps(body, separators=(",", ":")).encode()


def parse_operator(data: bytes, path: str) -> OperatorMetadata:
    """The content of the metadata file. Raises `UnknownFormatVersion` for another version than 1 and 2, `CorruptFile`."""
    header, _, rest = data.partition(b"\n")
    if header not in (b"v1", b"v2"):
        raise not_known("operator metadata", header[:20].decode("utf-8", "replace"), "v1 and v2", path)
    try:
        body = parsed_json(rest)
        info = body["operatorInfo"]
        stores = tuple(
            StoreInfo(
                str(s["storeName"]),
                int(s["numColsPrefixKey"]),
                int(s["numPartitions"]),
                _schema_files(s),
                _schema_uris(s),
            )
            for s in body["stateStoreInfo"]
        )
        metadata = OperatorMetadata(plain_number(str(info["operatorId"])), str(info["operatorName"]), stores)
    except BAD_VALUES as error:
        raise CorruptFile(f"operator metadata is not the JSON that it should be: {error}", path=path) from error
    if not metadata.stores or len({store.name for store in metadata.stores}) < len(metadata.stores):
        raise CorruptFile("describes no store, or one twice", path=path)
    for store in metadata.stores:
        if not is_store_name(store.name) or not 0 < store.partitions <= MOST_PARTITIONS:
            raise CorruptFile(f"impossible store {store.name[:80]!r} with {store.partitions:,} partitions", path=path)
        if not all(map(_SCHEMA_FILE.fullmatch, store.schema_files)):
            raise CorruptFile(f"impossible schema files {store.schema_files} of store {store.name!r}", path=path)
    return metadata


def with_schema_uris(data: bytes, path: str, uri_of: Callable[[str, str], str]) -> bytes:
    """Metadata of version 2 with other places for its schemas, by store and file name; all else stays. Raises as
    `parse_operator`."""
    parse_operator(data, path)
    header, _, rest = data.partition(b"\n")
    body = json.loads(rest)
    for store in body["stateStoreInfo"]:
        if store.get("stateSchemaFilePaths"):
            store["stateSchemaFilePaths"] = [uri_of(str(store["storeName"]), file) for file in _schema_files(store)]
    return header + b"\n" + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def has_one_partition(name: str, key_json: str | None) -> bool:
    """Whether Spark runs an operator of that name in one partition, however many its metadata says: a limit, and an
    aggregation over all rows, whose key has no columns. `key_json`: the schema of its keys, None when it cannot be read."""
    return name == _LIMIT or (name == AGGREGATION and key_json is not None and _has_no_columns(key_json))


def _has_no_columns(schema_json: str) -> bool:
    try:
        return bool(parsed_json(schema_json)["fields"] == [])
    except BAD_VALUES:
        return False


def partitions_at(described: int, pinned: int | None, named: int | None, *, is_lone: bool) -> int | None:
    """How many partitions an operator had at a batch; None when what is said of it does not go together.

    `described` by its metadata; `pinned` by the offset log of the batch, where that says it; `named` by the commit, in
    structure V2; `is_lone`: see `has_one_partition`. When Spark repartitions a checkpoint (SPARK-54346, in Spark 4.2), it
    makes a batch of its own, from which on offset logs pin another number, and leaves metadata of version 1 as it was.
    """
    if named is None:
        return 1 if is_lone else pinned or described
    return named if named in (described, pinned) or (is_lone and named == 1) else None


def encode_schema(key_json: str, value_json: str) -> bytes:
    """The bytes of the schema file, version 2, from Spark's JSON of both struct types."""
    return utf("v2") + _chunks(key_json) + _chunks(value_json)


def parse_schema(data: bytes, path: str) -> tuple[str, str]:
    """Key and value schema as JSON texts. Raises `UnknownFormatVersion` for another version than 2, `CorruptFile`."""
    reader = Reader(data, path)
    version = reader.utf("the version")
    if version != "v2":
        raise not_known("state schema", version[:20], "v2", path)
    key_json, value_json = chunked_text(reader), chunked_text(reader)
    require_end(reader)
    return key_json, value_json


def not_known(what: str, version: str, known: str, path: str) -> UnknownFormatVersion | CorruptFile:
    """The error for a file that begins with another version: of a later Spark, or with what is no version, damaged."""
    if _VERSION.fullmatch(version):
        return UnknownFormatVersion(f"{what} {version!r}: known is {known}", path=path, hint=_KNOW_IT)
    return CorruptFile(f"{what} begins with {version!r}, not with a version", path=path)


def chunked_text(reader: Reader) -> str:
    """A text of any length, as Spark's schema files hold it: how many pieces, and each as `writeUTF` writes it."""
    return "".join(reader.utf("a piece of the schema") for _ in range(_count(reader)))


def require_end(reader: Reader) -> None:
    """Raises `CorruptFile` when something follows."""
    if reader.position != len(reader.data):
        raise CorruptFile(f"bytes behind the end at {reader.position:,}", path=reader.path)


def _schema_files(store: dict[str, Any]) -> tuple[str, ...]:
    return tuple(uri.rpartition("/")[2] for uri in _schema_uris(store))


def _schema_uris(store: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(uri) for uri in store.get("stateSchemaFilePaths", ()))


def _chunks(text: str) -> bytes:
    pieces = [text[i : i + _CHUNK_CHARACTERS] for i in range(0, len(text), _CHUNK_CHARACTERS)]
    return struct.pack(">i", len(pieces)) + b"".join(utf(piece) for piece in pieces)


def _count(reader: Reader) -> int:
    count = reader.int32("the number of pieces")
    if not 0 <= count <= len(reader.data):
        raise CorruptFile(f"{count:,} pieces of a schema", path=reader.path)
    return count
