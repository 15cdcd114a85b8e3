"""Metadata files of operators, and the schema file of their state.

state/<op>/_metadata/metadata     v1, then {operatorInfo, stateStoreInfo: [{storeName, ...}]}
state/<op>/_metadata/v2/<batch>   v2, the same with operatorPropertiesJson, and stateSchemaFilePaths for each store
                                  (absolute: wrong after a move; `families` parses the files)
state/<op>/0/_metadata/schema     UTF "v2", then key schema and value schema: int number of pieces, each piece as UTF
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from statekeeper.statestore.base.errors import RESTORE, CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format.java_io import Reader, utf
from statekeeper.statestore.format.names import MOST_PARTITIONS, is_store_name
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json, plain_number

AGGREGATION = "stateStoreSave"
LIMIT = "globalLimit"
_VERSION = re.compile(r"v[0-9]+")
_KNOW_IT = "nothing was written; upgrade Statekeeper"
_SCHEMA_FILE = re.compile(r"[0-9]+_[A-Za-z0-9-]+")
_CHUNK_CHARACTERS = 65_535 // 6
"""A piece of this length fits into `writeUTF` with any characters: a character beyond U+FFFF takes six bytes. Spark
counts UTF-16 units and cuts at twice this length; its reader joins pieces of any length."""


class UnknownColumnType(UnknownFormatVersion):
    """A column of a known file version has a type that this release does not decode."""


@dataclass(frozen=True, kw_only=True)
class StoreInfo:
    """One store of an operator.

    `schema_files`: the names of the files that describe its column families, oldest first; `schema_uris`: the absolute
    URIs where Spark reads them.
    """

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
    """Return the bytes of the metadata file, version 1."""
    body = {
        "operatorInfo": {"operatorId": metadata.operator, "operatorName": metadata.name},
        "stateStoreInfo": [
            {"storeName": s.name, "numColsPrefixKey": s.prefix_columns, "numPartitions": s.partitions}
            for s in metadata.stores
        ],
    }
    return b"v1\n" + json.dumps(body, separators=(",", ":")).encode()


@dataclass(frozen=True)
class OfTransformWithState:
    """What the metadata of a transformWithState say of its state.

    variables   name -> kind, such as `ListState`
    time_mode   the clock of its timers and times to live, such as `ProcessingTime`; None if it is not known
    """

    variables: Mapping[str, str]
    time_mode: str | None = None


def of_transform_with_state(data: bytes, path: str) -> OfTransformWithState:
    """Return the properties of transformWithState in the metadata of an operator. Other operators have none. Raises
    `CorruptFile`."""
    try:
        text = parsed_json(data.partition(b"\n")[2]).get("operatorPropertiesJson")
        properties = parsed_json(text) if text else {}
        variables = {
            str(one["stateName"]): str(one["stateVariableType"]) for one in properties.get("stateVariables", ())
        }
        mode = properties.get("timeMode")
        return OfTransformWithState(variables, None if mode is None else str(mode))
    except BAD_VALUES as error:
        raise CorruptFile(f"is not valid operator metadata: {error}", path=path, hint=RESTORE) from error


def parse_operator(data: bytes, path: str) -> OperatorMetadata:
    """Parse the metadata file. Raises `UnknownFormatVersion` for a version other than 1 and 2, and `CorruptFile`."""
    header, _, rest = data.partition(b"\n")
    if header not in (b"v1", b"v2"):
        raise not_known("operator metadata", header[:20].decode("utf-8", "replace"), "v1 and v2", path)
    try:
        body = parsed_json(rest)
        info = body["operatorInfo"]
        stores = tuple(
            StoreInfo(
                name=str(s["storeName"]),
                prefix_columns=int(s["numColsPrefixKey"]),
                partitions=int(s["numPartitions"]),
                schema_files=_schema_files(s),
                schema_uris=_schema_uris(s),
            )
            for s in body["stateStoreInfo"]
        )
        metadata = OperatorMetadata(plain_number(str(info["operatorId"])), str(info["operatorName"]), stores)
    except BAD_VALUES as error:
        raise CorruptFile(f"is not valid operator metadata: {error}", path=path, hint=RESTORE) from error
    if not metadata.stores:
        raise CorruptFile("names no store", path=path, hint=RESTORE)
    (name, times), *_ = Counter(store.name for store in metadata.stores).most_common(1)
    if times > 1:
        raise CorruptFile(f"names store {name[:80]!r} twice", path=path, hint=RESTORE)
    for store in metadata.stores:
        if not is_store_name(store.name) or not 0 < store.partitions <= MOST_PARTITIONS:
            raise CorruptFile(
                f"has the impossible store {store.name[:80]!r} with {store.partitions:,} partitions",
                path=path,
                hint=RESTORE,
            )
        if not all(map(_SCHEMA_FILE.fullmatch, store.schema_files)):
            raise CorruptFile(
                f"has impossible schema files {store.schema_files} of store {store.name!r}", path=path, hint=RESTORE
            )
    return metadata


def with_schema_uris(data: bytes, path: str, uri_of: Callable[[str, str], str]) -> bytes:
    """Replace the schema URIs in metadata of version 2, by store and file name; all other fields are unchanged. Raises
    as `parse_operator`."""
    parse_operator(data, path)
    header, _, rest = data.partition(b"\n")
    body = json.loads(rest)
    for store in body["stateStoreInfo"]:
        if store.get("stateSchemaFilePaths"):
            store["stateSchemaFilePaths"] = [uri_of(str(store["storeName"]), file) for file in _schema_files(store)]
    return header + b"\n" + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def has_one_partition(name: str, key_json: str | None) -> bool:
    """Return whether Spark runs an operator of this name in one partition, regardless of its metadata.

    This applies to a limit, and to an aggregation over all rows, whose key has no columns. `key_json`: the schema of
    its keys, None if it cannot be read.
    """
    return takes_all_rows(name, has_key_columns=key_json is None or not _has_no_columns(key_json))


def takes_all_rows(name: str, *, has_key_columns: bool) -> bool:
    """Return whether an operator of this name needs all rows in one partition: a limit, an aggregation over all rows."""
    return name == LIMIT or (name == AGGREGATION and not has_key_columns)


def _has_no_columns(schema_json: str) -> bool:
    try:
        return bool(parsed_json(schema_json)["fields"] == [])
    except BAD_VALUES:
        return False


def partitions_at(described: int, pinned: int | None, named: int | None, *, is_lone: bool) -> int | None:
    """Return the number of partitions of an operator at a batch; None if the sources contradict each other.

    `described`: from its metadata; `pinned`: from the offset log of the batch, if set; `named`: from the commit, in
    structure V2; `is_lone`: see `has_one_partition`. When Spark 4.2 repartitions a checkpoint (SPARK-54346), it writes
    a separate batch. From that batch on, offset logs have another number, and metadata of version 1 is unchanged.
    """
    if named is None:
        return 1 if is_lone else pinned or described
    return named if named in (described, pinned) or (is_lone and named == 1) else None


def with_partitions(data: bytes, path: str, partitions: int) -> bytes:
    """Return the metadata of an operator with another number of partitions; all other fields are unchanged. Raises as
    `parse_operator`."""
    parse_operator(data, path)
    header, _, rest = data.partition(b"\n")
    body = json.loads(rest)
    for store in body["stateStoreInfo"]:
        store["numPartitions"] = partitions
    return header + b"\n" + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def encode_schema(key_json: str, value_json: str) -> bytes:
    """Return the bytes of the schema file, version 2, from Spark's JSON of both struct types."""
    return utf("v2") + _chunks(key_json) + _chunks(value_json)


