"""An error of a Python worker reaches the driver as text."""

from __future__ import annotations

from pyspark.errors import PythonException

from statekeeper.pipelines.batch.spark import named
from statekeeper.statestore.base import errors
from statekeeper.statestore.base.errors import LineageCeiling
from statekeeper.statestore.base.messages import of_job

TRACEBACK = f"""Traceback (most recent call last):
{errors.__name__}.LineageCeiling: state/0/0: is too long -> run: statekeeper snapshot ROOT --all. Then start the query again
"""


def test_an_error_of_a_worker_keeps_its_type_and_its_command_names_the_root() -> None:
    error = named(PythonException(TRACEBACK), lambda text: of_job(text, "s3://bucket/a job/state", "s3://bucket/c"))
    assert type(error) is LineageCeiling
    assert "statekeeper snapshot 's3://bucket/a job/state' --all." in str(error)
