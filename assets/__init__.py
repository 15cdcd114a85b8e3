"""Maintenance as Dagster sees it: what there is, what is done about it and when, and how it is doing.

    streaming_query, commit_log -> snapshot -> lineage -> retention -> fleet_health        state_store (ledger)

Here belong adapters of some twenty lines: facts and decisions come from `statestore.maintenance`, which knows nothing of
Dagster and does the same from the command line. Dagster's history is a record and never the truth: it can be deleted.

Modules with decorated functions do without `from __future__ import annotations`: Dagster reads the annotations of their
parameters, and takes none that is a text.
"""