def parse_schema(data: bytes, path: str) -> tuple[str, str]:
    """Parse the key and value schema as JSON texts. Raises `UnknownFormatVersion` for a version other than 2, and
    `CorruptFile`."""
    reader = Reader(data, path)
    version = reader.utf("the version")
    if version != "v2":
        raise not_known("state schema", version[:20], "v2", path)
    key_json, value_json = chunked_text(reader), chunked_text(reader)
    require_end(reader)
    return key_json, value_json


def not_known(what: str, version: str, known: str, path: str) -> UnknownFormatVersion | CorruptFile:
    """Return the error for an unexpected version: of a later Spark release, or a damaged file without a version."""
    if _VERSION.fullmatch(version):
        return UnknownFormatVersion(
            f"has {what} version {version!r}, which is not supported (supported: {known})", path=path, hint=_KNOW_IT
        )
    start = f"starts with {version[:80]!r}" if version else "is empty, or its first line is empty"
    return CorruptFile(f"{start}, not with a valid version of {what}", path=path, hint=RESTORE)


def chunked_text(reader: Reader) -> str:
    """Read a text of any length, as in Spark's schema files: the number of pieces, and each as `writeUTF` writes it."""
    return "".join(reader.utf("a piece of the schema") for _ in range(_count(reader)))


def require_end(reader: Reader) -> None:
    """Raise `CorruptFile` if more bytes follow."""
    if reader.position != len(reader.data):
        raise CorruptFile(f"has extra bytes from byte {reader.position:,} on", path=reader.path)


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
        raise CorruptFile(f"declares {count:,} pieces of a schema, more than it can contain", path=reader.path)
    return count
