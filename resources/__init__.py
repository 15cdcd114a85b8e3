"""Dagster's resources: the fleet of checkpoints, the notifier and the sign of life of a run; `launcher` starts Dagster.

A resource defines the access to the outside world. `assets` uses resources, and `statestore` does the work. This module
imports no submodule: a Spark job imports `statekeeper.resources.launcher` without loading Dagster.
"""
