"""A test of the operator in silent_sensors.py. Copy it next to the operator and run it with pytest."""

from __future__ import annotations

# --8<-- [start:test]
from datetime import UTC, datetime

from silent_sensors import OPERATOR

from statekeeper.pipelines import OperatorHarness


def noon(minute: int) -> datetime:
    return datetime(2026, 1, 1, 12, minute, tzinfo=UTC)


def test_a_silent_sensor_is_reported_once() -> None:
    with OperatorHarness(OPERATOR) as harness:
        first = harness.batch([{"sensor": "a", "at": noon(0), "value": 20.5}])
        assert first.timers.to_pylist() == [{"sensor": "a", "at": datetime(2026, 1, 1, 13, tzinfo=UTC)}]
        harness.batch([{"sensor": "b", "at": datetime(2026, 1, 1, 13, 10, tzinfo=UTC), "value": 1.0}])
        # The watermark is 13:00 now, ten minutes before the newest reading.
        [silent] = harness.batch().output.to_pylist()
        assert silent == {"sensor": "a", "silent_since": noon(0), "last_value": 20.5}
        assert harness.batch().output.num_rows == 0


# --8<-- [end:test]
