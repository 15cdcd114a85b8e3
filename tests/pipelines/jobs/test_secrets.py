"""Secrets of a job are not shown."""

from __future__ import annotations

from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.resources.notifier import Notifier


def test_a_sink_shows_no_storage_options() -> None:
    options = {"AWS_SECRET_ACCESS_KEY": "hunter2"}
    sink = DeltaSink("s3://key:hunter2@bucket/table", storage_options=options)
    assert "hunter2" not in f"{sink!r} {sink}"
    assert "bucket/table" in repr(sink)
    assert sink.storage_options == options


def test_a_notifier_shows_no_webhook() -> None:
    assert "hooks" not in repr(Notifier(webhook="https://hooks.example.com/services/T0/B0/x"))
