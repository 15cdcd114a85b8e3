"""Memory and requests by partitions and batches of a query."""

from __future__ import annotations

import argparse

from benchmarks import growth_of_maintenance
from benchmarks.measure import Table

SIDES = (growth_of_maintenance.tables,)
"""Functions that return tables."""


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    return [table for tables in SIDES for table in tables(options)]
