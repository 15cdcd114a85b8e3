"""What grows with a query's partitions and batches, and what stays flat: a table for each side."""

from __future__ import annotations

import argparse

from benchmarks import growth_of_maintenance
from benchmarks.measure import Table

SIDES = (growth_of_maintenance.tables,)
"""Each gives its own tables."""


def run(options: argparse.Namespace) -> list[Table]:
    """The benchmark."""
    return [table for tables in SIDES for table in tables(options)]
