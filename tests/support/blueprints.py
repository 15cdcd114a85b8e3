"""Checkpoints of Spark whose schemas are changed, so that they serve as blueprints of changed queries without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from statekeeper.statestore.format import names, operators
from statekeeper.statestore.format.logs import ENCODING
from statekeeper.statestore.format.sparks import MERGES

Fields = list[dict[str, Any]]


def column(name: str, kind: str, *, nullable: bool = True, watermark_ms: int | None = None) -> dict[str, Any]:
    """A column in Spark's JSON."""
    metadata = {} if watermark_ms is None else {"spark.watermarkDelayMs": watermark_ms}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def change_schema(
    checkpoint: Path,
    *,
    keys: Callable[[Fields], Fields] = lambda fields: fields,
    values: Callable[[Fields], Fields] = lambda fields: fields,
    operator: int = 0,
    store: str = names.DEFAULT_STORE,
) -> None:
    """Change the schema of a store in a checkpoint on local disk."""
    path = checkpoint / names.store_schema(operator, store)
    texts = operators.parse_schema(path.read_bytes(), path.name)
    changed = []
    for text, change in zip(texts, (keys, values), strict=True):
        schema = json.loads(text)
        changed.append(json.dumps({**schema, "fields": change(schema["fields"])}))
    replace(path, operators.encode_schema(*changed))


def with_values(*columns: dict[str, Any]) -> Callable[[Fields], Fields]:
    """Return a change to these columns."""
    return lambda _: list(columns)


def set_conf(checkpoint: Path, **confs: str) -> None:
    """Set confs in all offset logs. Dots in their names are written as `__`."""
    for path in (checkpoint / names.OFFSETS).iterdir():
        if not path.name.startswith("."):
            header, head, *rest = path.read_text().split("\n")
            body = json.loads(head)
            body["conf"] |= {name.replace("__", "."): value for name, value in confs.items()}
            replace(path, "\n".join([header, json.dumps(body), *rest]).encode())


def as_of_spark_3_5(checkpoint: Path) -> None:
    """Remove what Spark 3.5 does not write: metadata of operators, and the settings of later releases."""
    for path in (checkpoint / names.STATE).glob("*/_metadata"):
        shutil.rmtree(path)
    for path in (checkpoint / names.OFFSETS).iterdir():
        if not path.name.startswith("."):
            header, head, *rest = path.read_text().split("\n")
            body = json.loads(head)
            body["conf"] = {name: value for name, value in body["conf"].items() if name not in (ENCODING, MERGES)}
            replace(path, "\n".join([header, json.dumps(body), *rest]).encode())


def set_sources(checkpoint: Path, positions: Sequence[str]) -> None:
    """Set the positions of the sources in all offset logs."""
    for path in (checkpoint / names.OFFSETS).iterdir():
        if not path.name.startswith("."):
            replace(path, "\n".join([*path.read_text().split("\n")[:2], *positions]).encode())


def replace(path: Path, body: bytes) -> None:
    """Write a file of a checkpoint anew, without Hadoop's hidden checksum."""
    path.write_bytes(body)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
