"""Unit tests of the operator in `stateful_operator.py`, without Spark and Java.

pytest test_stateful_operator.py
"""

from __future__ import annotations

# --8<-- [start:tests]
from collections.abc import Iterator

import pytest
from stateful_operator import OPERATOR

from statekeeper.pipelines import OperatorHarness


@pytest.fixture
def harness() -> Iterator[OperatorHarness]:
    with OperatorHarness(OPERATOR) as harness:
        yield harness


def test_the_orders_of_a_customer_are_added_up_over_batches(harness: OperatorHarness) -> None:
    harness.batch([{"customer": "a", "id": 1, "amount": 1.0}, {"customer": "b", "id": 2, "amount": 2.0}])
    result = harness.batch([{"customer": "a", "id": 3, "amount": 5.0}])
    assert result.output.to_pylist() == [{"customer": "a", "orders": 2, "total": 6.0}]
    assert result.state.to_pylist() == [
        {"customer": "a", "orders": 2, "total": 6.0},
        {"customer": "b", "orders": 1, "total": 2.0},
    ]


def test_a_null_amount_counts_as_an_order(harness: OperatorHarness) -> None:
    result = harness.batch([{"customer": "a", "id": 1, "amount": 1.0}, {"customer": "a", "id": 2}])
    assert result.output.to_pylist() == [{"customer": "a", "orders": 2, "total": 1.0}]


# --8<-- [end:tests]
