"""Every verb rejects an unknown format with the name of the file, and writes nothing.

Each test changes files of a native checkpoint in `fixtures/checkpoints` to a format of a later Spark or of a plug-in.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.cli import main
from statekeeper.statestore.format.compression import blocks
from statekeeper.statestore.format.compression.lz4_java import BlockWriter
from tests.support.unpacked import unpacked

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
AGGREGATION, ZIPS, FAMILIES = "v2-aggregation", "v2-a-zip-for-each-version", "v2-transformWithState"
STATE_STORE = "spark.sql.streaming.stateStore."
Change = Callable[[bytes], bytes]


def with_version(header: str) -> Change:
    """Replace the first line, the version."""
    return lambda data: header.encode() + data[data.index(b"\n") :]


def with_conf(name: str, value: str) -> Change:
    """Set a setting of the state store in an offset log."""

    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        head = json.loads(lines[1])
        head["conf"][f"{STATE_STORE}{name}"] = value
        return b"\n".join([lines[0], json.dumps(head).encode(), *lines[2:]])

    return change


def with_bytes(old: bytes, new: bytes) -> Change:
    """Replace the first occurrence of these bytes."""

    def change(data: bytes) -> bytes:
        assert data.count(old) >= 1
        return data.replace(old, new, 1)

    return change


def inside_compression(change: Change) -> Change:
    """Change the decompressed bytes of a changelog, and compress them again."""

    def whole(data: bytes) -> bytes:
        out = io.BytesIO()
        writer = BlockWriter(out)
        writer.write(change(b"".join(blocks(data, "a changelog"))))
        writer.finish()
        return out.getvalue()

    return whole


def first_record_of_kind(kind: int) -> Change:
    """Change the kind of the first record of a changelog with typed records."""

    def change(plain: bytes) -> bytes:
        place = plain.index(b"]") + 1
        return plain[:place] + bytes([kind]) + plain[place + 1 :]

    return inside_compression(change)


def inside_the_zip(change: Change) -> Change:
    """Change the metadata in a snapshot."""

    def whole(data: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            for entry in old.infolist():
                body = old.read(entry)
                new.writestr(entry, change(body) if entry.filename == "metadata" else body)
        return out.getvalue()

    return whole


METADATA, BY_BATCH = "state/0/_metadata/metadata", "state/0/_metadata/v2/0"
SCHEMA, SCHEMAS = "state/0/0/_metadata/schema", "state/0/_stateSchema/default/*"
HEADS = "state/0/*/3_*.changelog"
OTHER_PROVIDER = "com.example.StateStoreProvider"
ALL = ("snapshot", "gc", "audit", "dump")
CASES = {
    "operator metadata": (AGGREGATION, METADATA, with_version("v3"), "operator metadata version 'v3'", ALL),
    "operator metadata of families": (FAMILIES, BY_BATCH, with_version("v3"), "operator metadata version 'v3'", ALL),
    "commits": (AGGREGATION, "commits/*", with_version("v4"), "log version v4", ALL),
    "offsets": (AGGREGATION, "offsets/*", with_version("v3"), "log version v3", ("snapshot", "gc", "dump")),
    "a state store": (AGGREGATION, "offsets/*", with_conf("providerClass", OTHER_PROVIDER), OTHER_PROVIDER, ALL),
    "a way to merge": (
        FAMILIES,
        "offsets/*",
        with_conf("rocksdb.mergeOperatorVersion", "3"),
        "mergeOperatorVersion=3",
        ALL,
    ),
    "an encoding": (
        AGGREGATION,
        "offsets/*",
        with_conf("encodingFormat", "arrow"),
        "encodes its rows as arrow",
        ("dump",),
    ),
    "a schema": (AGGREGATION, SCHEMA, with_bytes(b"v2", b"v9"), "state schema version 'v9'", ("dump",)),
    "a schema of families": (FAMILIES, SCHEMAS, with_bytes(b"v3", b"v9"), "state schema version 'v9'", ("dump",)),
    "a key encoder": (
        FAMILIES,
        SCHEMAS,
        with_bytes(b"NoPrefixKeyStateEncoderSpec", b"HashPrefixKeyEncoderSpec_99"),
        "HashPrefixKeyEncoderSpec_99",
        ("dump",),
    ),
    "a snapshot's metadata": (
        ZIPS,
        "state/0/*/*.zip",
        inside_the_zip(with_version("v3")),
        "snapshot metadata version b'v3'",
        ALL,
    ),
    "a changelog": (AGGREGATION, HEADS, inside_compression(with_bytes(b"v3", b"v9")), "changelog format v9", ALL),
    "a record": (FAMILIES, HEADS, first_record_of_kind(0x30), "unknown kind 0x30", ("snapshot", "audit", "dump")),
    "a codec": (AGGREGATION, HEADS, lambda data: b"BROTLI" + data, "which no codec of Spark writes", ALL),
}
VERBS = {
    "snapshot": ("--mode", "snapshots", "--all"),
    "gc": ("--mode", "full", "--apply", "--grace", "0s", "--retain", "1"),
    "audit": ("--deep",),
    "dump": (),
}


@pytest.mark.parametrize(
    ("what", "verb"), [(what, verb) for what, (*_, verbs) in CASES.items() for verb in verbs], ids=str
)
def test_unknown_formats_are_rejected_with_a_typed_error_and_nothing_is_written(
    tmp_path: Path, what: str, verb: str
) -> None:
    fixture, pattern, change, told, _ = CASES[what]
    checkpoint = unpacked(CHECKPOINTS / f"spark-4.2.0-{fixture}.zip", tmp_path)
    changed = [path for path in checkpoint.glob(pattern) if not path.name.startswith(".")]
    assert changed
    for path in changed:
        path.write_bytes(change(path.read_bytes()))
    before = written(checkpoint)
    scratch = [] if verb == "gc" else ["--scratch", str(tmp_path / "scratch")]
    done = CliRunner().invoke(main, [verb, str(checkpoint), *VERBS[verb], *scratch], env={"COLUMNS": "1000"})
    assert done.exit_code != 0, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert told in done.output
    assert any(str(path.relative_to(checkpoint)) in done.output for path in changed)
    assert written(checkpoint) == before


def written(checkpoint: Path) -> dict[Path, int]:
    """Return all files with their modification times, except the records of maintenance, which contain refusals."""
    files = (path for path in checkpoint.rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files if "_statekeeper" not in path.parts}
