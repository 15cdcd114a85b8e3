"""Figures that a job records for its readers."""

from __future__ import annotations

import json

import pytest

from statekeeper.statestore.format import names
from statekeeper.statestore.root.attempts import metrics_at
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.storage.query_metrics import Prices, QueryMetrics

METRICS = QueryMetrics(
    batches=3,
    seconds=60.0,
    writes=9,
    reads=4,
    hedges_sent=2,
    hedges_won=1,
    record_bytes=1000,
    members=8,
    record_milliseconds=(1.0, 2.0, 3.0),
    uploaded_bytes=200,
    early_bytes=160,
)
ATTEMPT = "00000000-0000-4000-8000-000000000000"


def test_figures_are_equal_after_a_round_trip():
    assert QueryMetrics.parse(json.loads(json.dumps(METRICS.as_json()))) == METRICS


def test_a_day_costs_as_many_requests_per_second():
    assert METRICS.dollars_a_day(Prices(per_1000_writes=1.0, per_1000_reads=0.5)) == pytest.approx(1440 * 0.011)
    assert QueryMetrics(batches=0, seconds=0.0, writes=5).dollars_a_day(Prices()) == 0.0


def test_the_early_share_is_unknown_without_uploads():
    assert METRICS.early_share == 0.8
    assert QueryMetrics(batches=1, seconds=1.0).early_share is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        7,
        [],
        {},
        {**METRICS.as_json(), "batches": "3"},
        {**METRICS.as_json(), "batches": True},
        {**METRICS.as_json(), "seconds": float("nan")},
        {**METRICS.as_json(), "writes": -1},
        {**METRICS.as_json(), "record_milliseconds": [1.0, 2.0]},
        {**METRICS.as_json(), "record_milliseconds": [1.0, 2.0, "3"]},
    ],
)
def test_invalid_figures_are_not_shown(body):
    assert QueryMetrics.parse(body) is None


def test_figures_of_a_later_release_are_left_out():
    body = {**json.loads(json.dumps(METRICS.as_json())), "another": {"figure": 1}}
    assert QueryMetrics.parse(body) == METRICS


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"metrics": 7}'])
def test_a_damaged_record_has_no_figures(tmp_path, body):
    storage = open_storage(str(tmp_path))
    storage.create(names.pending(3, ATTEMPT), body)
    assert metrics_at(storage, 3) is None
