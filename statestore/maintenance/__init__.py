"""Maintenance of a checkpoint, during or after a query: one module for each verb, with gather, plan and execute.

A plan is data: a pure function makes it from gathered facts, with a reason for each store. The execution verifies again the
facts that can have changed. Independent of Spark, Dagster and terminals.
"""
