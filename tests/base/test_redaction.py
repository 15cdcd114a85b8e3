"""Secrets do not appear in output and logs."""

from __future__ import annotations

import pickle
import traceback

import pytest

from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.maintenance.verbs.config import Policies, Root
from statekeeper.statestore.storage import StorageSpec, open_storage

SECRET = "hunter2/with+signs"

TEXTS = [
    f"s3://AKIA123:{SECRET}@bucket/folder",
    "abfss://c@a.dfs.core.windows.net/f?sv=2024&sig=hunter2%2Fwith&se=1",
    "webhdfs://namenode:9870/jobs?delegation=hunter2",
    "Max retries exceeded with url: /webhdfs/v1/f?op=OPEN&delegation=hunter2&offset=0 (Caused by x)",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2==;EndpointSuffix=core.windows.net",
    "https://bucket.s3/x?X-Amz-Credential=hunter2&X-Amz-Signature=hunter2",
    "http://minio:hunter2@127.0.0.1:9000",
]
PLAIN = [
    "webhdfs://one:9870,two:9870/jobs/orders@home",
    "webhdfs://namenode:9870/jobs@home",
    "abfss://container@account.dfs.core.windows.net/orders",
    "http://127.0.0.1:9000/bucket",
    "changelog 812 of store 0/17 is missing -> statekeeper rewind ROOT --to-batch 810",
    "token: the one of the sink",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_in_a_text_is_masked(text: str) -> None:
    assert "hunter2" not in redacted(text)
    assert "***" in redacted(text)


@pytest.mark.parametrize("text", PLAIN)
def test_a_text_without_a_secret_is_unchanged(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_an_error_shows_no_secret_in_any_output(text: str) -> None:
    error = StorageError(text, path=text, hint=text)
    for one in (error, pickle.loads(pickle.dumps(error))):
        shown = f"{one} {one!r} {one.args} {''.join(traceback.format_exception(one))}"
        assert "hunter2" not in shown


@pytest.mark.parametrize("url", [*TEXTS[:3], TEXTS[6].replace("http", "s3")])
def test_a_url_with_a_secret_is_rejected_without_showing_it(url: str) -> None:
    with pytest.raises(StorageError, match="give credentials as storage options") as refused:
        open_storage(url)
    assert "hunter2" not in str(refused.value)


def test_the_description_of_a_root_shows_no_options_and_no_secret() -> None:
    spec = StorageSpec(TEXTS[0], (("secret", SECRET),))
    shown = f"{spec!r} {Root('orders', spec, Policies())!r}"
    assert SECRET not in shown
    assert "bucket/folder" in shown
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_an_error_shows_control_characters_of_a_file_as_escapes() -> None:
    planted = "\x1b]0;owned\x07\x1b[2Jclean\u202e\x9b31m\ud800"
    error = StorageError(f"names {planted}", path=planted, hint=planted)
    for text in (str(error), str(pickle.loads(pickle.dumps(error)))):
        assert text.isprintable()
        assert text.count("\\x1b]0;owned") == 3


def test_a_text_of_any_language_is_unchanged_and_is_one_line() -> None:
    text = "überzählig zwei\u00a0漢字\u3000\\n"
    assert printable(text) == text
    assert printable("one\r\n\ttwo\u2028\udcff\ufeff") == "one\\r\\n\\ttwo\\u2028\\xff\\ufeff"
