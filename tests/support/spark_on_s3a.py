"""Spark on a bucket, through its connector, and Statekeeper on the same bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
from pyspark.sql import SparkSession

from tests.support.native import Operator
from tests.support.remote_queries import ElsewhereQuery
from tests.support.s3_server import CREDENTIALS, S3Server


def connect(spark: SparkSession, server: S3Server) -> None:
    """Let Spark find the server under `s3a://`."""
    options = {
        "endpoint": server.endpoint,
        "endpoint.region": CREDENTIALS["region"],
        "access.key": CREDENTIALS["key"],
        "secret.key": CREDENTIALS["secret"],
        "path.style.access": "true",
    }
    for name, value in options.items():
        spark._jsc.hadoopConfiguration().set(f"fs.s3a.{name}", value)


def environment(server: S3Server) -> dict[str, str]:
    """Return the environment variables with which Statekeeper finds the server without a `statekeeper.toml`."""
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": CREDENTIALS["key"],
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret"],
        "AWS_REGION": CREDENTIALS["region"],
    }


class BucketQuery(ElsewhereQuery):
    """A query whose checkpoint is in its own bucket. Its input is on local disk."""

    def __init__(
        self, spark: SparkSession, folder: Path, operator: Operator, confs: Mapping[str, str], *, server: S3Server
    ) -> None:
        super().__init__(spark, folder, operator, confs)
        self.bucket = server.make_bucket()
        self.checkpoint = f"s3a://{self.bucket}/jobs/query/checkpoint"
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name=CREDENTIALS["region"],
            aws_access_key_id=CREDENTIALS["key"],
            aws_secret_access_key=CREDENTIALS["secret"],
        )
        self._objects: dict[str, dict[str, bytes]] = {}

    @property
    def keys(self) -> list[str]:
        """All keys of the bucket, and with them the empty objects by which Hadoop marks folders."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    @property
    def urls(self) -> tuple[str, str]:
        """As Spark writes it, and as everybody else does."""
        return (self.root, self.root.replace("s3a://", "s3://"))

    def forget(self, *paths: str) -> None:
        for path in paths:
            self._client.delete_object(Bucket=self.bucket, Key=f"jobs/query/checkpoint/{path}")

    def delete_bucket(self) -> None:
        for key in self.keys:
            self._client.delete_object(Bucket=self.bucket, Key=key)
        self._client.delete_bucket(Bucket=self.bucket)

    def _keep(self, name: str) -> None:
        self._objects[name] = {
            key: self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in self.keys
        }

    def _take_back(self, name: str) -> None:
        for key in self.keys:
            self._client.delete_object(Bucket=self.bucket, Key=key)
        for key, data in self._objects[name].items():
            self._client.put_object(Bucket=self.bucket, Key=key, Body=data)
