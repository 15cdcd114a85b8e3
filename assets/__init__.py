"""Maintenance in Dagster: the assets, checks, sensors, schedules and jobs.

    streaming_query, commit_log -> snapshot -> lineage -> retention -> fleet_health        state_store (ledger)

The modules are thin adapters. Facts and decisions come from `statestore.maintenance`, which the command line also uses.
Dagster's history is a record: maintenance does not depend on it, and it can be deleted.

Modules with decorated functions omit `from __future__ import annotations`: Dagster evaluates the annotations of their
parameters and rejects strings.
"""
