"""Megabytes that the JVM's own codecs compressed are read."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.compression import blocks
from statekeeper.statestore.store.loading.changelogs import readable

pytestmark = pytest.mark.spark

CODECS = [
    ("lz4", {}),
    ("lz4", {"lz4.blockSize": "4m"}),
    ("zstd", {}),
    ("zstd", {"zstd.level": "9", "zstd.workers": "2"}),
    ("snappy", {}),
    ("snappy", {"snappy.blockSize": "1m"}),
    ("lzf", {}),
    ("lzf", {"lzf.parallel.enabled": "true"}),
]


def store_rows(count: int, random: np.random.Generator) -> bytes:
    """Records as of a store: keys of a bigint, values of two."""
    keys, totals = random.integers(0, 2**40, count).tolist(), random.integers(-1000, 1000, count).tolist()
    rows = zip(keys, totals, strict=True)
    return b"".join(struct.pack(">i8xqi8xqq", 16, key, 24, n, total) for n, (key, total) in enumerate(rows))


@pytest.fixture(scope="module")
def plain() -> bytes:
    """Rows, noise, zeros, text, and noise with repetitions near and far."""
    random = np.random.default_rng(11)
    noise = random.bytes(1 << 20)
    repeated = b"".join(noise[at : at + 1000] * 2 for at in random.integers(0, 5000, 300))
    text = b" ".join(b"%d bottles of beer on the wall," % number for number in range(30_000))
    return b"".join([store_rows(30_000, random), noise, bytes(1 << 20), text, repeated])


@pytest.mark.parametrize(("name", "conf"), CODECS, ids=str)
def test_megabytes_compressed_by_a_jvm_codec_are_read(
    spark: SparkSession, plain: bytes, tmp_path: Path, name: str, conf: dict[str, str]
) -> None:
    jvm = spark._jvm
    spark_conf = spark.sparkContext._jsc.sc().conf().clone()
    for key, value in conf.items():
        spark_conf.set(f"spark.io.compression.{key}", value)
    (tmp_path / "plain").write_bytes(plain)
    packed = tmp_path / "packed"
    codec = jvm.org.apache.spark.io.CompressionCodec.createCodec(spark_conf, name)
    stream = codec.compressedOutputStream(jvm.java.io.FileOutputStream(str(packed)))
    jvm.java.nio.file.Files.copy(jvm.java.io.File(str(tmp_path / "plain")).toPath(), stream)
    stream.close()
    data = readable(packed)
    assert len(data) < len(plain) * 3 / 4
    assert b"".join(blocks(data, "a.changelog")) == plain
    # Behind a cut in the middle of a block comes nothing.
    with pytest.raises(CorruptFile, match=r"a\.changelog"):
        list(blocks(packed.read_bytes()[:-1], "a.changelog"))
