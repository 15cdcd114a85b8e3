"""What our reader of zips accepts, Spark unpacks to the same files: Spark reads a zip from its first byte on."""

from __future__ import annotations

import io
import shutil
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from tests.fixtures.write_checkpoints import FOLDER
from tests.support.unpacked import unpacked

pytestmark = pytest.mark.spark

_HEADER_BYTES, _LENGTHS_AT, _DESCRIPTOR_BYTES = 30, 26, 16


@pytest.mark.parametrize("is_ours", [False, True], ids=["of-spark", "of-statekeeper"])
def test_spark_unpacks_the_same_files_from_each_damaged_zip_that_we_accept(
    spark: SparkSession, tmp_path: Path, is_ours: bool
) -> None:
    checkpoint = unpacked(FOLDER / "spark-4.2.0-v2-a-zip-for-each-version.zip", tmp_path)
    path = next(checkpoint.glob("state/**/*.zip"))
    body = path.read_bytes()
    if is_ours:
        body = encode_snapshot(read_snapshot(body, path.name))
    expected = _unpacked_by_spark(spark, body, tmp_path)
    assert expected is not None
    assert set(read_snapshot(body, path.name).files) | {"metadata"} == set(expected)
    rejected = tries = 0
    for place in _headers(body):
        damaged = bytearray(body)
        damaged[place] ^= 1 << place % 8
        tries += 1
        try:
            read_snapshot(bytes(damaged), path.name)
        except CorruptFile:
            rejected += 1
        else:
            assert _unpacked_by_spark(spark, bytes(damaged), tmp_path) == expected, place
    assert 0 < rejected < tries


def _headers(body: bytes) -> Iterator[int]:
    """The places of the headers, and of the sixteen bytes before each, which in Spark's zips are those of the last file."""
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        for entry in archive.infolist():
            start = entry.header_offset
            lengths = struct.unpack_from("<HH", body, start + _LENGTHS_AT)
            yield from range(max(start - _DESCRIPTOR_BYTES, 0), start + _HEADER_BYTES + sum(lengths))


def _unpacked_by_spark(spark: SparkSession, body: bytes, folder: Path) -> dict[str, bytes] | None:
    """Let Spark unpack a zip. Return name -> content of each file, or None if Spark raises an error."""
    jvm: Any = spark._jvm
    path, into = folder / "damaged.zip", folder / "unpacked"
    path.write_bytes(body)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    of_path = jvm.org.apache.hadoop.fs.Path(path.as_uri())
    files = of_path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    try:
        jvm.org.apache.spark.util.Utils.unzipFilesFromFile(files, of_path, jvm.java.io.File(str(into)))
    except Py4JJavaError:
        return None
    return {found.name: found.read_bytes() for found in into.iterdir()}
