"""The spellings of a root's URL."""

from __future__ import annotations

import pytest

from statekeeper.statestore.storage import canonical, open_storage


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("s3a://bucket/jobs/orders", "s3://bucket/jobs/orders"),
        ("s3a://bucket/jobs/orders/", "s3://bucket/jobs/orders"),
        ("S3A://Bucket/Jobs", "s3://Bucket/Jobs"),
        ("s3://bucket", "s3://bucket"),
        ("abfs://c@account.dfs.core.windows.net/jobs/", "abfss://c@account.dfs.core.windows.net/jobs"),
        ("gs://bucket/jobs", "gs://bucket/jobs"),
        ("webhdfs://one:9870,two:9870/jobs/", "webhdfs://one:9870,two:9870/jobs"),
        ("file:///jobs/orders", "file:///jobs/orders"),
        ("/jobs/orders/", "/jobs/orders/"),
        ("jobs", "jobs"),
        ("", ""),
    ],
)
def test_one_root_has_one_url(written: str, meant: str) -> None:
    assert canonical(written) == meant
    assert canonical(meant) == meant


def test_each_spelling_of_a_root_is_printed_the_same() -> None:
    options = {"key": "a", "secret": "b"}
    urls = ("s3://bucket/jobs", "s3a://bucket/jobs", "s3a://bucket/jobs/")
    assert {open_storage(url, options=options).url for url in urls} == {"s3://bucket/jobs"}
