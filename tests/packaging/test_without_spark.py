"""The tests of the library run in an environment without PySpark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
import pytest
sys.exit(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_without_pyspark_only_the_test_modules_that_import_it_are_skipped() -> None:
    files = [
        "tests/checkpoint/test_lineage.py",
        "tests/maintenance/verbs/test_config.py",
        "tests/maintenance/rewrites/whole_stores/test_convert.py",
    ]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SPARK, *files], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_convert.py" in done.stdout
    assert "1 skipped" in done.stdout
    assert " passed" in done.stdout
